"""Scores of recorded episodes by a trained reward network: files, pictures, errors."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from millpond.cli import main
from millpond.config import load
from millpond.data import DataError
from millpond.trainers.common.session import require_trainer
from millpond.trainers.reward.evaluation import score_run
from tests.support.episode_files import WrittenEpisode, make_episodes, write_npz, write_robosuite
from tests.support.reward_runs import TINY_REWARD, train_tiny_reward


def command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["millpond", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    return int(stopped.value.code or 0)


def test_scores_are_written_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = train_tiny_reward(Path("runs"), "scored")
    capsys.readouterr()
    picture = tmp_path / "rewards.png"
    assert command(monkeypatch, "reward", "score", "scored", "pendulum", "--plot", str(picture), "--episodes", "1") == 0
    assert "56 episodes scored by scored (lrd, 4 updates)" in capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")
    with np.load("pendulum-reward.npz", allow_pickle=False) as arrays:
        rewards, lengths, names = arrays["rewards"], arrays["lengths"], arrays["names"]
    assert lengths.tolist() == [200] * 56
    assert rewards.dtype == np.float32
    assert len(rewards) == 56 * 200
    assert len(names) == 56
    from millpond.trainers.reward.evaluation import judge_episode

    expected, _ = judge_episode(trainer.network, trainer.recorded.data, 3, torch.device("cpu"))
    assert np.array_equal(rewards[600:800], expected)

    svg = ("--out", "scores.hdf5", "--plot", "rewards.svg", "--json")
    assert command(monkeypatch, "reward", "score", "scored", "pendulum", *svg) == 0
    assert json.loads(capsys.readouterr().out)["episodes"][3]["steps"] == 200
    with h5py.File("scores.hdf5") as file:
        assert np.array_equal(file["episode_3/reward"][...], expected)
    assert Path("rewards.svg").read_text().lstrip().startswith("<?xml")


def test_a_file_without_some_of_the_discrete_actions_is_scored(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name, actions in (("all", 4), ("some", 2), ("more", 6)):
        acts = np.resize(np.arange(actions), 60)
        write_npz(
            tmp_path / f"{name}.npz",
            [
                WrittenEpisode(
                    {"obs": rng.normal(size=(21, 3)).astype("float32")}, acts[at : at + 20], rng.normal(size=20)
                )
                for at in (0, 20, 40)
            ],
        )
    train_tiny_reward(tmp_path, "discrete", **{"data.path": str(tmp_path / "all.npz")})
    scores = score_run("discrete", str(tmp_path / "some.npz"), run_dir=str(tmp_path))
    assert [len(reward) for reward in scores.rewards] == [20, 20, 20]
    with pytest.raises(DataError, match="has 6 actions, run 'discrete' was trained on 4"):
        score_run("discrete", str(tmp_path / "more.npz"), run_dir=str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["scored", "lift"], "not what run 'scored' was trained on"),
        (["scored", "pendulum", "--episodes", "56"], "the file has 56, counted from 0"),
        (["scored", "pendulum", "--out", "scores.csv"], "must end in .npz"),
        (["none", "pendulum"], "no run 'none'"),
    ],
)
def test_unsuitable_files_and_options_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    train_tiny_reward(Path("runs"), "scored")
    assert command(monkeypatch, "reward", "score", *arguments) == 2
    assert message in capsys.readouterr().err


def write_demonstrations(folder: Path) -> None:
    """Write the same five demonstrations twice: old.hdf5 without actions, new.hdf5 with them."""
    episodes = make_episodes(np.random.default_rng(0), [30, 25, 40, 33, 20], {"states": ((6,), "float64")})
    for episode in episodes:
        episode.observation["states"] += np.linspace(0, 3, len(episode) + 1)[:, None]
    write_robosuite(folder / "old.hdf5", episodes, actions=False)
    write_robosuite(folder / "new.hdf5", episodes)


def test_progress_is_learned_and_scored_without_actions(tmp_path: Path) -> None:
    write_demonstrations(tmp_path)
    progress = {"reward.objective": "progress"}
    old = train_tiny_reward(tmp_path, "old", **{"data.path": str(tmp_path / "old.hdf5")}, **progress)
    new = train_tiny_reward(tmp_path, "new", **{"data.path": str(tmp_path / "new.hdf5")}, **progress)
    for one, other in zip(old.network.parameters(), new.network.parameters(), strict=True):
        assert torch.equal(one, other)  # progress depends on states alone
    without, with_actions = (
        score_run("old", str(tmp_path / f"{name}.hdf5"), run_dir=str(tmp_path)) for name in ("old", "new")
    )
    for one, other in zip(without.rewards, with_actions.rewards, strict=True):
        np.testing.assert_array_equal(one, other)


def test_missing_actions_are_named_where_transitions_need_them(tmp_path: Path) -> None:
    write_demonstrations(tmp_path)
    path = tmp_path / "old.hdf5"
    with pytest.raises(
        DataError, match=r"old\.hdf5 .*lrd: data/demo_1/actions is missing, .*reward.objective=progress"
    ):
        require_trainer(load("reward", {**TINY_REWARD, "data.path": str(path)}))
    train_tiny_reward(tmp_path, "pendulum")
    with pytest.raises(DataError, match=r"old\.hdf5: data/demo_1/actions is missing, .*objective=progress"):
        score_run("pendulum", str(path), run_dir=str(tmp_path))
