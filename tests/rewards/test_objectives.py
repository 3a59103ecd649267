"""Losses against exact enumeration, hand-worked numbers and the exact solution."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.rewards.batches import StepSampler
from millpond.rewards.objectives import (
    TEMPERATURE,
    decomposition_loss,
    lrd_loss,
    other_task_loss,
    progress_loss,
    rrd_loss,
    success_loss,
)


def mean_over_all_samples(loss: str, reward: torch.Tensor, mean_return: torch.Tensor, count: int) -> torch.Tensor:
    """The mean of a loss over every set of `count` steps, each equally likely."""
    losses, length = [], torch.full_like(mean_return, reward.shape[1])
    for steps in combinations(range(reward.shape[1]), count):
        sample = reward[:, list(steps)]
        if loss == "rrd":
            losses.append(rrd_loss(sample, mean_return))
        else:
            losses.append(lrd_loss(sample, mean_return, length))
    return torch.stack(losses).mean()


def test_rrd_and_lrd_by_hand() -> None:
    reward, mean_return, length = torch.tensor([[1.0, 3.0]]), torch.tensor([1.5]), torch.tensor([4.0])
    # mean 2: (2 - 1.5)^2 = .25; variance ((1-2)^2 + (3-2)^2) / 1 = 2; bias 2 / 2 * (1 - 2/4) = .5
    assert rrd_loss(reward, mean_return).item() == 0.25
    assert lrd_loss(reward, mean_return, length).item() == -0.25


@settings(max_examples=40)
@given(
    st.lists(st.floats(-5, 5), min_size=3, max_size=7),
    st.integers(2, 7),
    st.floats(-3, 3),
)
def test_lrd_has_no_bias_and_rrd_has_the_variance_of_the_mean(
    rewards: list[float], count: int, mean_return: float
) -> None:
    count = min(count, len(rewards))
    reward = torch.tensor([rewards], dtype=torch.float64)
    target = torch.tensor([mean_return], dtype=torch.float64)
    whole = decomposition_loss(reward, target)
    assert torch.allclose(mean_over_all_samples("lrd", reward, target, count), whole, atol=1e-9)
    variance = reward.var() / count * (1 - count / len(rewards))
    assert torch.allclose(mean_over_all_samples("rrd", reward, target, count), whole + variance, atol=1e-9)


def test_gradients_of_lrd_have_no_bias() -> None:
    reward = torch.tensor([[0.3, -1.0, 2.0, 0.7, 1.1]], dtype=torch.float64, requires_grad=True)
    target = torch.tensor([0.2], dtype=torch.float64)
    (sampled,) = torch.autograd.grad(mean_over_all_samples("lrd", reward, target, 3), reward)
    (whole,) = torch.autograd.grad(decomposition_loss(reward, target), reward)
    assert torch.allclose(sampled, whole, atol=1e-12)


def test_masked_places_are_ignored() -> None:
    short = torch.tensor([[1.0, 3.0, 99.0, 99.0], [1.0, 2.0, 3.0, 6.0]])
    valid = torch.tensor([[True, True, False, False], [True, True, True, True]])
    mean_return, length = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 8.0])
    # the first episode has two steps, and both are sampled: nothing is estimated, (2 - 1)^2 = 1
    # the second: mean 3, variance (4 + 1 + 0 + 9) / 3; bias 14/3 / 4 * (1 - 4/8) = 7/12; (3 - 2)^2 - 7/12
    assert torch.allclose(lrd_loss(short, mean_return, length, valid), torch.tensor((1 + 1 - 7 / 12) / 2))
    assert rrd_loss(short, mean_return, valid).item() == 1.0


@pytest.mark.parametrize("objective", ["lrd", "rrd"])
def test_the_minimum_is_the_least_squares_solution_for_lrd_only(objective: str) -> None:
    """Linear rewards r = phi w on a tiny problem: lrd descends to the exact minimiser of the loss on whole episodes."""
    rng = np.random.default_rng(3)
    phi = rng.normal(size=(40, 6, 3))  # 40 episodes of 6 steps
    truth = np.array([1.0, -2.0, 0.5])
    returns = (phi @ truth).sum(1) + rng.normal(scale=0.1, size=40)
    exact, *_ = np.linalg.lstsq(phi.mean(1), returns / 6, rcond=None)

    features, target = torch.tensor(phi), torch.tensor(returns / 6)
    sampler = StepSampler(np.full(40, 6), 40, 2)
    weights = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=0.05)
    averaged, count = torch.zeros(3, dtype=torch.float64), 0
    for update in range(6_000):
        episodes, steps = (torch.from_numpy(array) for array in sampler(rng))
        reward = features[episodes[:, None], steps] @ weights
        if objective == "lrd":
            loss = lrd_loss(reward, target[episodes], torch.full((40,), 6.0))
        else:
            loss = rrd_loss(reward, target[episodes])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update >= 2_000:
            averaged += weights.detach()
            count += 1
    error = np.abs((averaged / count).numpy() - exact).max()
    if objective == "lrd":
        assert error < 0.03
    else:  # pulled towards equal rewards
        assert error > 0.3


def test_progress_prefers_the_order_of_time() -> None:
    target = torch.tensor([[0.0, 0.25, 0.5, 0.75]]).repeat(2, 1)
    right = progress_loss(target, target, torch.ones(2))
    backwards = progress_loss(1 - target, target, torch.zeros(2))
    flat = progress_loss(torch.full_like(target, 0.5), target, torch.full((2,), 0.5))
    assert right < flat < backwards


def test_progress_by_hand() -> None:
    # one episode, two steps, flat: regression (.5^2 + 0^2) / 2; a pair with lead 0 and a truncation with lead 0 cost
    # log 2 each, the truncation weighted by the rest of the episode: (1 + .5) / 2
    progress, target = torch.tensor([[0.5, 0.5]]), torch.tensor([[0.0, 0.5]])
    expected = 0.125 + TEMPERATURE * np.log(2) * (1 + 0.75)
    assert progress_loss(progress, target, torch.tensor([0.5])).item() == pytest.approx(expected, rel=1e-6)


def test_progress_in_another_task_is_penalised() -> None:
    own = torch.full((2, 3), 0.6)
    assert other_task_loss(own, torch.zeros(2, 3)) < other_task_loss(own, torch.full((2, 3), 0.6))


def test_both_classes_of_success_have_equal_weight() -> None:
    logit = torch.tensor([2.0, -1.0, -1.0, -1.0])
    loss = success_loss(logit, torch.tensor([1.0, 0.0, 0.0, 0.0]))
    expected = 0.5 * np.log1p(np.exp(-2.0)) + 0.5 * np.log1p(np.exp(-1.0))
    assert loss.item() == pytest.approx(expected, rel=1e-6)
