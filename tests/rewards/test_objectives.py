"""The losses against what they stand for: exact enumeration, hand-worked numbers, the exact solution."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.rewards.objectives import (
    TEMPERATURE,
    decomposition_loss,
    lrd_loss,
    other_task_loss,
    progress_loss,
    rrd_loss,
    success_loss,
)
from millpond.rewards.sampling import StepSampler


def over_all_draws(loss: str, reward: torch.Tensor, mean_return: torch.Tensor, wanted: int) -> torch.Tensor:
    """The mean of a loss over every set of `wanted` steps, each equally likely."""
    losses, length = [], torch.full_like(mean_return, reward.shape[1])
    for chosen in combinations(range(reward.shape[1]), wanted):
        drawn = reward[:, list(chosen)]
        if loss == "rrd":
            losses.append(rrd_loss(drawn, mean_return))
        else:
            losses.append(lrd_loss(drawn, mean_return, length))
    return torch.stack(losses).mean()


def test_a_hand_worked_batch() -> None:
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
    rewards: list[float], wanted: int, mean_return: float
) -> None:
    wanted = min(wanted, len(rewards))
    reward = torch.tensor([rewards], dtype=torch.float64)
    target = torch.tensor([mean_return], dtype=torch.float64)
    whole = decomposition_loss(reward, target)
    assert torch.allclose(over_all_draws("lrd", reward, target, wanted), whole, atol=1e-9)
    variance = reward.var() / wanted * (1 - wanted / len(rewards))
    assert torch.allclose(over_all_draws("rrd", reward, target, wanted), whole + variance, atol=1e-9)


def test_gradients_have_no_bias_either() -> None:
    reward = torch.tensor([[0.3, -1.0, 2.0, 0.7, 1.1]], dtype=torch.float64, requires_grad=True)
    target = torch.tensor([0.2], dtype=torch.float64)
    (drawn,) = torch.autograd.grad(over_all_draws("lrd", reward, target, 3), reward)
    (whole,) = torch.autograd.grad(decomposition_loss(reward, target), reward)
    assert torch.allclose(drawn, whole, atol=1e-12)


def test_masked_places_do_not_count() -> None:
    short = torch.tensor([[1.0, 3.0, 99.0, 99.0], [1.0, 2.0, 3.0, 6.0]])
    drawn = torch.tensor([[True, True, False, False], [True, True, True, True]])
    mean_return, length = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 8.0])
    # the first episode has two steps and gives both: nothing is estimated, (2 - 1)^2 = 1
    # the second: mean 3, variance (4 + 1 + 0 + 9) / 3; bias 14/3 / 4 * (1 - 4/8) = 7/12; (3 - 2)^2 - 7/12
    assert torch.allclose(lrd_loss(short, mean_return, length, drawn), torch.tensor((1 + 1 - 7 / 12) / 2))
    assert rrd_loss(short, mean_return, drawn).item() == 1.0


@pytest.mark.parametrize("objective", ["lrd", "rrd"])
def test_the_minimum_is_the_least_squares_solution_for_lrd_only(objective: str) -> None:
    """Linear rewards r = phi w on a tiny problem: lrd descends to the exact minimiser of the loss on whole episodes."""
    rng = np.random.default_rng(3)
    phi = rng.normal(size=(40, 6, 3))  # 40 episodes of 6 steps
    truth = np.array([1.0, -2.0, 0.5])
    returns = (phi @ truth).sum(1) + rng.normal(scale=0.1, size=40)
    exact, *_ = np.linalg.lstsq(phi.mean(1), returns / 6, rcond=None)

    features, target = torch.tensor(phi), torch.tensor(returns / 6)
    draw = StepSampler(np.full(40, 6), 40, 2)
    weights = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([weights], lr=0.05)
    averaged, count = torch.zeros(3, dtype=torch.float64), 0
    for update in range(6_000):
        episodes, steps = (torch.from_numpy(part) for part in draw(rng))
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
    # one episode, two steps, flat: regression (.5^2 + 0^2) / 2; a pair at lead 0 and a cut at lead 0 cost log 2 each,
    # the cut weighed by what is left of the episode: (1 + .5) / 2
    progress, target = torch.tensor([[0.5, 0.5]]), torch.tensor([[0.0, 0.5]])
    expected = 0.125 + TEMPERATURE * np.log(2) * (1 + 0.75)
    assert progress_loss(progress, target, torch.tensor([0.5])).item() == pytest.approx(expected, rel=1e-6)


def test_another_task_has_made_no_progress() -> None:
    own = torch.full((2, 3), 0.6)
    assert other_task_loss(own, torch.zeros(2, 3)) < other_task_loss(own, torch.full((2, 3), 0.6))


def test_both_classes_of_success_weigh_the_same() -> None:
    logit = torch.tensor([2.0, -1.0, -1.0, -1.0])
    loss = success_loss(logit, torch.tensor([1.0, 0.0, 0.0, 0.0]))
    expected = 0.5 * np.log1p(np.exp(-2.0)) + 0.5 * np.log1p(np.exp(-1.0))
    assert loss.item() == pytest.approx(expected, rel=1e-6)
