"""PPO losses against hand-worked tables."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from millpond.losses import PPOLoss, explained_variance, gtd_lambda_loss, normalise, ppo_loss


def loss(**changes: Tensor | float | None) -> PPOLoss:
    one = torch.ones(1)
    settings: dict[str, Tensor | float | None] = {
        "log_prob": one * 0,
        "old_log_prob": one * 0,
        "advantage": one,
        "value": one * 0,
        "old_value": one * 0,
        "target": one * 0,
        "entropy": one * 0,
        "weight": one,
        "clip_coef": 0.1,
        "vf_clip_coef": 0.1,
        "vf_coef": 0.44,
        "ent_coef": 0.0021,
    }
    return ppo_loss(**{**settings, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.0, 2.0, -2.0),
        (1.5, 2.0, -2.2),  # clipped at 1.1: no more is gained
        (0.5, 2.0, -1.0),  # a loss in probability is not clipped
        (1.5, -2.0, 3.0),  # nor is a gain in probability of a bad action
        (0.5, -2.0, 1.8),  # clipped at 0.9
    ],
)
def test_policy_loss(ratio: float, advantage: float, expected: float) -> None:
    found = loss(log_prob=torch.tensor([math.log(ratio)]), advantage=torch.tensor([advantage]))
    assert found.policy.item() == pytest.approx(expected, rel=1e-5)
    assert found.clip_fraction.item() == float(abs(ratio - 1) > 0.1)


@pytest.mark.parametrize(
    ("value", "old", "target", "expected"),
    [
        (0.05, 0.0, 1.0, 0.5 * 0.95**2),  # within the clip
        (0.9, 0.0, 1.0, 0.5 * 0.9**2),  # moved further than 0.1: the clipped error is the larger
        (2.0, 0.0, 0.0, 0.5 * 2.0**2),  # the unclipped error is the larger
    ],
)
def test_value_loss(value: float, old: float, target: float, expected: float) -> None:
    found = loss(value=torch.tensor([value]), old_value=torch.tensor([old]), target=torch.tensor([target]))
    assert found.value.item() == pytest.approx(expected, rel=1e-5)
    plain = loss(value=torch.tensor([value]), target=torch.tensor([target]), vf_clip_coef=None)
    assert plain.value.item() == pytest.approx(0.5 * (value - target) ** 2, rel=1e-5)


def test_entropy_is_a_bonus() -> None:
    calm, lively = loss(), loss(entropy=torch.tensor([1.0]))
    assert (calm.total - lively.total).item() == pytest.approx(0.0021, rel=1e-3)
    total = loss(entropy=torch.tensor([1.0]), target=torch.tensor([1.0]))
    assert total.total.item() == pytest.approx(-1.0 + 0.44 * 0.5 - 0.0021, rel=1e-4)


def test_kl_is_never_negative() -> None:
    steps = random_steps(100)
    found = loss(**{**steps, "weight": torch.ones(100)})
    assert found.approx_kl.item() >= 0
    assert loss().approx_kl.item() == 0


def random_steps(count: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    names = ("log_prob", "old_log_prob", "advantage", "value", "old_value", "target", "entropy")
    steps = {name: torch.randn(count, generator=generator) * 0.3 for name in names}
    steps["weight"] = (torch.rand(count, generator=generator) > 0.2).float() * torch.rand(count, generator=generator)
    return steps


def test_steps_of_dead_agents_do_not_count() -> None:
    steps = random_steps(50)
    valid_steps = {name: tensor[steps["weight"] > 0] for name, tensor in steps.items()}
    poisoned = {
        name: torch.where(steps["weight"] > 0, tensor, 1e6) for name, tensor in steps.items() if name != "weight"
    }
    poisoned["advantage"] = torch.where(steps["weight"] > 0, steps["advantage"], 0.0)  # as `normalise` leaves them
    whole, few = loss(**poisoned, weight=steps["weight"]), loss(**valid_steps)
    for name in ("total", "policy", "value", "entropy", "approx_kl", "clip_fraction"):
        assert getattr(whole, name).item() == pytest.approx(getattr(few, name).item(), rel=1e-4), name


def test_losses_of_micro_batches_add_up_to_the_minibatch() -> None:
    steps = random_steps(60)
    leaf = steps["log_prob"].clone().requires_grad_()
    loss(**{**steps, "log_prob": leaf}).total.backward()  # type: ignore[no-untyped-call]
    whole, leaf.grad = leaf.grad, None
    valid_steps = (steps["weight"] > 0).sum()
    for part in (slice(0, 25), slice(25, 60)):
        micro_batch = loss(
            **{name: t[part] for name, t in {**steps, "log_prob": leaf}.items()}, denominator=valid_steps
        )
        micro_batch.total.backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(leaf.grad, whole)


def test_normalised_advantages_ignore_dead_agents() -> None:
    advantage, alive = torch.tensor([1.0, 3.0, 99.0]), torch.tensor([True, True, False])
    assert normalise(advantage, alive).tolist() == pytest.approx([-1.0, 1.0, 0.0], abs=1e-5)


def test_explained_variance() -> None:
    target, alive = torch.tensor([1.0, 2.0, 3.0, 50.0]), torch.tensor([True, True, True, False])
    assert explained_variance(target, target, alive).item() == 1.0
    assert explained_variance(torch.full((4,), 2.0), target, alive).item() == pytest.approx(0.0)
    assert explained_variance(-target, target, alive).item() == pytest.approx(-3.0)
    assert explained_variance(target, torch.ones(4), alive).item() == 0.0  # nothing to explain


@pytest.mark.parametrize("name", ["log_prob", "value", "advantage", "target"])
def test_nan_is_not_hidden(name: str) -> None:
    assert loss(**{name: torch.tensor([float("nan")])}).total.isnan()


def test_a_step_beyond_the_clamp_of_its_log_ratio_has_no_gradient_and_a_finite_loss() -> None:
    log_prob = torch.tensor([200.0, -200.0, 0.5], requires_grad=True)
    steps: Any = [torch.zeros(3), torch.tensor([-1.0, 1.0, 1.0]), *[torch.zeros(3)] * 4, torch.ones(3)]
    loss = ppo_loss(log_prob, *steps, clip_coef=1e9, vf_clip_coef=None, vf_coef=0, ent_coef=0, log_ratio_clamp=10.0)
    assert float(loss.policy) == pytest.approx((math.exp(10) - math.exp(-10) - math.exp(0.5)) / 3)
    loss.total.backward()
    assert log_prob.grad is not None
    assert log_prob.grad.tolist() == pytest.approx([0.0, 0.0, -math.exp(0.5) / 3])


def test_gradient_td_is_that_of_its_equations() -> None:
    """Three steps, gamma lambda = 1/2, weights of one minibatch; gradients of D and V by hand.

    D_2 = d_2, D_1 = d_1 + D_2 / 2, D_0 = d_0 + D_1 / 2, d_t = r_t + V_{t+1} - V_t, and V_3 = 0 is no variable.
    """
    value = torch.tensor([[1.0, 2.0, 4.0]], dtype=torch.float64, requires_grad=True)
    reward = torch.tensor([[1.0, 0.0, 3.0]], dtype=torch.float64)
    correction = torch.tensor([[0.5, -1.0, 2.0]], dtype=torch.float64, requires_grad=True)
    d = reward + torch.cat((value[:, 1:], value.new_zeros(1, 1)), 1) - value
    two = d[:, 2]
    one = d[:, 1] + two / 2
    delta = torch.stack((d[:, 0] + one / 2, one, two), 1)
    assert delta.tolist() == [[2.75, 1.5, -1.0]]
    critic, aux = gtd_lambda_loss(delta, value, correction, torch.full((1, 3), 1 / 3, dtype=torch.float64))
    (grad,) = torch.autograd.grad(critic, value, retain_graph=True)
    # Of sum h D: h as traces e = h_0, h_1 + e_0 / 2, h_2 + e_1 / 2 = .5, -.75, 1.625, and dD/dV: -e_t + e_{t-1}
    # Of -(D - h) V: -(2.25, 2.5, -3)
    by_hand = [[(-0.5 - 2.25) / 3, (0.75 + 0.5 - 2.5) / 3, (-1.625 - 0.75 + 3) / 3]]
    assert grad.tolist()[0] == pytest.approx(by_hand[0])
    (grad,) = torch.autograd.grad(aux, correction)
    assert grad.tolist()[0] == pytest.approx([-2.25 / 3, -2.5 / 3, 3 / 3])


def test_importance_weights_multiply_the_advantage_alone_or_the_value_loss_too() -> None:
    two = {"weight": torch.tensor([3.0]), "value": torch.tensor([0.1]), "advantage": torch.tensor([2.0])}
    both, alone = loss(**two, target=torch.ones(1)), loss(**two, target=torch.ones(1), weights_value=False)
    assert (both.policy.item(), alone.policy.item()) == pytest.approx((-6.0, -6.0))
    assert (both.value.item(), alone.value.item()) == pytest.approx((3 * 0.5 * 0.9**2, 0.5 * 0.9**2))
    dead = loss(**{**two, "weight": torch.zeros(1)}, weights_value=False, denominator=1.0)
    assert dead.value.item() == 0.0
