"""Q-networks: LayerNorm as in PQN, every kind of observation, and the interface of a policy."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from millpond.envs.spec import ActionSpec, ObservationSpec
from millpond.learners import LearnerError, build_q_network
from millpond.learners.q_network import with_mask
from millpond.policies.encoders.pixels import ChannelNorm

FOUR = ActionSpec.discrete(4)
SPECS = {
    "vector": ObservationSpec.single((6,), "float32", "vector"),
    "small pixels": ObservationSpec.single((4, 10, 10), "uint8", "pixels", high=1.0),
    "large pixels": ObservationSpec.single((4, 84, 84), "uint8", "pixels"),
    "grid": ObservationSpec.single((5, 5), "uint8", "grid", high=3),
    "tokens": ObservationSpec.single((7, 3), "uint8", "tokens"),
    "parts": ObservationSpec.packed([("cells", "grid", (3, 3), "uint8"), ("counts", "vector", (2,), "uint8")]),
}


@pytest.mark.parametrize("name", SPECS)
def test_every_kind_of_observation_is_supported(name: str) -> None:
    spec = SPECS[name]
    network = build_q_network(spec, FOUR, hidden_size=16, generator=torch.Generator().manual_seed(1))
    observation = torch.zeros((3, *spec.shape), dtype=getattr(torch, spec.dtype))
    q = network(observation)
    assert q.shape == (3, 4)
    q.sum().backward()
    acted = network.act(observation, network.initial_state(3))
    assert torch.equal(acted.action, q.argmax(-1).int())
    assert torch.equal(network.value(observation, acted.state), q.amax(-1))
    again = build_q_network(spec, FOUR, hidden_size=16, generator=torch.Generator().manual_seed(1))
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize(("name", "norms"), [("vector", 2), ("small pixels", 2), ("large pixels", 4), ("grid", 2)])
def test_every_layer_but_the_last_is_followed_by_a_norm(name: str, norms: int) -> None:
    network = build_q_network(SPECS[name], FOUR, hidden_size=16)
    assert sum(isinstance(module, nn.LayerNorm) for module in network.modules()) == norms


def test_norm_of_an_image_is_over_channels_only() -> None:
    image = torch.rand(2, 16, 5, 6) * 3 + 1
    normal = ChannelNorm(16)(image)
    torch.testing.assert_close(normal.mean(1), torch.zeros(2, 5, 6), atol=1e-5, rtol=0)
    torch.testing.assert_close(normal.var(1, unbiased=False), torch.ones(2, 5, 6), atol=1e-3, rtol=0)


def test_unsupported_actions_and_settings_are_refused() -> None:
    with pytest.raises(LearnerError, match="continuous"):
        build_q_network(SPECS["vector"], ActionSpec.continuous((-1.0,), (1.0,)))
    with pytest.raises(LearnerError, match="multidiscrete"):
        build_q_network(SPECS["vector"], ActionSpec.multidiscrete((2, 2)))
    with pytest.raises(LearnerError, match=r"policy.normalize_observations=true"):
        build_q_network(SPECS["vector"], FOUR, normalize_observations=True)
    with pytest.raises(LearnerError, match=r"policy.hidden_size=0"):
        build_q_network(SPECS["vector"], FOUR, hidden_size=0)


def test_masked_actions_are_never_chosen() -> None:
    network = build_q_network(SPECS["vector"], FOUR, hidden_size=16)
    mask = torch.tensor([[False, False, True, False]])
    chosen = network.act(torch.rand(1, 6), network.initial_state(1), action_mask=mask)
    assert chosen.action.tolist() == [2]


def test_forbidden_actions_have_the_lowest_number_and_unknown_masks_forbid_nothing() -> None:
    q = torch.tensor([[3.0, 1.0, 2.0], [3.0, 1.0, 2.0]])
    mask = torch.tensor([[False, True, True], [False, False, False]])
    assert with_mask(q, mask).max(-1).values.tolist() == [2.0, 3.0]
    assert with_mask(q, mask).isfinite().all()  # times a discount of 0 it must be 0
    assert with_mask(q, None) is q
