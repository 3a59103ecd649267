"""PQN: collections, learning, several agents trained together, and state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from millpond import fast
from millpond.config.recipe import EnvConfig, VectorConfig
from millpond.learners import AgentGroup, LearnerError
from millpond.replay import Schema
from millpond.replay.pond import Pond, separate_masks
from millpond.store.checkpoint import tree_from_bytes, tree_to_bytes
from millpond.trainers.common.envs import build_vector
from millpond.trainers.common.play import evaluate
from tests.support.corridor import CORRIDOR, DOORS, SMALL, allowed_in, make, make_group, network_for

CARTPOLE = EnvConfig(id="gymnasium:CartPole-v1", reward_scale=0.1)
RECALL = EnvConfig(id="recall")
CPU = torch.device("cpu")


def train(group: AgentGroup, collections: int) -> None:
    for _ in range(collections):
        group.collect()
        group.learn()


def test_learns_the_corridor() -> None:
    group = make_group(CORRIDOR, total_collections=40)
    train(group, 40)
    played = evaluate(group.networks[0], make(CORRIDOR, 4), episodes=4, seed=9, device=CPU, deterministic=True)
    assert played.mean == 1.0
    assert played.lengths == (5, 5, 5, 5)  # straight to the right


def test_truncated_step_bootstraps_from_its_final_observation() -> None:
    """V = 1 / (1 - gamma) = 10 if truncated steps bootstrap; it would be at most 5.7 if they did not."""
    config = SMALL.model_copy(update={"learning_rate": 0.02, "lr_schedule": "linear"})
    group = make_group(EnvConfig(id="truncation"), config, total_collections=60)
    train(group, 60)
    assert group.networks[0](torch.ones(1, 1)).max().item() == pytest.approx(10.0, abs=0.5)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_agents_trained_together_equal_agents_trained_alone(batched: bool, groups: int) -> None:
    seeds = [3, 5, 8]
    together = make_group(CARTPOLE, seeds=seeds, batched=batched, groups=groups)
    train(together, 3)
    for agent, seed in enumerate(seeds):
        alone = make_group(CARTPOLE, seeds=[seed])
        train(alone, 3)
        torch.testing.assert_close(together.parameters.data[agent], alone.parameters.data[0], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(together.storage.observation[agent], alone.storage.observation[0])
    assert not torch.equal(together.parameters.data[0], together.parameters.data[1])


@pytest.mark.parametrize("env", [EnvConfig(id="minatar:breakout"), EnvConfig(id="grid")])
def test_images_and_grids_are_evaluated_one_agent_at_a_time(env: EnvConfig) -> None:
    group = make_group(env, seeds=[1, 2])
    before = group.parameters.data.clone()
    train(group, 1)
    assert not group.q.batched
    assert (group.parameters.data != before).any(1).all()
    with pytest.raises(LearnerError, match="batched=True is for plain vectors"):
        make_group(env, seeds=[1, 2], batched=True)


def test_every_transition_is_trained_once_per_epoch() -> None:
    group = make_group(CORRIDOR, seeds=[1, 2])
    minibatches = group._shuffled()
    assert [tuple(picked.shape) for picked in minibatches] == [(2, 32)] * 4
    for agent in range(2):
        assert sorted(torch.cat([picked[agent] for picked in minibatches]).tolist()) == list(range(128))
    assert not torch.equal(minibatches[0][0], minibatches[0][1])


def test_lost_steps_are_not_trained_on() -> None:
    groups = [make_group(CORRIDOR), make_group(CORRIDOR)]
    for group in groups:
        group.collect()
        group.storage.lost[0, 5:9, 2:4] = True
    groups[1].storage.reward[0, 5:9, 2:4] = 1_000.0
    groups[1].storage.action[0, 5:9, 2:4] = 0
    groups[1].storage.terminated[0, 5:9, 2:4] = True
    for group in groups:
        group.learn()
    assert torch.equal(groups[0].parameters.data, groups[1].parameters.data)


def test_step_of_a_crashed_env_is_marked_as_lost() -> None:
    env = EnvConfig(id="tests.support.raising_env:make_env")
    restarting = VectorConfig(backend="inline", on_crash="restart")
    vector = build_vector(env, restarting, num_envs=8, groups=1, num_workers=1, stacked=True)
    vector.reset(0)
    group = AgentGroup([network_for(vector, 1)], [vector], SMALL, seeds=[1], total_collections=1)
    collection = group.collect()[0]
    assert int(collection.lost.sum()) == int(vector.restarts.sum()) > 0
    pond = Pond.init(Schema.from_spec(group.spec), 512, lanes=8)
    steps = collection.as_steps(pond.schema)
    assert np.array_equal(steps.truncated, collection.lost.numpy())
    pond.add(steps)
    assert pond.transitions() == 16 * 8 - int((~collection.lost[-1]).sum())


def test_collection_is_added_to_a_pond_unchanged() -> None:
    group = make_group(EnvConfig(id="truncation"))
    pond = Pond.init(Schema.from_spec(group.spec), 512, lanes=8)
    collection = group.collect()[0]
    steps = collection.as_steps(pond.schema, agent=3, round_number=1, policy_version=2)
    pond.add(steps)
    unfinished = int((~steps.truncated[-1]).sum())  # the newest step has no next observation yet, unless it ended
    assert pond.transitions() == 16 * 8 - unfinished
    assert int(steps.truncated.sum()) == len(steps.final_observation["observation"]) == 16
    assert np.array_equal(steps.has_final, steps.truncated)
    batch = pond.sample(64, np.random.default_rng(0))
    assert set(batch.column["agent"].tolist()) == {3}
    assert batch.column["epsilon"].unique().tolist() == [1.0]


@pytest.mark.parametrize("image", [False, True])
def test_masks_hold_for_actions_values_and_what_is_stored(image: bool) -> None:
    """The network prefers a forbidden action everywhere; the env refuses actions that its mask forbids."""
    env = DOORS.model_copy(update={"options": {"limit": 7, "image": image}})
    config = SMALL.model_copy(update={"epsilon_start": 0.5})
    compiled = fast.pqn_updates if image else None
    vector = make(env, config.num_envs)
    group = AgentGroup([network_for(vector, 1)], [vector], config, seeds=[1], total_collections=9, compiled=compiled)
    with torch.no_grad():
        group.networks[0].output.bias += torch.tensor([0.0, 0.1, 50.0, 0.2])
    (collection,) = group.collect()
    cells = (
        collection.observation.flatten(3)[:, :, 0, :10].float().argmax(-1)
        if image
        else collection.observation.float().argmax(-1)
    )
    expected_mask = torch.tensor([[allowed_in(cell) for cell in row] for row in cells.tolist()])
    assert torch.equal(collection.action_mask, expected_mask)
    assert collection.action_mask.gather(-1, collection.action.long().unsqueeze(-1)).all()
    assert set(collection.action.flatten().tolist()) == {0, 1, 3}
    with torch.no_grad():
        q = group.networks[0](collection.observation.flatten(0, 1)).view(*cells.shape, 4)
        finals = group.networks[0](torch.from_numpy(collection.final_observation))
    for t, env_number in np.ndindex(*cells.shape):
        allowed = [a for a in range(4) if allowed_in(int(cells[t, env_number]))[a]]
        assert float(collection.value[t, env_number]) == pytest.approx(float(q[t, env_number, allowed].max()), abs=1e-4)
    assert len(finals) == int(collection.truncated.sum()) > 0
    best = [
        max(float(of_final[a]) for a in range(4) if mask[a])
        for of_final, mask in zip(finals, collection.final_action_mask, strict=True)
    ]
    assert collection.final_value[collection.truncated].tolist() == pytest.approx(best, abs=1e-4)
    pond = Pond.init(Schema.from_spec(group.spec), 512, lanes=8)
    pond.add(collection.as_steps(pond.schema))
    batch = separate_masks(pond.sample(64, np.random.default_rng(0)), stacked=False)
    assert batch.next_action_mask is not None
    shown = batch.next_observation.flatten(2)[:, 0, :10] if image else batch.next_observation
    future = (batch.discount > 0).tolist()
    for cell, mask, counts in zip(
        shown.float().argmax(-1).tolist(), batch.next_action_mask.tolist(), future, strict=True
    ):
        assert mask == allowed_in(cell) or not counts
    group.learn()


def test_learns_with_masks() -> None:
    group = make_group(DOORS.model_copy(update={"options": {"limit": 30}}), total_collections=40)
    train(group, 40)
    vector = make(DOORS, 4)
    assert evaluate(group.networks[0], vector, episodes=4, seed=9, device=CPU, deterministic=True).lengths == (5,) * 4


def test_collected_steps_follow_the_rules_of_the_environment() -> None:
    """By the rule of the corridor, each next observation follows from observation and action."""
    group = make_group(CORRIDOR)
    group.collect()
    collection = group.collect()[0]
    cell, move = collection.observation.argmax(-1), collection.action * 2 - 1
    ended = collection.terminated | collection.truncated
    going_on = (cell[:-1] + move[:-1])[~ended[:-1]]
    assert torch.equal(going_on, cell[1:][~ended[:-1]])
    assert torch.equal(collection.terminated, ((cell + move) == 0) | ((cell + move) == 8))
    value = group.networks[0](collection.observation.flatten(0, 1)).amax(-1).view(16, 8)
    torch.testing.assert_close(collection.value, value)


def test_final_observation_and_value_are_those_before_the_reset() -> None:
    group = make_group(EnvConfig(id=CORRIDOR.id, options={"limit": 2}), groups=2)
    collection = group.collect()[0]
    cell, move = collection.observation.argmax(-1), collection.action * 2 - 1
    has_final = torch.from_numpy(collection.has_final)
    assert torch.equal(has_final, collection.truncated)
    assert int(has_final.sum()) == 64  # every second step
    finals = torch.from_numpy(collection.final_observation)
    assert torch.equal(finals.argmax(-1), (cell + move)[has_final])
    torch.testing.assert_close(collection.final_value[has_final], group.networks[0](finals).amax(-1))


def test_exploration_and_learning_rate_follow_each_agents_counters() -> None:
    config = SMALL.model_copy(update={"epsilon_share": 0.5, "lr_schedule": "linear"})
    group = make_group(CORRIDOR, config, total_collections=4)
    epsilons, rates = [], []
    for _ in range(4):
        rates.append(group.learning_rate(0))
        epsilons.append(group.collect()[0].epsilon)
        group.learn()
    assert epsilons == pytest.approx([1.0, 0.55, 0.1, 0.1])
    assert rates == pytest.approx([2e-3, 1.5e-3, 1e-3, 0.5e-3])
    assert group.updates == [32]


def test_clones_equal_the_network_bit_for_bit_and_then_diverge() -> None:
    group = make_group(CARTPOLE, seeds=[1, 2, 3])
    train(group, 2)
    big = network_for(group.vectors[0], 77)
    group.clone_from(big, epsilon_reset_to=[0.4, 0.2, 0.1])
    for network in group.networks:
        for name, parameter in network.state_dict().items():
            assert torch.equal(parameter, big.state_dict()[name])
    assert [epsilon.value for epsilon in group.epsilons] == [0.4, 0.2, 0.1]
    assert [epsilon.since_reset for epsilon in group.epsilons] == [0, 0, 0]
    assert not group.optimizer.first.any()
    assert group.optimizer.updates == [0, 0, 0]
    train(group, 1)
    assert not torch.equal(group.parameters.data[0], group.parameters.data[1])
    assert not torch.equal(group.parameters.data[1], group.parameters.data[2])
    with pytest.raises(LearnerError, match="2 epsilons for 3 agents"):
        group.clone_from(big, epsilon_reset_to=[0.1, 0.2])


@pytest.mark.parametrize("between", ["learn and collect", "collect and learn"])
def test_training_continues_from_its_state_bit_for_bit(between: str) -> None:
    def states(group: AgentGroup) -> bytes:
        return tree_to_bytes({"group": group.state_dict(), "envs": [v.save_state() for v in group.vectors]})

    uncut = make_group(RECALL, seeds=[1, 2])
    train(uncut, 2)
    if between == "collect and learn":
        uncut.collect()
    saved: Any = tree_from_bytes(states(uncut), "state")
    again = make_group(RECALL, seeds=[1, 2])
    again.load_state_dict(saved["group"])
    for vector, envs in zip(again.vectors, saved["envs"], strict=True):
        vector.load_state(envs)
    for group in (uncut, again):
        if between == "collect and learn":
            group.learn()
        train(group, 2)
    assert torch.equal(uncut.parameters.data, again.parameters.data)
    assert states(uncut) == states(again)


def test_state_of_one_agent_loads_into_another_group() -> None:
    both = make_group(CARTPOLE, seeds=[1, 2])
    train(both, 2)
    alone = make_group(CARTPOLE, seeds=[7])
    alone.load_agent_state_dict(0, both.agent_state_dict(1))
    assert torch.equal(alone.parameters.data[0], both.parameters.data[1])
    assert alone.updates == [16]
    assert alone.epsilons[0].value == both.epsilons[1].value


def test_unsupported_setups_are_refused() -> None:
    vector = make(CORRIDOR, 8)
    with pytest.raises(LearnerError, match="1 networks, 1 vectors and 2 seeds"):
        AgentGroup([network_for(vector, 1)], [vector], SMALL, seeds=[1, 2], total_collections=1)
    with pytest.raises(LearnerError, match=r"pqn.num_envs=8, but the vector of an agent has 4 envs"):
        AgentGroup([network_for(vector, 1)], [make(CORRIDOR, 4)], SMALL, seeds=[1], total_collections=1)
    both = [make(CORRIDOR, 8), make(CORRIDOR, 8, groups=2)]
    with pytest.raises(LearnerError, match="the same number of groups"):
        AgentGroup([network_for(v, 1) for v in both], both, SMALL, seeds=[1, 2], total_collections=1)
    with pytest.raises(LearnerError, match="2 agents per env"):
        make_group(EnvConfig(id="grid", num_agents=2))
    with pytest.raises(LearnerError, match="continuous"):
        make_group(EnvConfig(id="gymnasium:Pendulum-v1"))
    with pytest.raises(LearnerError, match=r"call collect\(\) once before"):
        make_group(CORRIDOR).learn()
    with pytest.raises(LearnerError, match="the saved group has 2 agents"):
        make_group(CORRIDOR).load_state_dict(make_group(CORRIDOR, seeds=[1, 2]).state_dict())
