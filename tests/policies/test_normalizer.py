"""Running statistics of observations."""

from __future__ import annotations

import pytest
import torch

from millpond.envs.spec import ActionSpec, ObservationSpec
from millpond.policies import PolicyError, build_policy
from millpond.policies.normalizer import CLIP, FLOOR, Normalizer


def test_statistics_of_batches_equal_those_of_all_data() -> None:
    numbers = torch.randn(1_000, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 1e-3, 50.0]) + 1e4
    normalizer = Normalizer(3)
    for piece in numbers.split([1, 400, 0, 599]):
        normalizer.update(piece)
    exact = numbers.double()
    torch.testing.assert_close(normalizer.mean, exact.mean(0), rtol=1e-12, atol=0)
    torch.testing.assert_close(normalizer.variance, exact.var(0, correction=0), rtol=1e-9, atol=0)
    assert normalizer.count == 1_000


def test_ranks_share_the_statistics_of_all_ranks() -> None:
    numbers = torch.randn(2, 50, 3, generator=torch.Generator().manual_seed(0)) + 7
    sums: list[torch.Tensor] = []
    Normalizer(3).update(numbers[1], sums.append)  # the share of the other rank
    normalizer, alone = Normalizer(3), Normalizer(3)
    normalizer.update(numbers[0], lambda tensor: tensor.add_(sums[0]))
    alone.update(numbers.flatten(0, 1))
    for ours, theirs in zip(normalizer.buffers(), alone.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_constant_inputs_have_a_minimum_scale_and_outliers_are_clipped() -> None:
    normalizer = Normalizer(2)
    normalizer.update(torch.tensor([[1.0, -1.0], [1.0, 1.0]]))
    out = normalizer(torch.tensor([[1.0, 0.5], [1.0 + FLOOR / 2, 100.0]]))
    torch.testing.assert_close(out, torch.tensor([[0.0, 0.5], [0.5, CLIP]]), rtol=1e-4, atol=1e-4)


def test_inputs_are_unchanged_before_the_first_update() -> None:
    torch.testing.assert_close(Normalizer(2)(torch.tensor([[0.5, -2.0]])), torch.tensor([[0.5, -2.0]]))


def test_only_updates_change_the_statistics() -> None:
    spec = ObservationSpec.packed([("view", "grid", (3, 3), "uint8"), ("speed", "vector", (2,), "float32")])
    policy = build_policy(spec, ActionSpec.discrete(3), hidden_size=8, normalize_observations=True)
    seen = torch.zeros(40, spec.shape[0], dtype=torch.uint8)
    seen[:, 12:] = (torch.randn(40, 2) * 30 + 100).view(torch.uint8)
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    first = policy.value(seen, policy.initial_state(40))
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.state_dict().items())
    policy.update_normalizer(seen)
    changed = {name for name, tensor in policy.state_dict().items() if not torch.equal(before[name], tensor)}
    assert {name.rpartition(".")[2] for name in changed} == {"count", "mean", "variance"}
    assert not torch.allclose(first, policy.value(seen, policy.initial_state(40)))


def test_update_of_a_policy_without_normalizer_does_nothing() -> None:
    policy = build_policy(ObservationSpec.single((2,), "float32", "vector"), ActionSpec.discrete(3))
    policy.update_normalizer(torch.randn(5, 2))
    assert not list(policy.buffers())


def test_normalizer_needs_a_vector() -> None:
    with pytest.raises(
        PolicyError, match=r"no part of the observation is a vector .*observation: grid.*set it to false"
    ):
        build_policy(
            ObservationSpec.single((3, 3), "uint8", "grid"), ActionSpec.discrete(3), normalize_observations=True
        )
