"""Compiled choices against the plain head, in float64 and draw by draw."""

from __future__ import annotations

import pytest
import torch

from millpond.envs.spec import ActionSpec
from millpond.fast.choices import FastChoices
from millpond.policies.heads import ChoiceHead

SIZES = (4, 2, 3)


def masks(forbidden: str, shape: torch.Size, action: torch.Tensor, draw: torch.Generator) -> torch.Tensor | None:
    """Return masks that allow the actions taken, except for one step if all are forbidden there."""
    if forbidden == "none":
        return None
    begins = torch.tensor((0, *SIZES[:-1])).cumsum(0)
    mask = (torch.rand(shape, generator=draw) < 0.5).scatter(-1, action + begins, True)
    mask[2, 3] = mask[2, 3] & (forbidden == "some")
    return mask


@pytest.mark.parametrize("forbidden", ["none", "some", "all"])
def test_evaluation_and_its_gradient_equal_plain_torch_in_float64(forbidden: str) -> None:
    plain, draw = ChoiceHead(ActionSpec.multidiscrete(SIZES)), torch.Generator().manual_seed(0)
    logits = torch.randn(5, 7, sum(SIZES), generator=draw)
    action = torch.stack([torch.randint(0, size, (5, 7), generator=draw) for size in SIZES], -1)
    mask = masks(forbidden, logits.shape, action, draw)
    results = []
    for head, dtype in ((FastChoices(plain), torch.float32), (plain, torch.float64)):
        leaf = logits.to(dtype).requires_grad_()
        log_prob, entropy = head.evaluate(leaf, action, mask)
        weights = torch.linspace(-1, 1, 35).view(5, 7).to(dtype)
        (gradient,) = torch.autograd.grad((log_prob * weights + entropy * weights.flip(0)).sum(), leaf)
        results.append([tensor.double() for tensor in (log_prob, entropy, gradient)])
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("masked", [False, True])
def test_draws_equal_those_of_the_plain_head(masked: bool) -> None:
    plain, draw = ChoiceHead(ActionSpec.multidiscrete(SIZES)), torch.Generator().manual_seed(0)
    logits = torch.randn(5_000, sum(SIZES), generator=draw)
    mask = torch.rand(logits.shape, generator=draw) < 0.6 if masked else None
    (ours, log_prob), (theirs, expected) = (
        head.sample(logits, mask, torch.Generator().manual_seed(3), False) for head in (FastChoices(plain), plain)
    )
    assert torch.equal(ours, theirs)
    torch.testing.assert_close(log_prob, expected, rtol=1e-5, atol=1e-6)
