"""SAC: distribution and losses against plain formulas, its state, and a task that it learns in seconds."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from millpond.envs.spec import ActionSpec, ObservationSpec
from millpond.learners import SAC, LearnerError
from millpond.store.checkpoint import tree_from_bytes, tree_to_bytes

SEEN = ObservationSpec.single((3,), "float32", "vector")
TWO = ActionSpec.continuous((-2.0, 0.0), (2.0, 1.0))


def transitions(count: int, seed: int = 0) -> Any:
    rng = torch.Generator().manual_seed(seed)
    return SimpleNamespace(
        observation=torch.randn(count, 3, generator=rng),
        next_observation=torch.randn(count, 3, generator=rng),
        action=torch.rand(count, 2, generator=rng),
        reward=torch.rand(count, generator=rng),
        discount=torch.where(torch.rand(count, generator=rng) < 0.3, 0.0, 0.99),
    )


def small(**settings: Any) -> SAC:
    return SAC(SEEN, TWO, seed=1, hidden_size=16, **settings)


def test_actions_are_within_bounds_and_log_probabilities_match() -> None:
    actor, observation = small().actor, torch.randn(500, 3)
    action, log_prob = actor.sample(observation, torch.Generator().manual_seed(0))
    assert bool((action[:, 0].abs() < 2).all() & (action[:, 1] > 0).all() & (action[:, 1] < 1).all())
    mean, log_deviation = actor(observation)
    normal = torch.distributions.Normal(mean, log_deviation.exp())
    squashed = torch.distributions.TransformedDistribution(
        normal,
        [
            torch.distributions.transforms.TanhTransform(cache_size=1),
            torch.distributions.transforms.AffineTransform(torch.tensor([0.0, 0.5]), torch.tensor([2.0, 0.5])),
        ],
    )
    torch.testing.assert_close(log_prob, squashed.log_prob(action).sum(-1), atol=1e-3, rtol=1e-3)


def test_twin_critics_equal_two_separate_networks() -> None:
    agent, batch = small(), transitions(7)
    inputs = torch.cat([batch.observation, batch.action], 1)
    plain = torch.stack([twin(inputs).squeeze(1) for twin in agent.critics.networks])
    torch.testing.assert_close(agent._q(inputs), plain)
    assert not torch.equal(plain[0], plain[1])


def test_critic_gradients_equal_those_of_autograd() -> None:
    agent, batch, target = small(), transitions(9), torch.rand(9)
    inputs = torch.cat([batch.observation, batch.action], 1)
    loss = sum(nn.functional.mse_loss(twin(inputs).squeeze(1), target) for twin in agent.critics.networks)
    expected = torch.autograd.grad(loss, [p for twin in agent.critics.networks for p in twin.parameters()])
    agent._q.backward((agent._q(inputs) - target).square().mean(1).sum())
    given = [p.grad for twin in agent.critics.networks for p in twin.parameters()]
    for one, other in zip(given, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_target_equals_the_formula() -> None:
    agent, batch = small(), transitions(9)
    agent.target_parameters.data.mul_(1.5)
    alpha = torch.tensor(0.3)
    generator = torch.Generator().manual_seed(1)
    generator.set_state(agent.generator.get_state())
    with torch.no_grad():
        action, log_prob = agent.actor.sample(batch.next_observation, generator)
        inputs = torch.cat([batch.next_observation, action], 1)
        lower = torch.minimum(*(twin(inputs).squeeze(1) for twin in agent.target_parameters.networks))
    expected = batch.reward + batch.discount * (lower - alpha * log_prob)
    torch.testing.assert_close(agent._targets(batch, batch.reward, alpha), expected)


def test_actor_update_improves_its_objective_and_leaves_critics_unchanged() -> None:
    agent, batch = small(learning_rate=1e-2), transitions(256)
    critics = agent.critics.data.clone()
    losses = [float(agent._train_actor(batch, torch.tensor(0.0))[0]) for _ in range(60)]
    assert torch.equal(agent.critics.data, critics)
    assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.01


def test_temperature_moves_entropy_towards_its_target() -> None:
    """If the entropy is above its target, alpha falls; if below, it rises."""
    for target, rises in ((-100.0, False), (100.0, True)):
        agent = small(target_entropy=target)
        agent.update(transitions(16))
        assert (float(agent.log_alpha) > 0) == rises
    assert small().target_entropy == -2.0


def test_target_critics_are_a_moving_average() -> None:
    agent = small(target_tau=0.1)
    before = agent.target_parameters.data.clone()
    agent.update(transitions(16))
    torch.testing.assert_close(agent.target_parameters.data, before + 0.1 * (agent.critics.data - before))


def test_predicted_rewards_replace_those_of_the_batch() -> None:
    one, other, batch, better = small(), small(), transitions(16), torch.rand(16)
    one.update(batch, reward=better)
    batch.reward = better
    other.update(batch)
    assert torch.equal(one.critics.data, other.critics.data)


def test_training_continues_from_its_state_bit_for_bit() -> None:
    uncut, again = small(), SAC(SEEN, TWO, seed=9, hidden_size=16)
    for k in range(3):
        uncut.update(transitions(16, k))
    again.load_state_dict(tree_from_bytes(tree_to_bytes(uncut.state_dict()), "state"))
    for agent in (uncut, again):
        for k in range(3, 6):
            agent.update(transitions(16, k))
    assert tree_to_bytes(uncut.state_dict()) == tree_to_bytes(again.state_dict())
    observation = torch.randn(5, 3)
    assert torch.equal(uncut.act(observation), again.act(observation))
    with pytest.raises(LearnerError, match="the saved policy"):
        SAC(SEEN, TWO, seed=1, hidden_size=8).load_state_dict(uncut.state_dict())


def test_learns_to_repeat_its_observation() -> None:
    """One step per episode: the reward is minus the distance between action and observation."""
    observation, act = ObservationSpec.single((1,), "float32", "vector"), ActionSpec.continuous((-1.0,), (1.0,))
    agent = SAC(observation, act, seed=1, hidden_size=32, learning_rate=3e-3)
    rng = torch.Generator().manual_seed(0)
    for _ in range(300):
        observation = torch.rand(64, 1, generator=rng) * 1.6 - 0.8
        action = agent.act(observation)
        batch = SimpleNamespace(
            observation=observation,
            next_observation=observation,
            action=action,
            reward=-(action - observation).square().sum(-1),
            discount=torch.zeros(64),
        )
        agent.update(batch)
    observations = torch.linspace(-0.5, 0.5, 9).unsqueeze(1)
    assert float((agent.act(observations, deterministic=True) - observations).abs().max()) < 0.2


def test_unsupported_actions_and_observations_are_refused() -> None:
    with pytest.raises(LearnerError, match="these are discrete"):
        SAC(SEEN, ActionSpec.discrete(3), seed=1)
    with pytest.raises(LearnerError, match="with finite bounds"):
        SAC(SEEN, ActionSpec.continuous((-math.inf,), (1.0,)), seed=1)
    with pytest.raises(LearnerError, match="needs vectors of float32"):
        SAC(ObservationSpec.single((3, 8, 8), "uint8", "pixels"), TWO, seed=1)
