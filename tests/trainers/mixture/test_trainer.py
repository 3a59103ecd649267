"""Mixtures end to end: a run matches its plan, clones are exact, and no step in the lake is lost or duplicated."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import millpond
from millpond.config import load
from millpond.errors import MillpondError
from millpond.loop import Address
from millpond.replay import Lake
from millpond.replay.tools import verify
from millpond.trainers.common.session import resume_run, start_run
from millpond.trainers.mixture import trainer as module
from millpond.trainers.mixture.trainer import MixtureTrainer
from tests.support.corridor import allowed_in
from tests.support.mixture_runs import (
    ANNEALED,
    BLOCKS,
    BLOCKS_LIVE,
    LIVE,
    MEMORY,
    MEMORY_LIVE,
    PRIORITIES,
    QUANTILES,
    SMALL,
    assert_same_run,
    finish,
    start,
    watch,
)
from tests.support.records import records

RESETS = {name: value for name, value in ANNEALED.items() if not name.startswith("dqn.n_step")}
ONE = {"mixture.agents": 1, "mixture.total_frames": 8 * 32}


@pytest.fixture(autouse=True)
def _small_and_in_one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "UPDATES_PER_PORTION", 2)  # so that the BigAgent's phase has three portions
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def resume(root: Path, name: str) -> MixtureTrainer:
    loaded, run = resume_run(name, [], str(root))
    return MixtureTrainer(loaded, run)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        LIVE,
        {**LIVE, "dqn.replay_ratio": 0.8, "mixture.big_updates": None},
        {"mixture.mode": "single", **ONE},
        {"mixture.mode": "single-resets", **ONE},
        {"mixture.mode": "no-resets"},
        BLOCKS,
        {**LIVE, **BLOCKS_LIVE},
        ANNEALED,
        PRIORITIES,
        {**LIVE, **QUANTILES},
    ],
    ids=lambda changes: changes.get("mixture.mode", "rounds"),
)
def test_run_matches_its_plan(tmp_path: Path, changes: dict[str, Any]) -> None:
    trainer = finish(start(tmp_path, "pond", changes))
    plan, last = trainer.plan, records(tmp_path / "pond")[-1]
    assert (plan.rounds, plan.collections, plan.last_round_collections) == (3, 8, 2)
    assert last["frames"] == last["env_steps"] == plan.frames == plan.total_frames
    pqn_updates = plan.agents * plan.collections * plan.pqn_updates_per_collection
    assert last["updates"] == pqn_updates + plan.big_updates_in_all
    assert last["agent0/updates"] == plan.collections * plan.pqn_updates_per_collection
    resets = [record for record in records(tmp_path / "pond") if "reset/after" in record]
    assert len(resets) == plan.resets
    if trainer.ponds is None or trainer.big is None:
        assert plan.lake_transitions == 0
        assert not (tmp_path / "pond" / "lake").exists()
        return
    assert last["lake/env_steps"] == plan.lake_transitions == plan.frames
    assert last["big/updates"] == plan.big_updates_in_all
    assert sum(v for k, v in last.items() if k.startswith("replayed/")) == plan.big_updates_in_all * 8
    assert [pond.nbytes for pond in trainer.ponds.ponds[: plan.agents]] == [plan.pond_bytes] * plan.agents
    assert sum(pond.nbytes for pond in trainer.ponds.ponds[plan.agents :]) == plan.own_pond_bytes
    assert trainer.big.pond.pond is not None
    held, planned = trainer.big.pond.pond.nbytes, plan.big_pond_bytes
    assert planned is not None
    assert held == planned if plan.mode == "live" else held <= planned
    with Lake(tmp_path / "pond" / "lake") as lake:
        assert len(lake.streams) == plan.agents + (plan.own_envs > 0)
    assert verify(tmp_path / "pond" / "lake").good


@pytest.mark.parametrize("ladder", [None, [0.4, 0.01]])
def test_clones_equal_the_big_agent_bit_for_bit_and_then_diverge(tmp_path: Path, ladder: list[float] | None) -> None:
    trainer = start(tmp_path, "pond", {"mixture.epsilon_ladder": ladder, "mixture.epsilon_reset_to": 0.3})
    reset, updates = trainer._reset, []

    def checked() -> None:
        before = trainer.group.parameters.data.clone()
        assert not torch.equal(before[0], before[1])  # they have diverged since the last reset
        reset()
        assert trainer.big is not None
        big = trainer.big.dqn.network.state_dict()
        for network in trainer.group.networks:
            for name, tensor in network.state_dict().items():
                assert torch.equal(tensor, big[name])
        assert [e.value for e in trainer.group.epsilons] == (ladder or [0.3, 0.3])
        assert [e.since_reset for e in trainer.group.epsilons] == [0, 0]
        assert trainer.diversity(trainer.group.networks) == 0.0
        updates.append(trainer.group.updates[0])

    trainer._reset = checked  # type: ignore[method-assign]
    finish(trainer)
    assert len(updates) == 3
    recorded = records(tmp_path / "pond")
    assert recorded[0]["agent0/epsilon"] < 1.0
    assert recorded[0]["diversity"] > 0.0
    # The BigAgent's exploration restarts in each mixture round.
    assert [r["big/epsilon"] for r in recorded if "big/pond_transitions" in r] == [recorded[3]["big/epsilon"]] * 3


def test_agents_continue_without_resets(tmp_path: Path) -> None:
    trainer = finish(start(tmp_path, "pond", {"mixture.mode": "no-resets"}))
    assert trainer.big is not None
    assert all(e.since_reset == 8 * 32 for e in trainer.group.epsilons)
    assert not any("recovery" in record for record in records(tmp_path / "pond"))


@pytest.mark.parametrize("changes", [{}, LIVE, {"mixture.mode": "single", **ONE}])
def test_score_belongs_to_the_weights_of_its_checkpoint(tmp_path: Path, changes: dict[str, Any]) -> None:
    """A checkpoint in the middle of learning must not have the score of earlier weights."""
    trainer = start(tmp_path, "pond", changes)
    last: list[torch.Tensor] = []
    scores: list[float | None] = []  # after updates without an evaluation

    def see(at: Address) -> None:
        now = [tensor.clone() for tensor in trainer.players.policy.state_dict().values()]
        changed = not last or not all(map(torch.equal, last, now))
        if changed and "eval/episode_return" not in trainer.extra:
            scores.append(trainer.score)
        last[:] = now

    watch(trainer, see)
    finish(trainer)
    assert scores
    assert set(scores) == {None}
    assert trainer.score is not None


def test_recovery_after_a_reset_is_measured(tmp_path: Path) -> None:
    finish(start(tmp_path, "pond", {}))
    recorded = records(tmp_path / "pond")
    ended = [record for record in recorded if "recovered" in record]
    resets = [record for record in recorded if "reset/before" in record]
    assert len(resets) == 3
    assert 2 <= len(ended) <= 3  # no round follows the last reset, unless it lost nothing
    for record in ended:
        assert record["recovered"] in (0.0, 1.0)
        assert 0 <= record["recovery"] <= 3 * 4


@pytest.mark.parametrize(
    ("changes", "stops"),
    [
        ({}, [1, 4, 8]),
        (LIVE, [2, 5]),
        (BLOCKS, [4, 6, 12]),
        ({**LIVE, **BLOCKS_LIVE}, [2, 5]),
        (ANNEALED, [4, 5, 9]),
        (MEMORY, [2, 4, 9]),
        pytest.param({}, [3, 5, 9], marks=pytest.mark.slow),
        pytest.param(LIVE, [1, 3], marks=pytest.mark.slow),
        pytest.param({"mixture.mode": "single", **ONE}, [1, 4], marks=pytest.mark.slow),
        pytest.param({"mixture.mode": "no-resets"}, [2, 4, 6], marks=pytest.mark.slow),
    ],
)
def test_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, changes: dict[str, Any], stops: list[int]) -> None:
    finish(start(tmp_path, "whole", changes))
    trainer = start(tmp_path, "parts", changes)
    for stop in [*stops, None]:

        def at_portion(at: Address, trainer: MixtureTrainer = trainer, stop: int | None = stop) -> None:
            if trainer.loop.count + 1 == stop:
                trainer.loop.stop("the test says so")

        watch(trainer, at_portion)
        finish(trainer)
        if trainer.loop.done:
            break
        trainer = resume(tmp_path, "parts")
    assert trainer.loop.done
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_run_of_complete_rounds_can_be_extended(tmp_path: Path) -> None:
    finish(start(tmp_path, "pond", {"mixture.total_frames": 3 * 64}))
    loaded, run = resume_run("pond", ["mixture.total_frames=384"], str(tmp_path))
    trainer = finish(MixtureTrainer(loaded, run))
    assert trainer.counters.frames == trainer.plan.frames == 6 * 64
    finish(start(tmp_path, "short", {"mixture.total_frames": 2 * 64}))
    loaded, run = resume_run("short", ["mixture.total_frames=384"], str(tmp_path))
    with pytest.raises(
        MillpondError, match=r"has done 2 collections .* would have done 3 by now: its last round was shorter"
    ):
        MixtureTrainer(loaded, run)


def killed_at(make: Callable[[], MixtureTrainer], round_number: int, phase: int, portion: int) -> None:
    """Run in a separate process that is killed in this portion, after its work and before it is counted."""
    child = os.fork()
    if child == 0:
        try:
            trainer = make()

            def die(at: Address) -> None:
                if at.indices == (round_number, phase, portion):
                    os.kill(os.getpid(), signal.SIGKILL)

            watch(trainer, die)
            trainer.train()
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


@pytest.mark.filterwarnings("ignore:lake. stream:UserWarning")
@pytest.mark.parametrize(
    "changes",
    [{}, LIVE, BLOCKS, ANNEALED, {**BLOCKS, **RESETS}, MEMORY, MEMORY_LIVE, PRIORITIES, QUANTILES],
    ids=["rounds", "live", "blocks", "annealed", "blocks-resets", "memory", "memory-live", "priorities", "quantiles"],
)
def test_run_killed_in_each_phase_resumes_to_the_same_result(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Before the first checkpoint, in the agents' phase, in the BigAgent's, and in a short last round."""
    finish(start(tmp_path, "whole", changes))
    live = changes.get("mixture.mode") == "live"
    deaths = [(0, 0, 1), (1, 0, 2), (2, 0, 1)] if live else [(0, 0, 2), (0, 1, 1), (1, 0, 1), (2, 1, 2)]
    killed_at(lambda: start(tmp_path, "parts", changes), *deaths[0])
    for death in deaths[1:]:
        killed_at(lambda: resume(tmp_path, "parts"), *death)
    finish(resume(tmp_path, "parts"))
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_plan_of_agents_with_memory_counts_their_states(tmp_path: Path) -> None:
    trainer = finish(start(tmp_path, "pond", MEMORY))
    plan, last = trainer.plan, records(tmp_path / "pond")[-1]
    assert trainer.ponds is not None
    assert [pond.nbytes for pond in trainer.ponds.ponds] == [plan.pond_bytes] * plan.agents
    without = start(tmp_path, "without", {**MEMORY, "policy.core": "none", "dqn.burn_in": 0})
    assert plan.pond_bytes is not None
    assert without.plan.pond_bytes is not None
    assert plan.pond_bytes - without.plan.pond_bytes == plan.pond_rows * 16 * 4
    without.close()
    assert last["big/updates"] == plan.big_updates_in_all
    # Short blocks have fewer steps, and the burn-in is not learned from.
    replayed = sum(value for name, value in last.items() if name.startswith("replayed/"))
    assert 0 < replayed <= plan.big_updates_in_all * 8
    assert verify(tmp_path / "pond" / "lake").good


def test_big_agent_with_memory_is_loaded_and_remembers(tmp_path: Path) -> None:
    trainer = finish(start(tmp_path, "pond", MEMORY))
    loaded = millpond.load(tmp_path / "pond")
    observation = torch.randint(0, 2, (3, 5), dtype=torch.uint8)
    action, state = loaded.act(observation)
    assert trainer.big is not None
    network = trainer.big.dqn.mean
    q, after = network.step(observation, network.initial_state(3))
    assert torch.equal(action, q.argmax(-1).int())
    torch.testing.assert_close(state, after)
    _, later = loaded.act(observation, state)
    torch.testing.assert_close(later, network.step(observation, after)[1])


def test_prioritised_batches_have_importance_weights(tmp_path: Path) -> None:
    trainer = finish(start(tmp_path, "pond", {**PRIORITIES, "mixture.total_frames": 3 * 64}))
    assert trainer.big is not None
    batch, _ = trainer.big._newest[-1]
    assert batch.weight.shape == (8,)
    assert batch.weight.max() <= 1.0
    assert batch.weight.unique().numel() > 1
    plain = finish(start(tmp_path, "plain", {**BLOCKS, "mixture.total_frames": 3 * 64}))
    assert plain.big is not None
    assert plain.big._newest[-1][0].weight is None


def test_clones_of_a_big_agent_with_quantiles_have_their_mean(tmp_path: Path) -> None:
    trainer = finish(start(tmp_path, "pond", {**QUANTILES, "mixture.total_frames": 6 * 64}))
    assert trainer.big is not None
    observation = torch.randint(0, 2, (5, 4, 10, 10), dtype=torch.uint8)
    expected = trainer.big.dqn.network.of_quantiles(observation)
    assert expected.shape == (5, 3, 5)
    for network in trainer.group.networks:
        torch.testing.assert_close(network(observation), expected.mean(-1))
    loaded = millpond.load(tmp_path / "pond")
    assert torch.equal(loaded.act(observation)[0], expected.mean(-1).argmax(-1).int())
    assert not any("big_raw/eval/episode_return" in record for record in records(tmp_path / "pond"))


def test_grid_environment_is_supported(tmp_path: Path) -> None:
    """Tokens or cells instead of pixels, truncation at every end, and final observations in the lake."""
    changes = {"env.id": "grid", "env.max_steps": 10, "mixture.total_frames": 3 * 64}
    finish(start(tmp_path, "whole", changes))
    killed_at(lambda: start(tmp_path, "parts", changes), 0, 1, 1)
    finish(resume(tmp_path, "parts"))
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


GRAVITAR = {
    "env.id": "atari:gravitar",
    "env.frame_stack": 4,
    "env.max_steps": 40,
    "mixture.total_frames": 4 * 6 * 64,
    "eval.episodes": 1,
}


@pytest.mark.filterwarnings("ignore:atari.gravitar cannot save:UserWarning")
def test_counts_of_an_unsavable_environment_are_exact_after_a_kill(tmp_path: Path) -> None:
    """The emulator's state cannot be saved: steps after the checkpoint stay in the lake, and are counted."""
    killed_at(lambda: start(tmp_path, "parts", GRAVITAR), 1, 0, 2)
    with pytest.warns(UserWarning, match="env steps collected after the checkpoint stay in it"):
        trainer = resume(tmp_path, "parts")
    finish(trainer)
    last = records(tmp_path / "parts")[-1]
    assert last["frames"] == 4 * last["env_steps"] == trainer.plan.frames == 4 * 6 * 64
    assert last["lake/tail_env_steps"] > 0
    assert last["lake/env_steps"] == last["env_steps"] + last["lake/tail_env_steps"]
    report = verify(tmp_path / "parts" / "lake")
    assert report.good
    with Lake(tmp_path / "parts" / "lake") as lake:
        steps = sum(int(np.count_nonzero(lake.view(name).flags & 8 == 0)) for name in lake.streams)
        assert steps == last["lake/env_steps"]
        batch = lake.sample(64, np.random.default_rng(0), stack=4)
        assert batch.observation.shape == (64, 4, 1, 84, 84)


def test_big_agent_sees_the_stacks_that_agents_saw(tmp_path: Path) -> None:
    """Stacks built from single frames equal the emulator's."""
    trainer = start(tmp_path, "pond", {**GRAVITAR, "mixture.collections_per_round": 6})
    observed = set()
    collect = trainer.group.collect

    def collect_and_remember() -> Any:
        collections = collect()
        for collection in collections:
            observed.update(observation.tobytes() for observation in collection.observation.flatten(0, 1).numpy())
        return collections

    trainer.group.collect = collect_and_remember  # type: ignore[method-assign]
    finish(trainer)
    assert trainer.big is not None
    (batch,) = trainer.big.pond.sample(1, np.random.default_rng(1), n_step=3, gamma=0.99)
    assert all(observation.tobytes() in observed for observation in batch.observation.numpy())


def test_blocks_have_the_stacks_that_agents_saw(tmp_path: Path) -> None:
    """Frames of Atari are stored once; stacks, and the stack after a block's last step, are built when blocks are read."""
    trainer = start(tmp_path, "pond", {**GRAVITAR, **BLOCKS, "mixture.collections_per_round": 6})
    observed = set()
    collect = trainer.group.collect

    def collect_and_remember() -> Any:
        collections = collect()
        for collection in collections:
            observed.update(observation.tobytes() for observation in collection.observation.flatten(0, 1).numpy())
        return collections

    trainer.group.collect = collect_and_remember  # type: ignore[method-assign]
    finish(trainer)
    assert trainer.big is not None
    blocks = trainer.big.pond.next_blocks(20)
    seen = blocks.steps.observation.reshape(len(blocks.place), 4, 84, 84)
    assert all(observation.tobytes() in observed for observation in seen.numpy())
    following = blocks.steps.next_observation[blocks.last & ~blocks.steps.truncated & ~blocks.steps.terminated]
    assert len(following)
    assert all(observation.tobytes() in observed for observation in following.reshape(-1, 4, 84, 84).numpy())


def test_big_agent_is_loaded_for_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = finish(start(tmp_path, "pond", {}))
    loaded = millpond.load(tmp_path / "pond")
    observation = torch.randint(0, 2, (5, 4, 10, 10), dtype=torch.uint8)
    action, _ = loaded.act(observation)
    assert trainer.big is not None
    assert torch.equal(action, trainer.big.dqn.network(observation).argmax(-1).int())
    from millpond.trainers.common.play import evaluate_run

    evaluation, policy = evaluate_run(str(tmp_path / "pond"), episodes=2, render=tmp_path / "big.gif")
    assert evaluation.mean == trainer.final_evaluation.mean  # type: ignore[union-attr]
    assert policy.updates == trainer.counters.updates
    assert policy.description == f"newest checkpoint, the BigAgent after {trainer.big.dqn.updates} updates of its own"
    assert (tmp_path / "big.gif").stat().st_size > 0
    other = load("mixture", {**SMALL, "run_dir": str(tmp_path), "mixture.mode": "single", **ONE})
    begun = MixtureTrainer(other, start_run(other, "next"), weights_from=start_from(tmp_path / "pond"))
    assert torch.equal(begun.group.networks[0](observation), trainer.big.dqn.network(observation))
    begun.close()


def start_from(folder: Path) -> Any:
    from millpond.store import Run

    return Run.open(folder.parent, folder.name)


DOORS = {"env.id": "tests.support.corridor:make_doors", "env.max_steps": None}


@pytest.mark.filterwarnings("ignore:tests.support.corridor.make_doors cannot save:UserWarning")
@pytest.mark.parametrize("mode", ["rounds", "live", "blocks"])
def test_action_masks_hold_from_collection_to_the_big_agent(tmp_path: Path, mode: str) -> None:
    """The env refuses actions that its mask forbids; its image is small, so that updates are compiled."""
    own = {"rounds": {}, "live": LIVE, "blocks": BLOCKS}[mode]
    changes = {**DOORS, "env.options": {"limit": 9, "image": True}, **own}
    trainer = start(tmp_path, "pond", changes)
    watch(trainer, lambda at: trainer.loop.stop("the test says so") if trainer.loop.count == 3 else None)
    finish(trainer)
    assert not trainer.loop.done
    trainer = finish(resume(tmp_path, "pond"))
    assert trainer.big is not None
    (batch,) = trainer.big.pond.sample(1, np.random.default_rng(1), n_step=3, gamma=0.99)
    cells = batch.next_observation.reshape(len(batch.reward), 4, 10, 10)[:, 0, 0].float().argmax(-1)
    assert batch.next_action_mask is not None
    for cell, mask, discount in zip(cells.tolist(), batch.next_action_mask.tolist(), batch.discount, strict=True):
        assert mask == allowed_in(cell) or discount == 0
    with Lake(tmp_path / "pond" / "lake") as lake:
        assert [field.name for field in lake.schema.observation] == ["observation", "action_mask"]
        assert verify(lake.folder).good
    assert trainer.final_evaluation is not None
    assert len(trainer.final_evaluation.lengths) == 2
