"""Returns over blocks from replay: a BigAgent that has one collection of four agents learns what PQN would learn from it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from millpond import fast
from millpond.config.mixture import DQNConfig, PQNConfig
from millpond.config.recipe import EnvConfig, VectorConfig
from millpond.learners import DQN, AgentGroup, build_q_network
from millpond.learners.returns import block_returns, goal_batches, prioritised_order
from millpond.replay import Lake, Pond, Schema
from millpond.replay.blocks import list_blocks, read_blocks
from millpond.replay.transfer import fill_blocks, pour
from millpond.trainers.common.envs import build_vector

ENVS, STEPS, AGENTS = 3, 12, 4
GAMMA, LAMBDA = 0.9, 0.65


def vector_of(env: EnvConfig, envs: int, seed: int) -> Any:
    settings = VectorConfig(backend="inline")
    vector = build_vector(env, settings, num_envs=envs, groups=1, num_workers=1, stacked=True)
    vector.reset(seed)
    return vector


def four_agents(env: EnvConfig, network: Any, steps: int = STEPS) -> AgentGroup:
    """Four agents that start from one network."""
    vectors = [vector_of(env, ENVS, seed) for seed in range(AGENTS)]
    config = PQNConfig(num_envs=ENVS, num_steps=steps, num_minibatches=1, update_epochs=1)
    networks = [copy.deepcopy(network) for _ in vectors]
    return AgentGroup(networks, vectors, config, seeds=[*range(AGENTS)], total_collections=4, batched=False)


def lake_of(folder: Path, group: AgentGroup, collections: list[Any]) -> Lake:
    schema = Schema.from_spec(group.spec)
    lake = Lake.create(folder, schema)
    for number, collection in enumerate(collections):
        pond = Pond.init(schema, 4 * ENVS * STEPS, lanes=ENVS, guarded=True)
        pond.add(collection.as_steps(schema, agent=number))
        with lake.writer(f"agent{number}", lanes=ENVS) as writer:
            pour(pond, writer)
    lake.refresh()
    return lake


def pond_of(lake: Lake) -> Pond:
    pond = Pond.init(lake.schema, sum(lake.view(name).num_records for name in lake.streams))
    fill_blocks(pond, lake, 10**6, np.random.default_rng(0), length=STEPS)
    return pond


def network_of(group_or_env: EnvConfig) -> Any:
    spec = vector_of(group_or_env, 1, 0).spec
    return build_q_network(spec.observation, spec.action, hidden_size=16, generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("minibatches", [1, 4])
def test_one_collection_per_round_reproduces_an_update_of_pqn_with_four_times_the_batch(
    tmp_path: Path, compiled: bool, minibatches: int
) -> None:
    """The last step of each lane has no next observation in the lake yet: PQN has one step less, and bootstraps there."""
    env = EnvConfig(id="minatar:breakout", max_steps=9)  # truncations, too
    network = network_of(env)
    group = four_agents(env, network)
    collections = group.collect()
    lake = lake_of(tmp_path / "lake", group, collections)
    pond = pond_of(lake)
    config = DQNConfig(
        target="q_lambda", q_lambda=LAMBDA, gamma=GAMMA, block_steps=STEPS, double=False, loss="squared",
        optimizer="radam", learning_rate=1e-3, target_tau=1.0, max_grad_norm=10.0,
    )  # fmt: skip
    big = DQN(copy.deepcopy(network), config, compiled=fast.dqn_updates if compiled else None)

    # The same data as the collection of one agent with four times the envs, and one step less.
    pqn = PQNConfig(
        num_envs=AGENTS * ENVS, num_steps=STEPS - 1, num_minibatches=minibatches, update_epochs=1, gamma=GAMMA,
        q_lambda=LAMBDA, learning_rate=1e-3, max_grad_norm=10.0,
    )  # fmt: skip
    single = AgentGroup(
        [copy.deepcopy(network)], [vector_of(env, AGENTS * ENVS, 0)], pqn, seeds=[5], total_collections=1,
        compiled=fast.pqn_updates if compiled else None,
    )  # fmt: skip
    single.collect()
    for name in single.storage.NAMES:
        together = torch.cat([getattr(collection, name) for collection in collections], dim=1)
        getattr(single.storage, name)[0].copy_(together[:-1])
    single.storage.next_value[0].copy_(torch.cat([collection.value[-1] for collection in collections]))

    listed = list_blocks(pond.view(), STEPS - 1)
    blocks = read_blocks(pond, listed, np.arange(len(listed)), STEPS - 1)
    returns = block_returns(big, blocks)
    seen, place = single.storage.observation[0].flatten(0, 1), places(collections)
    known = place >= 0  # a last step that ended its episode is in the lake; PQN's collection is one step shorter
    assert int(known.sum()) == (STEPS - 1) * AGENTS * ENVS
    assert torch.equal(blocks.steps.observation[known], seen[place[known]])
    assert blocks.steps.terminated.any()
    assert blocks.steps.truncated.any()
    targets = single._targets(single._pending)[0]  # type: ignore[arg-type]
    torch.testing.assert_close(returns[known], targets.flatten()[place[known]], atol=1e-5, rtol=1e-5)

    order = torch.cat(single_order(single))  # one epoch's minibatches, in PQN's numbers
    where = torch.full((int(place.max()) + 1,), -1)
    where[place[known]] = known.nonzero().squeeze(1)
    for _ in single.learn():
        pass
    big.update_all(goal_batches(blocks, returns, where[order].view(minibatches, -1)))
    torch.testing.assert_close(big.online.data, single.parameters.data, atol=1e-5, rtol=1e-5)
    assert not torch.equal(network.output.weight, big.network.output.weight)
    assert big.updates == single.updates[0] == minibatches


def single_order(group: AgentGroup) -> list[torch.Tensor]:
    """Return the minibatches that the next `learn` will draw."""
    state = group.generators[0].get_state()
    minibatches = [minibatch[0] for minibatch in group._shuffled()]
    group.generators[0].set_state(state)
    return minibatches


def places(collections: list[Any]) -> torch.Tensor:
    """Return the place in the single agent's collection of each step of all lanes, lane after lane; -1 for its last steps.

    The lake has a lane's last step only if it ended its episode: the next observation of any other is not stored yet.
    """
    found = []
    for lane in range(AGENTS * ENVS):
        collection, own = collections[lane // ENVS], lane % ENVS
        found += [step * AGENTS * ENVS + lane for step in range(STEPS - 1)]
        if collection.terminated[-1, own] or collection.truncated[-1, own]:
            found.append(-1)
    return torch.tensor(found)


def prioritised(tmp_path: Path, **changes: Any) -> tuple[DQN, Any, torch.Tensor]:
    """A learner with priorities, blocks of a lake, and their returns."""
    env = EnvConfig(id="minatar:breakout", max_steps=9)
    network = network_of(env)
    group = four_agents(env, network)
    lake = lake_of(tmp_path / "lake", group, group.collect())
    config = DQNConfig(
        **{"target": "q_lambda", "block_steps": STEPS, "priority_exponent": 0.6, "target_tau": 1.0, **changes}
    )
    big = DQN(copy.deepcopy(network), config, compiled=fast.dqn_updates)
    pond = pond_of(lake)
    listed = list_blocks(pond.view(), STEPS)
    blocks = read_blocks(pond, listed, np.arange(len(listed)), STEPS)
    return big, blocks, block_returns(big, blocks)


def test_transitions_are_drawn_in_proportion_to_their_priorities_with_importance_weights(tmp_path: Path) -> None:
    big, blocks, returns = prioritised(tmp_path, priority_correction=0.4)
    assert big._compiled is None  # compiled updates know no weights
    returns = returns + torch.linspace(0, 2, len(returns))  # errors of many sizes
    q = big.network(blocks.steps.observation).gather(1, blocks.steps.action.long().view(-1, 1)).squeeze(1).detach()
    priority = ((returns - q).abs().double() + 1e-3) ** 0.6
    exact = (priority / priority.sum()).numpy()
    count = 400_000
    order, weight = prioritised_order(big, blocks, returns, count, np.random.default_rng(3))
    drawn = np.bincount(order.numpy(), minlength=len(exact))
    deviation = (drawn - count * exact) / np.sqrt(count * exact * (1 - exact))
    assert np.abs(deviation).max() < 4.5
    assert np.square(deviation).mean() == pytest.approx(1.0, abs=0.4)
    assert exact.max() > 5 * exact.min()
    expected = (len(exact) * exact) ** -0.4
    np.testing.assert_allclose(weight, (expected / expected.max())[order], rtol=1e-4)


@pytest.mark.parametrize("loss", ["huber", "squared"])
def test_importance_weights_scale_the_gradient_of_each_transition(tmp_path: Path, loss: str) -> None:
    big, blocks, returns = prioritised(tmp_path, loss=loss)
    order = torch.arange(6).view(1, 6)
    goals = returns + torch.linspace(0, 3, len(returns))
    weight = torch.tensor([[0.5, 0.0, 1.0, 0.25, 0.0, 1.0]])
    (batch,) = goal_batches(blocks, goals, order, weight=weight)
    big._gradient(batch, batch.reward, 1)
    weighted, expected = big.online.grad.clone(), torch.zeros_like(big.online.grad)
    for place, each in enumerate(weight[0].tolist()):
        (single,) = goal_batches(blocks, goals, torch.tensor([[place]]))
        big._gradient(single, single.reward, 1)
        expected += each / 6 * big.online.grad
    torch.testing.assert_close(weighted, expected, atol=1e-6, rtol=1e-5)
    (equal,) = goal_batches(blocks, goals, order, weight=torch.ones(1, 6))
    (plain,) = goal_batches(blocks, goals, order)
    means = big._gradient(equal, equal.reward, 1)
    torch.testing.assert_close(means, big._gradient(plain, plain.reward, 1))
