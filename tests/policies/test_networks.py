"""Plain networks as policies: features with any core, or outputs and value; rows replay as they were acted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from millpond.envs.objects import binding
from millpond.envs.spec import ActionSpec, ObservationSpec
from millpond.policies import Policy, PolicyError, load_policy_factory
from millpond.policies.networks import ActorCritic

OBSERVATION = ObservationSpec.single((4,), "float32", "vector")
ACTION = ActionSpec.discrete(3)


class Pair(nn.Module):
    def __init__(self, observation: Any, action: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(observation.shape[0], action.sizes[0] + 1)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self.layer(observation)
        return outputs[:, :-1], outputs[:, -1:]


def features() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(6), nn.Tanh())


def build(maker: Any, observation: ObservationSpec = OBSERVATION, **settings: Any) -> Any:
    with binding({"object:net": maker}):
        return load_policy_factory("object:net")(observation, ACTION, **settings)


@pytest.mark.parametrize(
    ("maker", "settings"),
    [
        (features, {"core": "none"}),
        (features, {"core": "lstm", "hidden_size": 5}),
        (features, {"core": "gru", "hidden_size": 6, "separate_critic": True, "normalize_values": True}),
        (Pair, {"core": "none", "normalize_observations": True}),
    ],
)
def test_unrolling_gives_what_acting_gave(maker: Any, settings: dict[str, Any]) -> None:
    torch.manual_seed(1)
    policy = build(maker, **settings)
    observation, generator = torch.randn(3, 5, 4), torch.Generator().manual_seed(2)
    if settings.get("normalize_observations"):
        policy.update_normalizer(observation.flatten(0, 1) * 3 + 1, None)
    state = first = policy.initial_state(3)
    acted = []
    for step in range(5):
        acted.append(policy.act(observation[:, step], state, generator=generator))
        state = acted[-1].state
    action = torch.stack([one.action for one in acted], 1)
    unrolled = policy.unroll(observation, first, torch.zeros(3, 5, dtype=torch.bool), action)
    for name in ("log_prob", "value"):
        expected = torch.stack([getattr(one, name) for one in acted], 1)
        torch.testing.assert_close(getattr(unrolled, name), expected, atol=1e-5, rtol=1e-5)
    (unrolled.log_prob.sum() + unrolled.value.sum()).backward()
    assert all(parameter.grad is not None for parameter in policy.parameters())


def test_core_none_adds_no_layer_and_a_core_adds_one_if_sizes_differ() -> None:
    assert build(features, core="none").output.in_features == 6
    assert isinstance(build(features, core="gru", hidden_size=6).encoder.linear, nn.Identity)
    assert build(features, core="gru", hidden_size=5).encoder.linear.out_features == 5
    assert type(build(features)) is Policy
    assert type(build(Pair)) is ActorCritic


def test_images_are_scaled_and_parts_come_by_name() -> None:
    seen: list[Any] = []

    class Look(nn.Module):
        def forward(self, parts: dict[str, Tensor]) -> Tensor:
            seen.append(parts)
            return parts["speed"]

    spec = ObservationSpec.packed([("eye", "pixels", (1, 8, 8), "uint8"), ("speed", "vector", (2,), "float32")])
    policy = build(Look, spec)
    policy.act(torch.full((2, *spec.shape), 255, dtype=torch.uint8), policy.initial_state(2))
    assert seen[-1]["eye"].shape == (2, 1, 8, 8)
    assert float(seen[-1]["eye"].max()) == 1.0


@pytest.mark.parametrize(
    ("maker", "says"),
    [
        (nn.Identity, None),
        (
            lambda: nn.Unflatten(1, (2, 2)),
            r"returned a tensor of shape \(3, 2, 2\) for 3 observations; it must return feat",
        ),
        (lambda: _Returns((torch.zeros(3, 2), torch.zeros(3))), r"need outputs of shape \(3, 3\) and one value each"),
        (lambda a, b, c: nn.Identity(), "has the parameters a, b, c; it is called as build"),
    ],
)
def test_network_of_another_form_is_refused(maker: Any, says: str | None) -> None:
    if says is None:
        assert build(maker).output.in_features == 4
        return
    with pytest.raises(PolicyError, match=says):
        build(maker)


class _Returns(nn.Module):
    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result

    def forward(self, observation: Tensor) -> Any:
        return self.result
