"""Compiled normal numbers against `GaussianHead` in float64."""

from __future__ import annotations

import numpy as np
import torch

from millpond.envs.spec import ActionSpec
from millpond.fast.gaussian import draw_vectors, evaluate_vectors, evaluate_vectors_backward
from millpond.fast.heads import HeadArrays, head_arrays
from millpond.policies.heads import GaussianHead

STEPS = 50
SPEC = ActionSpec.continuous((-1.0, -3.0, float("-inf")), (1.0, 2.0, float("inf")))


def make_head() -> tuple[GaussianHead, HeadArrays]:
    head = GaussianHead(SPEC)
    with torch.no_grad():
        head.log_deviation.copy_(torch.tensor([0.3, -1.2, 0.0]))
    return head, head_arrays(head)


def test_drawn_actions_and_their_probability_are_those_of_the_head() -> None:
    head, arrays = make_head()
    numbers = torch.randn(STEPS, 3)
    expected, expected_log_prob = head.sample(numbers, None, torch.Generator().manual_seed(1), False)
    noise = torch.empty(STEPS, 3).normal_(generator=torch.Generator().manual_seed(1))
    action, log_prob = np.empty((STEPS, 3), np.float32), np.empty(STEPS, np.float32)
    described = arrays.log_deviation, arrays.centre, arrays.reach
    draw_vectors(numbers.numpy(), *described, noise.numpy(), action, log_prob)
    np.testing.assert_allclose(action, expected.detach().numpy(), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(log_prob, expected_log_prob.detach().numpy(), rtol=1e-5, atol=1e-5)


def test_probability_entropy_and_gradients_equal_torch_in_float64() -> None:
    head, arrays = make_head()
    numbers, action = torch.randn(STEPS, 3), torch.randn(STEPS, 3)
    d_log_prob, d_entropy = torch.randn(STEPS), torch.randn(STEPS)
    exact, inputs = head.double(), numbers.double().requires_grad_()
    expected_log_prob, expected_entropy = exact.evaluate(inputs, action.double(), None)
    total = (expected_log_prob * d_log_prob).sum() + (expected_entropy * d_entropy).sum()
    d_numbers, d_deviation = torch.autograd.grad(total, (inputs, exact.log_deviation))

    log_prob, entropy = np.empty(STEPS, np.float32), np.empty(STEPS, np.float32)
    away, gradient = np.empty((STEPS, 3), np.float32), np.empty((STEPS, 3), np.float32)
    described = arrays.log_deviation, arrays.centre, arrays.reach
    evaluate_vectors(numbers.numpy(), *described, action.numpy(), log_prob, entropy, away)
    np.testing.assert_allclose(log_prob, expected_log_prob.detach().numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(entropy, expected_entropy.detach().numpy(), rtol=1e-5)
    added = np.ones(3, np.float32)
    evaluate_vectors_backward(arrays.log_deviation, away, d_log_prob.numpy(), d_entropy.numpy(), gradient, added)
    np.testing.assert_allclose(gradient, d_numbers.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(added, 1.0 + d_deviation.numpy(), rtol=1e-5, atol=1e-5)
