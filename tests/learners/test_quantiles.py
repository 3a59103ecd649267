"""A BigAgent that learns quantiles of the return."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from millpond import fast
from millpond.config.mixture import DQNConfig
from millpond.envs.spec import ActionSpec, ObservationSpec
from millpond.learners import DQN, LearnerError, QNetwork, build_q_network
from millpond.learners.dqn import GoalBatch, quantile_loss
from millpond.replay.pond import PondBatch

ONE = ObservationSpec.single((2,), "float32", "vector")
IMAGE = ObservationSpec.single((4, 10, 10), "uint8", "pixels", high=1.0)


def network(quantiles: int, observation: ObservationSpec = ONE) -> QNetwork:
    generator = torch.Generator().manual_seed(1)
    return build_q_network(
        observation, ActionSpec.discrete(3), hidden_size=16, quantiles=quantiles, generator=generator
    )


def make(quantiles: int = 4, **changes: Any) -> DQN:
    return DQN(network(quantiles), DQNConfig(**{"quantiles": quantiles, "learning_rate": 1e-2, **changes}))


def test_quantile_loss_has_the_values_worked_out_by_hand() -> None:
    theta = torch.tensor([[0.0, 2.0]])  # tau = 1/4, 3/4
    # y = 1: d = 1, -1; huber 0.5 each. 1/4 * 0.5 + |3/4 - 1| * 0.5 = 0.25
    assert quantile_loss(theta, torch.tensor([[1.0]])).item() == pytest.approx(0.25)
    # y = 3: d = 3, 1; huber 2.5 and 0.5. 1/4 * 2.5 + 3/4 * 0.5 = 1.0; the mean of both samples is 0.625
    assert quantile_loss(theta, torch.tensor([[3.0]])).item() == pytest.approx(1.0)
    assert quantile_loss(theta, torch.tensor([[1.0, 3.0]])).item() == pytest.approx(0.625)
    both = theta.expand(2, 2)
    weighted = quantile_loss(both, torch.tensor([[1.0], [3.0]]), torch.tensor([1.0, 0.5]))
    assert weighted.item() == pytest.approx((0.25 + 0.5) / 2)


def test_quantiles_of_a_known_distribution_are_learned() -> None:
    """A return that is 0 or 8, each with probability 1/2: half of the quantiles are 0, half 8, and Q is 4."""
    dqn, generator = make(4, lr_schedule="linear"), torch.Generator().manual_seed(0)
    dqn.total_updates = 400
    observation, action = torch.ones(64, 2), torch.ones(64, dtype=torch.int64)
    for _ in range(400):
        goal = 8.0 * torch.randint(2, (64,), generator=generator)
        dqn.update(GoalBatch(observation, action, goal, {}))
    learned = dqn.network.of_quantiles(observation[:1])[0, 1].sort().values
    torch.testing.assert_close(learned, torch.tensor([0.0, 0.0, 8.0, 8.0]), atol=0.7, rtol=0)
    assert dqn.network(observation[:1])[0, 1].item() == pytest.approx(4.0, abs=0.4)
    assert dqn.mean(observation[:1])[0, 1].item() == pytest.approx(dqn.network(observation[:1])[0, 1].item(), abs=1e-4)


@pytest.mark.parametrize("double", [True, False])
def test_targets_are_quantiles_of_the_best_allowed_action(double: bool) -> None:
    dqn = make(4, double=double)
    dqn.target.pull(network(4))
    with torch.no_grad():
        dqn.network.output.weight.mul_(-3.0)
    observation, following = torch.randn(6, 2), torch.randn(6, 2)
    reward, discount, action = torch.randn(6), torch.tensor([0.9, 0.0, 0.9, 0.9, 0.9, 0.0]), torch.tensor([0, 1, 2] * 2)
    mask = torch.tensor([[True, True, False]] * 6)
    flags = torch.zeros(6, dtype=torch.bool)
    batch = PondBatch(observation, following, action, reward, flags, flags, discount, flags, {}, mask)
    (of_target, chooser) = dqn.target.of_quantiles(following), dqn.network(following)
    values = (chooser if double else of_target.mean(-1))[:, :2]
    best = values.argmax(-1)
    target = reward[:, None] + discount[:, None] * of_target[torch.arange(6), best]
    quantiles = dqn.network.of_quantiles(observation)[torch.arange(6), action]
    q, loss = dqn._quantile_loss(batch, reward)
    torch.testing.assert_close(loss, quantile_loss(quantiles, target.detach()))
    torch.testing.assert_close(q, quantiles.mean(1))


def test_network_to_act_with_follows_and_survives_a_checkpoint() -> None:
    dqn = make(4, mean_decay=0.5)
    before = dqn.mean(torch.ones(1, 2)).clone()
    batch = GoalBatch(torch.ones(8, 2), torch.zeros(8, dtype=torch.int64), torch.full((8,), 5.0), {})
    old = {name: tensor.clone() for name, tensor in dqn.mean.state_dict().items()}
    dqn.update(batch)
    now = DQN(network(4), DQNConfig(quantiles=4)).mean
    now.pull(dqn.network)
    for name, tensor in dqn.mean.state_dict().items():
        torch.testing.assert_close(tensor, 0.5 * old[name] + 0.5 * now.state_dict()[name])
    assert not torch.equal(dqn.mean(torch.ones(1, 2)), before)
    other = make(4, mean_decay=0.5)
    other.load_state_dict(dqn.state_dict())
    dqn.update(batch)
    other.update(batch)
    assert torch.equal(other.online.data, dqn.online.data)
    assert torch.equal(other.mean.output.weight, dqn.mean.output.weight)
    plain = network(1)
    dqn.start_from(plain)
    torch.testing.assert_close(dqn.network(torch.ones(1, 2)), plain(torch.ones(1, 2)))
    torch.testing.assert_close(dqn.mean(torch.ones(1, 2)), plain(torch.ones(1, 2)))


def test_networks_with_quantiles_are_not_compiled_and_must_have_as_many_as_the_config() -> None:
    assert fast.dqn_updates(DQN(network(4, IMAGE), DQNConfig(quantiles=4))) is None
    assert fast.dqn_updates(DQN(network(1, IMAGE), DQNConfig())) is not None
    with pytest.raises(LearnerError, match=r"dqn.quantiles=8, but the network has 4"):
        DQN(network(4), DQNConfig(quantiles=8))
    with pytest.raises(LearnerError, match="quantiles are for networks without memory"):
        build_q_network(ONE, ActionSpec.discrete(3), core="gru", quantiles=4)
