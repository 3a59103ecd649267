"""Normalised values: statistics of returns, and a layer that follows them."""

from __future__ import annotations

import pytest
import torch

from millpond.envs.spec import ActionSpec, ObservationSpec
from millpond.policies import Policy, build_policy
from millpond.policies.value_scale import MIN_DEVIATION, RATE, ValueScale

SPEC = ObservationSpec.single((4,), "float32", "vector")


def make_policy(separate_critic: bool = False) -> Policy:
    """Return a policy whose value depends on the observation."""
    policy = build_policy(
        SPEC,
        ActionSpec.discrete(3),
        core="none",
        hidden_size=16,
        normalize_values=True,
        separate_critic=separate_critic,
    )
    with torch.no_grad():
        policy.value_layer.weight[-1].normal_()
    return policy


def test_statistics_by_hand() -> None:
    """Exponential means of the first and second moment, with weights 1 and 1 - RATE = 0.97 in the second update."""
    scale = ValueScale()
    valid = torch.tensor([True, True, False])
    scale.update(torch.tensor([1.0, 3.0, 100.0]), valid)
    # the first: mean 2, mean of squares 5
    assert (scale.weight, scale.mean, scale.variance) == (1, 2, 1)
    assert scale.deviation() == 1
    scale.update(torch.tensor([[9.0], [11.0]]), torch.ones(2, 1, dtype=torch.bool))
    # the second: mean 10, mean of squares 101
    assert RATE == 0.03
    mean, square = (0.97 * 2 + 10) / 1.97, (0.97 * 5 + 101) / 1.97
    assert float(scale.mean) == pytest.approx(mean, rel=1e-12)
    assert float(scale.variance) == pytest.approx(square - mean**2, rel=1e-12)
    torch.testing.assert_close(scale(torch.tensor([1.0])), torch.tensor([mean + (square - mean**2) ** 0.5]))
    before = [float(buffer) for buffer in scale.buffers()]
    scale.update(torch.ones(3), torch.zeros(3, dtype=torch.bool))
    assert [float(buffer) for buffer in scale.buffers()] == before, "no valid step"


def test_ranks_share_the_statistics_of_all_ranks() -> None:
    target, alive = torch.randn(2, 50) + 7, torch.rand(2, 50) < 0.8
    sums: list[torch.Tensor] = []
    ValueScale().update(target[1], alive[1], sums.append)  # the share of the other rank
    scale, alone = ValueScale(), ValueScale()
    scale.update(target[0], alive[0], lambda tensor: tensor.add_(sums[0]))
    alone.update(target, alive)
    for ours, theirs in zip(scale.buffers(), alone.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("separate_critic", [False, True])
def test_values_do_not_change_with_the_statistics(separate_critic: bool) -> None:
    policy = make_policy(separate_critic)
    seen, state = torch.randn(50, 4), policy.initial_state(50)
    before, drawn = policy.value(seen, state), policy.act(seen, state, deterministic=True)
    for mean, deviation in ((300.0, 20.0), (-7.0, 0.01), (0.0, 5_000.0)):
        factor = policy.update_value_scale(mean + deviation * torch.randn(1_000), torch.ones(1_000, dtype=torch.bool))
        assert factor != 1.0
        error = (policy.value(seen, state) - before).abs().max()
        # rounding of float32: of the value, and of the mean that is added
        assert error <= 4e-7 * float(before.abs().max() + policy.value_scale.mean.abs())  # type: ignore[union-attr]
    acted = policy.act(seen, state, deterministic=True)
    assert torch.equal(acted.log_prob, drawn.log_prob)


def test_new_value_is_0_in_any_unit() -> None:
    policy = build_policy(SPEC, ActionSpec.discrete(3), normalize_values=True)
    assert not policy.value(torch.randn(9, 4), policy.initial_state(9)).any()


@pytest.mark.parametrize("constant", [0.0, 1.1, -3e4])
def test_constant_returns_do_not_explode(constant: float) -> None:
    """Targets that differ by rounding alone are normalised to about 0, not to a deviation of 1."""
    scale = ValueScale()
    target = torch.full((1_000,), constant)
    target[::2] += constant * torch.finfo(torch.float32).eps
    for _ in range(50):
        scale.update(target, torch.ones(1_000, dtype=torch.bool))
    deviation = scale.deviation()
    assert deviation >= MIN_DEVIATION
    assert ((target - scale.mean.float()) / deviation.float()).abs().max() < 0.02


@pytest.mark.parametrize("unit", [2.0**-10, 2.0**10])
def test_normalised_targets_are_the_same_in_any_unit(unit: float) -> None:
    policies = [make_policy(), make_policy()]
    policies[1].load_state_dict(policies[0].state_dict())
    for policy in policies:
        with torch.no_grad():
            policy.output.weight[-1].zero_()  # as at the start
    for _ in range(3):
        target = torch.rand(100) - 0.3
        for policy, factor in zip(policies, (1.0, unit), strict=True):
            policy.update_value_scale(factor * target, torch.ones(100, dtype=torch.bool))
    one, other = (policy.output for policy in policies)
    assert torch.equal(one.weight, other.weight)
    assert torch.equal(one.bias, other.bias)
