"""Learners with memory: PQN and a BigAgent with an LSTM or a GRU, from the states that the agents had."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from millpond import fast
from millpond.config.mixture import DQNConfig, PQNConfig
from millpond.config.recipe import EnvConfig, RecallConfig, VectorConfig
from millpond.learners import DQN, AgentGroup, LearnerError, QNetwork, build_q_network
from millpond.learners.returns import Grid, Memory, Observations, block_returns, sequence_batches
from millpond.policies.policy import CoreKind
from millpond.replay import Lake, Pond, Schema
from millpond.replay.blocks import list_blocks, read_blocks
from millpond.replay.schema import STATE
from millpond.replay.transfer import fill_blocks, pour
from millpond.store.checkpoint import tree_from_bytes, tree_to_bytes
from millpond.trainers.common.envs import build_vector

RECALL = EnvConfig(id="recall", recall=RecallConfig(min_delay=2, max_delay=4))
TRUNCATED = EnvConfig(id="grid", max_steps=7)
BREAKOUT = EnvConfig(id="minatar:breakout", max_steps=9)
ENVS, STEPS = 4, 12
GAMMA, LAMBDA = 0.9, 0.65
CORES: list[CoreKind] = ["lstm", "gru"]


def network_for(spec: Any, core: CoreKind, seed: int = 7) -> QNetwork:
    generator = torch.Generator().manual_seed(seed)
    network = build_q_network(spec.observation, spec.action, hidden_size=16, core=core, generator=generator)
    torch.nn.init.orthogonal_(network.output.weight, 3.0, generator=generator)  # values that differ from step to step
    return network


def make_group(env: EnvConfig, core: CoreKind, seeds: tuple[int, ...] = (3,), **changes: Any) -> AgentGroup:
    config = PQNConfig(
        **{"num_envs": ENVS, "num_steps": STEPS, "num_minibatches": 1, "update_epochs": 1, "gamma": GAMMA}
        | {"q_lambda": LAMBDA, "learning_rate": 1e-2}
        | changes
    )
    vectors = []
    for seed in seeds:
        settings = VectorConfig(backend="inline")
        vectors.append(build_vector(env, settings, num_envs=config.num_envs, groups=1, num_workers=1, stacked=True))
        vectors[-1].reset(seed)
    networks = [network_for(vectors[0].spec, core) for _ in seeds]
    return AgentGroup(networks, vectors, config, seeds=seeds, total_collections=8, compiled=fast.pqn_updates)


def resets_of(collection: Any) -> torch.Tensor:
    reset = torch.zeros_like(collection.terminated)
    reset[1:] = (collection.terminated | collection.truncated)[:-1]
    return reset


@pytest.mark.parametrize("env", [RECALL, TRUNCATED, BREAKOUT], ids=["recall", "grid", "breakout"])
@pytest.mark.parametrize("core", CORES)
def test_unrolled_collection_gives_the_values_of_acting(env: EnvConfig, core: CoreKind) -> None:
    """In the second collection, too, whose episodes began in the first one."""
    group = make_group(env, core)
    for _ in range(2):
        (collection,) = group.collect()
        q = group.networks[0].unroll(collection.observation, collection.state[0], resets_of(collection))
        torch.testing.assert_close(q.amax(-1), collection.value, atol=1e-5, rtol=1e-5)
        played, states = group.networks[0].play(collection.observation, collection.state[0], resets_of(collection))
        torch.testing.assert_close(played, q, atol=1e-5, rtol=1e-5)
        ended = collection.terminated | collection.truncated
        assert ended.any()
        torch.testing.assert_close(collection.state[1:][~ended[:-1]], states[:-1][~ended[:-1]])
        assert not collection.state[1:][ended[:-1]].any()  # an episode begins without a memory
    assert collection.state[0].any()  # the second collection continues episodes


@pytest.mark.parametrize("core", CORES)
def test_truncated_step_bootstraps_with_the_memory_of_its_episode(core: CoreKind) -> None:
    group = make_group(TRUNCATED, core)
    (collection,) = group.collect()
    assert collection.truncated.any()
    _, states = group.networks[0].play(collection.observation, collection.state[0], resets_of(collection))
    final = torch.from_numpy(collection.final_observation)
    expected, _ = group.networks[0].step(final, states[torch.from_numpy(collection.has_final)])
    torch.testing.assert_close(collection.final_value[collection.truncated], expected.amax(-1))


def test_bootstrap_at_the_end_of_a_collection_does_not_advance_the_memory() -> None:
    group = make_group(RECALL, "lstm")
    first, state = group.collect()[0], group.collector.state.clone()
    next_value = first.next_value.clone()
    (second,) = group.collect()
    torch.testing.assert_close(second.state[0], state[0])
    torch.testing.assert_close(second.value[0], next_value)


def test_minibatches_of_whole_envs_have_the_gradient_of_all_steps() -> None:
    group = make_group(RECALL, "gru", num_minibatches=2)
    (collection,) = group.collect()
    targets = group._targets([collection])[0]
    network = copy.deepcopy(group.networks[0])
    minibatches = [envs[0] for envs in group._shuffled()]
    assert sorted(torch.cat(minibatches).tolist()) == [*range(ENVS)]
    q, goal, valid = group._unroll(0, minibatches[0], targets.unsqueeze(0))
    assert q.shape == (1, STEPS * 2)
    assert valid.all()
    expected = network.unroll(collection.observation, collection.state[0], resets_of(collection))
    expected = expected.gather(2, collection.action.long().unsqueeze(-1)).squeeze(2)[:, minibatches[0]]
    torch.testing.assert_close(q[0], expected.flatten())
    torch.testing.assert_close(goal[0], targets[:, minibatches[0]].flatten())
    with pytest.raises(LearnerError, match=r"pqn.num_minibatches=3 does not divide pqn.num_envs=4: with memory"):
        make_group(RECALL, "gru", num_minibatches=3)


def test_agents_with_memory_trained_together_equal_agents_trained_alone_and_resumed_ones() -> None:
    together = make_group(RECALL, "lstm", (3, 5))
    for _ in range(3):
        together.collect()
        together.learn()
    alone = make_group(RECALL, "lstm", (5,))
    for number in range(3):
        alone.collect()
        if number == 1:  # between collect() and learn(), and with episodes that go on
            saved = tree_from_bytes(tree_to_bytes(alone.state_dict()), "group")
            envs = alone.vectors[0].save_state()
            alone = make_group(RECALL, "lstm", (5,))
            alone.load_state_dict(saved)
            alone.vectors[0].load_state(envs)
        alone.learn()
    torch.testing.assert_close(together.parameters.data[1], alone.parameters.data[0])
    assert not torch.equal(together.parameters.data[0], together.parameters.data[1])
    alone.begin_episodes()
    assert not alone.collector.state.any()


def lake_of(folder: Path, group: AgentGroup, collections: int) -> tuple[Lake, list[Any]]:
    """Return a lake of collections, and copies of those."""
    schema = Schema.from_spec(group.spec, state_shape=tuple(group.networks[0].initial_state(1).shape[1:]))
    lake, kept = Lake.create(folder, schema), []
    pond = Pond.init(schema, 8 * ENVS * STEPS, lanes=ENVS, guarded=True)
    with lake.writer("agent0", lanes=ENVS) as writer:
        for _ in range(collections):
            (collection,) = group.collect()
            kept.append(copy.deepcopy(collection))
            pond.add(collection.as_steps(schema))
            pour(pond, writer)
    lake.refresh()
    return lake, kept


def blocks_of(lake: Lake, length: int) -> Any:
    pond = Pond.init(lake.schema, sum(lake.view(name).num_records for name in lake.streams))
    fill_blocks(pond, lake, 10**6, np.random.default_rng(0), length=length)
    listed = list_blocks(pond.view(), length)
    return read_blocks(pond, listed, np.arange(len(listed)), length)


CONFIG = DQNConfig(
    target="q_lambda", q_lambda=LAMBDA, gamma=GAMMA, block_steps=STEPS, double=False, loss="squared",
    optimizer="radam", learning_rate=1e-2, target_tau=1.0, max_grad_norm=10.0,
)  # fmt: skip


@pytest.mark.parametrize("env", [RECALL, TRUNCATED], ids=["recall", "grid"])
@pytest.mark.parametrize("core", CORES)
def test_one_collection_from_the_lake_reproduces_an_update_of_pqn(
    tmp_path: Path, env: EnvConfig, core: CoreKind
) -> None:
    """A collection of one step less: the next observation of a lane's last step is not in the lake yet."""
    group = make_group(env, core)
    network = copy.deepcopy(group.networks[0])
    lake, (collection,) = lake_of(tmp_path / "lake", group, 1)
    blocks = blocks_of(lake, STEPS - 1)
    keep = blocks.shape[1] - len(collection.reward[0])  # last steps that ended their episode are blocks of their own
    big = DQN(network, CONFIG)
    returns = block_returns(big, blocks)

    shorter = make_group(env, core, num_steps=STEPS - 1)
    shorter.collect()
    for name in shorter.storage.NAMES:
        getattr(shorter.storage, name)[0].copy_(getattr(collection, name)[:-1])
    shorter.storage.next_value[0].copy_(collection.value[-1])
    shorter._pending = [shorter.storage.view(0, 0.0, [], [])]
    targets = shorter._targets(shorter._pending)[0]
    grid = Grid(blocks.place, blocks.shape)
    whole = grid(torch.ones_like(blocks.last)).all(0)
    assert int(whole.sum()) == ENVS
    assert keep == int((~whole).sum())
    torch.testing.assert_close(grid(returns)[:, whole], targets, atol=1e-5, rtol=1e-5)

    (batch,) = sequence_batches(big, blocks, returns, 1)
    mine = {name: getattr(batch, name)[:, whole] for name in ("observation", "reset", "action", "reward", "valid")}
    (metrics,) = big.update_all([type(batch)(**mine, state=batch.state[whole], burn_in=0, column={})])
    (learned,) = shorter.learn()
    torch.testing.assert_close(big.online.data, shorter.parameters.data, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(metrics["q_loss"], learned["q_loss"])
    torch.testing.assert_close(metrics["q_value"], learned["q_value"])
    assert not torch.equal(network_for(group.spec, core).output.weight, big.network.output.weight)


def test_stored_states_are_those_that_the_agent_had(tmp_path: Path) -> None:
    """Blocks may begin anywhere: unrolled from their stored states, they give the values of acting."""
    group = make_group(RECALL, "gru")
    lake, collections = lake_of(tmp_path / "lake", group, 3)
    blocks = blocks_of(lake, 5)
    assert blocks.steps.column[STATE].shape[1:] == (1, 16)
    big = DQN(copy.deepcopy(group.networks[0]), CONFIG)
    memory = Memory.of(big, blocks, Grid(blocks.place, blocks.shape))
    _, value, _, _ = memory.values(Observations.of(blocks.steps.observation, stacked=False))
    acted = torch.cat([collection.value for collection in collections])  # [3 T, E]
    seen = torch.cat([collection.observation for collection in collections]).flatten(2)
    assert len(value) >= ENVS * (3 * STEPS - 1)
    for step in range(len(value)):  # the value of some step with this observation
        same = (seen == blocks.steps.observation[step].flatten()).all(-1)
        assert (acted[same] - value[step]).abs().min() < 1e-5
    fresh = dataclasses.replace(memory, state=torch.zeros_like(memory.state))
    _, without, _, _ = fresh.values(Observations.of(blocks.steps.observation, stacked=False))
    assert (without - value).abs().max() > 1e-2


def test_burn_in_moves_the_state_and_is_not_learned_from(tmp_path: Path) -> None:
    group = make_group(RECALL, "lstm")
    lake, _ = lake_of(tmp_path / "lake", group, 2)
    blocks = blocks_of(lake, STEPS)
    big = DQN(copy.deepcopy(group.networks[0]), CONFIG.model_copy(update={"burn_in": 4}))
    (batch,) = sequence_batches(big, blocks, block_returns(big, blocks), 1)
    assert not batch.valid[:4].any()
    assert batch.valid[4:].any()
    assert int((batch.column["agent"] == 0).sum()) == int(batch.valid.sum())
    assert int((batch.column["agent"] == -1).sum()) == int((~batch.valid).sum())
    assert not big._unroll(batch)[:4].any()
    whole = big.network.unroll(batch.observation, batch.state, batch.reset)
    whole = whole.gather(2, batch.action.long().unsqueeze(-1)).squeeze(2)
    torch.testing.assert_close(big._unroll(batch)[4:], whole[4:], atol=1e-5, rtol=1e-5)
    gradient = big._gradient(batch, batch.reward, 1)
    learned = whole[batch.valid]
    expected = [0.5 * (learned - batch.reward[batch.valid]).square().mean(), learned.mean()]
    torch.testing.assert_close(gradient, torch.stack(expected).detach())
    changed = batch.reward.clone()
    changed[:4] += 100.0  # returns of the burn-in do not matter
    grad = big.online.grad.clone()
    torch.testing.assert_close(big._gradient(batch, changed, 1), gradient)
    torch.testing.assert_close(big.online.grad, grad)


def test_networks_with_memory_are_not_compiled() -> None:
    group = make_group(BREAKOUT, "gru")
    assert group._compiled is None
    assert fast.dqn_updates(DQN(network_for(group.spec, "gru"), CONFIG)) is None
    assert fast.dqn_updates(DQN(build_q_network(group.spec.observation, group.spec.action), CONFIG)) is not None
    with pytest.raises(LearnerError, match="batched=True is for networks without memory"):
        AgentGroup(
            [network_for(group.spec, "gru")], group.vectors, group.config, seeds=[1], total_collections=1, batched=True
        )
