"""Q-networks: LayerNorm where PQN has it, every kind of observation, and playing as a policy does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from millpond.config.env import EnvConfig
from millpond.envs.spec import ActionSpec, ObservationSpec
from millpond.learners import Epsilon, LearnerError, build_q_network, epsilon_greedy
from millpond.policies.encoders.pixels import ChannelNorm
from tests.support.corridor import make

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
def test_every_kind_of_observation(name: str) -> None:
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


def test_what_it_refuses() -> None:
    with pytest.raises(LearnerError, match="continuous"):
        build_q_network(SPECS["vector"], ActionSpec.continuous((-1.0,), (1.0,)))
    with pytest.raises(LearnerError, match="multidiscrete"):
        build_q_network(SPECS["vector"], ActionSpec.multidiscrete((2, 2)))
    with pytest.raises(LearnerError, match=r"policy.normalize_observations=true"):
        build_q_network(SPECS["vector"], FOUR, normalize_observations=True)
    with pytest.raises(LearnerError, match=r"policy.hidden_size=0"):
        build_q_network(SPECS["vector"], FOUR, hidden_size=0)


def test_masked_actions_are_never_the_best() -> None:
    network = build_q_network(SPECS["vector"], FOUR, hidden_size=16)
    mask = torch.tensor([[False, False, True, False]])
    chosen = network.act(torch.rand(1, 6), network.initial_state(1), action_mask=mask)
    assert chosen.action.tolist() == [2]


def test_epsilon_is_the_share_of_random_actions() -> None:
    q = torch.tensor([[0.0, 1.0, 0.0, 0.0]]).expand(20_000, 4)
    chosen = epsilon_greedy(q, 0.4, torch.Generator().manual_seed(0))
    shares = torch.bincount(chosen, minlength=4) / 20_000
    torch.testing.assert_close(shares, torch.tensor([0.1, 0.7, 0.1, 0.1]), atol=0.01, rtol=0)
    assert epsilon_greedy(q[:9], 0.0, torch.Generator()).tolist() == [1] * 9


def test_epsilon_restarts_from_the_value_of_its_reset() -> None:
    epsilon = Epsilon(1.0, 0.1, over=100)
    epsilon.advance(50)
    assert epsilon.value == pytest.approx(0.55)
    epsilon.reset(0.3)
    assert epsilon.value == pytest.approx(0.3)
    epsilon.advance(50)
    assert epsilon.value == pytest.approx(0.2)
    other = Epsilon(0.0, 0.0, over=1)
    other.load_state_dict(epsilon.state_dict())
    assert other.value == epsilon.value
    epsilon.reset()
    assert epsilon.value == pytest.approx(0.3)


def test_envs_with_action_masks_are_refused() -> None:
    from dataclasses import replace

    from millpond.learners.q_network import check_spec

    spec = make(EnvConfig(id="recall"), 1).spec
    check_spec(spec)
    with pytest.raises(LearnerError, match="masks"):
        check_spec(replace(spec, action_masks=True))
