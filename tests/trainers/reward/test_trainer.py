"""Reward learning end to end: a run matches its plan, learns, and resumes bit for bit after kill -9."""

from __future__ import annotations

import contextlib
import copy
import json
import multiprocessing
import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from millpond.cli import main
from millpond.config import load
from millpond.data import DataError, audit, open_episodes
from millpond.data.audit import split_episodes
from millpond.data.npz import NpzSource
from millpond.planner import RewardPlan, plan_loaded
from millpond.store import Checkpoints, RunError
from millpond.store.checkpoint import Checkpoint, read_checkpoint
from millpond.trainers.common.policy import load_policy
from millpond.trainers.common.session import require_trainer, resume_run, start_run
from millpond.trainers.reward.trainer import RewardTrainer

SMALL = {
    "reward.epochs": 3,
    "reward.cycles": 2,
    "reward.iterations": 3,
    "reward.train_batches": 4,
    "reward.save_freq": 2,
    "reward.log_batches": 5,
    "reward.train_target": 7,
    "reward.hidden_size": 16,
    "reward.steps_per_episode": 8,
    "log.console_seconds": 1e6,
}
BATCHES = 3 * 2 * 3 * 4


def train(root: Path, name: str, recipe: str = "reward", **changes: Any) -> RewardTrainer:
    loaded = load(recipe, {**SMALL, "run_dir": str(root), **changes})
    trainer = RewardTrainer(loaded, start_run(loaded, name))
    trainer.train()
    return trainer


def records(folder: Path) -> list[dict[str, float]]:
    """The metrics without times."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds" and "time/" not in k} for line in lines]


def last_checkpoint(folder: Path) -> Checkpoint:
    checkpoints = Checkpoints(folder / "checkpoints")
    return read_checkpoint(checkpoints.path(checkpoints.updates()[-1]))


def test_a_run_matches_its_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copies = []
    loaded = load("reward", {**SMALL, "run_dir": str(tmp_path), "log.verbose": True})
    trainer = RewardTrainer(loaded, start_run(loaded, "counted"))
    copy_from = trainer.target.copy_from
    trainer.target.copy_from = lambda online: (copies.append(trainer.counters.updates), copy_from(online))  # type: ignore
    print("\n".join(trainer.opening()))
    trainer.train()
    plan = plan_loaded(loaded).plan
    assert isinstance(plan, RewardPlan)
    printed = capsys.readouterr().out
    assert f"epoch 3 x cycle 2 x iteration 3 x batch 4 = {plan.batches} batches" in printed
    assert plan.batches == trainer.counters.updates == BATCHES
    assert printed.count("average R_loss") == plan.iteration_lines_per_cycle * plan.tensorboard_points + plan.epochs
    assert printed.count(": R_loss ") == BATCHES // 5
    assert copies == list(range(7, BATCHES + 1, 7))
    assert len(copies) == plan.target_updates
    written = records(trainer.run.folder)
    assert len(written) == plan.tensorboard_points
    assert [record["updates"] for record in written] == [12.0 * n for n in range(1, 7)]
    assert Checkpoints(trainer.run.checkpoints_path).updates() == [48, 72]  # every second epoch, and the end
    assert plan.checkpoints == 2
    for column in ("Epoch", "Cycle", "Episodes", "Timesteps", "TimeCost(sec)/train", "TimeCost(sec)/test"):
        assert f"| {column} " in printed
    assert plan.training_episodes == len(trainer.recorded.training) == 45


def test_tables_of_cycles_epochs_and_short_lines_are_printed_unless_verbose(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path, "short", **{"log.console_seconds": 1e-9})
    lines = capsys.readouterr().out.splitlines()
    assert not any(line.startswith("Iteration") for line in lines)
    assert sum(line.startswith("| Cycle ") for line in lines) == 3 * 2
    assert sum(line.startswith("Epoch") for line in lines) == 3
    assert sum("  R_loss " in line and line.endswith(" left") for line in lines) == 3 * 2 * (3 + 1)  # and each record


def test_each_cycle_is_one_tensorboard_point_at_its_updates(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trainer = train(tmp_path, "points")
    events = EventAccumulator(str(trainer.run.tensorboard_path))
    events.Reload()
    assert [event.step for event in events.Scalars("R_loss")] == [12, 24, 36, 48, 60, 72]


def test_averages_are_exact_at_every_level(tmp_path: Path) -> None:
    losses: list[float] = []
    loaded = load("reward", {**SMALL, "run_dir": str(tmp_path)})
    trainer = RewardTrainer(loaded, start_run(loaded, "averaged"))
    update = trainer._update

    def recording_update() -> torch.Tensor:
        loss = update()
        losses.append(float(loss))
        return loss

    trainer._update = recording_update  # type: ignore[method-assign]
    trainer.train()
    cycles = np.array(losses).reshape(6, 12)
    for record, cycle in zip(records(trainer.run.folder), cycles, strict=True):
        assert record["R_loss"] == pytest.approx(cycle.mean(), abs=1e-15)
    assert trainer.loop.moments["R_loss"].mean == pytest.approx(np.mean(losses), abs=1e-15)


def test_the_debug_preset_trains_one_batch(tmp_path: Path) -> None:
    loaded = load("reward", {"run_dir": str(tmp_path)}, "debug")
    trainer = RewardTrainer(loaded, start_run(loaded, "debug"))
    trainer.train()
    assert trainer.counters.updates == 1
    assert Checkpoints(trainer.run.checkpoints_path).updates() == [1]


def test_the_normaliser_has_the_exact_statistics_of_the_training_episodes(tmp_path: Path) -> None:
    trainer = train(tmp_path, "normal")
    recorded, normalizer = trainer.recorded, trainer.network.normalizer
    assert normalizer is not None
    steps = np.concatenate([recorded.data.read(e).observation["obs"] for e in recorded.training.tolist()])
    assert np.allclose(normalizer.mean.numpy(), steps.mean(0, dtype=np.float64), atol=1e-12)
    assert np.allclose(normalizer.variance.sqrt().numpy(), steps.std(0, dtype=np.float64), atol=1e-9)
    assert len(steps) == normalizer.count


def test_a_run_without_an_agent_cannot_be_played(tmp_path: Path) -> None:
    folder = train(tmp_path, "offline", **{"reward.epochs": 1}).run.folder
    with pytest.raises(RunError, match=r"has no agent to play .* millpond reward score offline EPISODES"):
        load_policy(str(folder))


@pytest.mark.parametrize("objective", ["lrd", "rrd"])
def test_the_recorded_loss_is_in_reward_units(tmp_path: Path, objective: str) -> None:
    from millpond.rewards import objectives

    loaded = load("reward", {**SMALL, "run_dir": str(tmp_path), "reward.objective": objective})
    trainer = RewardTrainer(loaded, start_run(loaded, "units"))
    before = copy.deepcopy(trainer.network)
    batches, data = trainer.batches, trainer.recorded.data  # type: ignore[union-attr]
    state = trainer.sampler.bit_generator.state
    loss = trainer._update()
    trainer.sampler.bit_generator.state = state
    sampled, steps = batches.sampler(trainer.sampler)
    episodes = trainer.recorded.training[sampled]  # type: ignore[union-attr]
    reward = before(*batches.features(episodes, steps)).view(steps.shape)  # type: ignore[union-attr,operator]
    target = torch.from_numpy(data.returns[episodes] / 200).float()
    if objective == "lrd":
        expected = objectives.lrd_loss(reward, target, torch.full((4,), 200.0))
    else:
        expected = objectives.rrd_loss(reward, target)
    assert torch.allclose(loss, expected, rtol=1e-4, atol=1e-6)


def test_learning_does_not_depend_on_the_units_of_rewards(tmp_path: Path) -> None:
    """With rewards a millionth as large, the network is the same and its loss smaller by the square."""
    rng = np.random.default_rng(0)
    arrays = {
        "obs": rng.normal(size=(66, 2)).astype(np.float32),
        "acts": rng.normal(size=(60, 1)).astype(np.float32),
        "terminal": np.ones(6, bool),
        "indices": np.arange(10, 60, 10),
    }
    rewards = rng.normal(size=60)
    trained = []
    for name, unit in (("large", 1.0), ("small", 2.0**-20)):
        np.savez(tmp_path / f"{name}.npz", rews=rewards * unit, **arrays)
        data = {"data.path": str(tmp_path / f"{name}.npz"), "data.expected_episodes": None, "data.expected_steps": None}
        trained.append(train(tmp_path, name, **data))
    large, small = trained
    for one, other in zip(large.network.parameters(), small.network.parameters(), strict=True):
        assert torch.equal(one, other)
    losses = [trainer.loop.moments["R_loss"].mean for trainer in trained]
    assert losses[0] == losses[1] * 2.0**40


def test_a_short_run_learns_the_reward(tmp_path: Path) -> None:
    """A short run clearly beats the even distribution of returns; the full recipe reaches 0.95."""
    changes = {"reward.iterations": 5, "reward.train_batches": 20, "reward.hidden_size": 64}
    sizes = {"reward.steps_per_episode": 64, "reward.learning_rate": 2e-3}
    trainer = train(tmp_path, "learned", **changes, **sizes)
    held_out = trainer.held_out
    assert held_out is not None
    assert held_out.learned["step_pearson"] > 0.7
    assert held_out.baselines["even"]["step_pearson"] < 0.4
    assert held_out.score == held_out.learned["step_pearson"]


def test_weights_from_another_run_include_the_normaliser(tmp_path: Path) -> None:
    first = train(tmp_path, "first")
    loaded = load("reward", {**SMALL, "run_dir": str(tmp_path), "seed": 5})
    second = RewardTrainer(loaded, start_run(loaded, "second"), weights_from=first.run)
    for name, tensor in first.network.state_dict().items():
        assert torch.equal(tensor, second.network.state_dict()[name])
        assert torch.equal(tensor, second.target.state_dict()[name])


def test_the_split_is_by_episode_and_determined_by_the_seed() -> None:
    data, three = open_episodes("pendulum"), open_episodes("lift")
    training, held_out = split_episodes(data, "lrd", 0.2, (), seed=3)
    assert len(held_out) == 11
    assert sorted([*training.tolist(), *held_out.tolist()]) == list(range(56))
    assert np.array_equal(held_out, split_episodes(data, "lrd", 0.2, (), seed=3)[1])
    assert not np.array_equal(held_out, split_episodes(data, "lrd", 0.2, (), seed=4)[1])
    assert split_episodes(three, "progress", 0.2, (2,), seed=0)[1].tolist() == [2]
    with pytest.raises(DataError, match="episode 3"):
        split_episodes(three, "progress", 0.2, (3,), seed=0)
    with pytest.raises(DataError, match=r"no episode is left .*; name fewer in data.held_out=\[0, 1, 2\]"):
        split_episodes(three, "progress", 0.2, (0, 1, 2), seed=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data.expected_episodes": 57}, "set data.expected_episodes=56"),
        ({"reward.objective": "success"}, "does not record which episodes succeeded"),
        (
            {
                "data.path": "lift",
                "data.expected_episodes": None,
                "data.expected_steps": None,
                "reward.objective": "progress",
            },
            r"set data.drop_columns=\[states:0\]",
        ),
        ({"reward.negatives": "lift"}, "set reward.negatives=null"),
        ({"reward.objective": "progress", "reward.negatives": "lift"}, "must have the same"),
        ({"data.path": "lift", "data.expected_episodes": None, "data.expected_steps": None}, "objective=progress"),
    ],
)
def test_unsuitable_data_is_refused_before_a_run_folder_exists(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        require_trainer(load("reward", changes))


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(np.array_equal(one, other))


def assert_same(one: Path, other: Path) -> None:
    assert records(one) == records(other)
    first, second = last_checkpoint(one), last_checkpoint(other)
    assert first.updates == second.updates
    assert equal(dict(first.weights), dict(second.weights))
    assert equal(first.state["optimizer"], second.state["optimizer"])
    assert equal(first.state["random"]["named"], second.state["random"]["named"])


@pytest.mark.parametrize("objective", ["lrd", "progress"])
def test_stopping_within_an_iteration_and_resuming_changes_nothing(tmp_path: Path, objective: str) -> None:
    whole = train(tmp_path, "whole", **{"reward.objective": objective})
    loaded = load("reward", {**SMALL, "run_dir": str(tmp_path), "reward.objective": objective})
    stopped = RewardTrainer(loaded, start_run(loaded, "stopped"))
    update = stopped._update

    def stopping_update() -> torch.Tensor:
        if stopped.counters.updates == 30:  # in the middle of an iteration
            stopped.loop.stop("test")
        return update()

    stopped._update = stopping_update  # type: ignore[method-assign]
    stopped.train()
    stopped.close()
    assert not stopped.loop.done
    loaded, run = resume_run("stopped", [], str(tmp_path))
    RewardTrainer(loaded, run).train()
    assert_same(whole.run.folder, run.folder)


# A fork server that has imported torch saves the import in each process.
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["torch", "numpy", "millpond.trainers.reward.trainer", "millpond.data"])
LONG = {**SMALL, "reward.epochs": 5, "reward.iterations": 10, "reward.save_freq": 1, "log.tensorboard": False}


def train_in_child(root: str, name: str, batches: Any) -> None:
    """Train or resume in a separate process that sends its number of updates."""
    torch.set_num_threads(1)
    if (Path(root) / name).exists():
        loaded, run = resume_run(name, [], root)
    else:
        loaded = load("reward", {**LONG, "run_dir": root})
        run = start_run(loaded, name)
    trainer = RewardTrainer(loaded, run)
    update = trainer._update

    def reporting_update() -> torch.Tensor:
        loss = update()
        batches.send(trainer.counters.updates)
        return loss

    trainer._update = reporting_update  # type: ignore[method-assign]
    trainer.train()


def test_a_run_killed_at_random_batches_resumes_bit_for_bit(tmp_path: Path) -> None:
    """Real processes, SIGKILL; checkpoints are at the ends of epochs, so batches are repeated after each."""
    rng = random.Random(7)
    kills = ("killed", rng.randint(10, 150)), ("killed", rng.randint(170, 250)), ("killed", rng.randint(260, 390))
    for name, kill_at in (("whole", None), *kills, ("killed", None)):
        received, send = processes.Pipe(duplex=False)
        process = processes.Process(target=train_in_child, args=(str(tmp_path), name, send))
        process.start()
        send.close()
        with contextlib.suppress(EOFError):
            while received.recv() < (kill_at or 10**9):
                pass
            os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        received.close()
        assert process.exitcode == (0 if kill_at is None else -signal.SIGKILL)
    assert_same(tmp_path / "whole", tmp_path / "killed")


def test_a_non_finite_loss_ends_the_run_and_dumps_its_batch(tmp_path: Path) -> None:
    from millpond.loop import NonFiniteError

    loaded = load("reward", {**SMALL, "run_dir": str(tmp_path)})
    trainer = RewardTrainer(loaded, start_run(loaded, "nan"))
    inputs: list[torch.Tensor] = []
    raw = trainer.network.raw

    def failing_raw(features: torch.Tensor, pixels: Any = None) -> torch.Tensor:
        inputs.append(features)
        output = raw(features, pixels)
        return output * float("nan") if len(inputs) == 6 else output

    trainer.network.raw = failing_raw  # type: ignore[method-assign]
    with pytest.raises(NonFiniteError, match="epoch 0 cycle 0 iteration 1 batch 1: R_loss = nan") as caught:
        trainer.train()
    from safetensors.torch import load_file

    assert caught.value.batch_path is not None
    assert torch.equal(load_file(caught.value.batch_path)["features"], inputs[5])


def test_the_command_reads_the_recorded_vectors_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One pass serves audit, normaliser, training and evaluation, and the audit runs once."""
    frames_read: list[int] = []
    frames = NpzSource.frames

    def counted(source: NpzSource, episode: int, name: str, start: int, stop: int) -> Any:
        frames_read.append(stop - start)
        return frames(source, episode, name, start, stop)

    monkeypatch.setattr(NpzSource, "frames", counted)
    audits: list[Any] = []
    monkeypatch.setattr("millpond.trainers.reward.setup.audit", lambda data: audits.append(data) or audit(data))
    changes = [f"{key}={value}" for key, value in {**SMALL, "run_dir": tmp_path}.items()]
    monkeypatch.setattr("sys.argv", ["millpond", "train", "reward", *changes, "--run", "once"])
    with contextlib.suppress(SystemExit):
        main()
    assert (tmp_path / "once" / "metrics.jsonl").exists()
    assert sum(frames_read) == 11_200 + 56
    assert len(audits) == 1


def test_the_command_refuses_constant_returns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rewards = np.zeros((4, 10))
    rewards[:, -1] = 1.0
    np.savez(
        tmp_path / "same.npz",
        obs=np.random.default_rng(0).normal(size=(44, 2)).astype(np.float32),
        acts=np.zeros((40, 1), np.float32),
        rews=rewards.reshape(-1),
        terminal=np.ones(4, bool),
        indices=np.array([10, 20, 30]),
    )
    arguments = ["train", "reward", f"data.path={tmp_path / 'same.npz'}", "data.expected_episodes=null"]
    rest = ["data.expected_steps=null", f"run_dir={tmp_path}", "--run", "refused"]
    monkeypatch.setattr("sys.argv", ["millpond", *arguments, *rest])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert "reward.objective=progress" in capsys.readouterr().err
    assert not (tmp_path / "refused").exists()
