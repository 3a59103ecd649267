"""Each planted problem is reported, and healthy data has no findings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from millpond.data import AuditFinding, DataError, audit, open_episodes, refuse_unfit, unfit
from tests.support.episode_files import (
    WrittenEpisode,
    make_episodes,
    write_libero,
    write_minari,
    write_npz,
    write_robomimic,
)

Array = np.ndarray[Any, Any]


def episodes(count: int = 8, actions: int | None = 2) -> list[WrittenEpisode]:
    """Healthy episodes: different lengths, returns and contents, truncated and terminated."""
    rng = np.random.default_rng(7)
    plain = make_episodes(rng, [10 + k for k in range(count)], {"obs": ((3,), "float32")}, actions)
    return [replace(episode, terminated=k % 2 == 0) for k, episode in enumerate(plain)]


def findings_of(path: Path, written: Sequence[WrittenEpisode]) -> dict[str, AuditFinding]:
    write_npz(path / "a.npz", written)
    return {finding.code: finding for finding in audit(open_episodes(path / "a.npz"))}


def minari(path: Path, written: Sequence[WrittenEpisode]) -> Path:
    write_minari(path / "a.hdf5", written)
    return path / "a.hdf5"


def with_column(written: Sequence[WrittenEpisode], column: int, values: Any) -> list[WrittenEpisode]:
    """The same episodes with one column of `obs` replaced by `values(frames, episode)`."""
    for number, episode in enumerate(written):
        frames = np.arange(len(episode) + 1)
        episode.observation["obs"][:, column] = values(frames, number)
    return list(written)


def test_healthy_episodes_have_no_findings(tmp_path: Path) -> None:
    assert audit(open_episodes(minari(tmp_path, episodes()))) == []
    assert unfit(open_episodes(tmp_path / "a.hdf5")) == {"success": "the data does not record which episodes succeeded"}


@pytest.mark.parametrize(
    "values",
    [
        lambda frames, episode: frames * 0.05,
        lambda frames, episode: 100.0 - frames,
        lambda frames, episode: frames / len(frames),  # elapsed fraction of the episode
        lambda frames, episode: frames + 17.0 * episode,  # does not start at 0
        lambda frames, episode: np.log1p(frames),
        lambda frames, episode: np.sin(frames),
    ],
    ids=["seconds", "countdown", "fraction", "offset", "logarithm", "phase"],
)
def test_a_clock_is_named(values: Any, tmp_path: Path) -> None:
    finding = findings_of(tmp_path, with_column(episodes(), 1, values))["clock-column"]
    assert finding.where == ("obs:1",)
    assert finding.severity == "warning"
    assert finding.fix == "data.drop_columns=[obs:1]"
    cleared = open_episodes(tmp_path / "a.npz", drop_columns=finding.where)
    assert "clock-column" not in {each.code for each in audit(cleared)}


def test_a_column_that_rises_unevenly_is_not_a_clock(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    rising = with_column(episodes(), 1, lambda frames, episode: np.cumsum(rng.uniform(0, 1, len(frames))))
    assert "clock-column" not in findings_of(tmp_path, rising)


def test_copies_of_one_episode_have_no_clock(tmp_path: Path) -> None:
    codes = findings_of(tmp_path, episodes(1) * 3)
    assert "clock-column" not in codes
    assert codes["duplicate-episodes"].where == ("episode_1", "episode_2")


def test_a_copy_is_reported_and_a_changed_copy_is_not(tmp_path: Path) -> None:
    healthy = episodes()
    finding = findings_of(tmp_path, [*healthy, healthy[3]])["duplicate-episodes"]
    assert finding.where == ("episode_8",)
    other = replace(healthy[3], action=healthy[3].action + np.float32(1e-3))
    assert "duplicate-episodes" not in findings_of(tmp_path, [*healthy, other])


def test_constant_returns_are_reported_and_refused_for_decomposition(tmp_path: Path) -> None:
    same = [replace(e, reward=np.full(len(e), 3 / len(e), np.float32)) for e in episodes()]
    finding = findings_of(tmp_path, same)["constant-returns"]
    assert "all 8 episodes have the return 3" in finding.what
    assert finding.fix == "reward.objective=progress"
    data = open_episodes(tmp_path / "a.npz")
    for objective in ("lrd", "rrd"):
        with pytest.raises(
            DataError, match=rf"{objective}: every one of the 8 .* return 3, .*use reward.objective=progress"
        ):
            refuse_unfit(data, objective)
    refuse_unfit(data, "progress")


def test_nearly_constant_returns_are_reported(tmp_path: Path) -> None:
    spread = [replace(e, reward=np.full(len(e), (100 + k / 10) / len(e), "float32")) for k, e in enumerate(episodes())]
    assert "near-constant-returns" in findings_of(tmp_path, spread)
    most = [replace(e, reward=np.eye(1, len(e), dtype="float32")[0] * (k > 0)) for k, e in enumerate(episodes(40))]
    assert "39 of 40 episodes have the return 1" in findings_of(tmp_path, most)["near-constant-returns"].what


def test_returns_proportional_to_length_and_rewards_only_at_the_end_are_reported(tmp_path: Path) -> None:
    ones = [replace(e, reward=np.ones(len(e), "float32")) for e in episodes()]
    assert set(findings_of(tmp_path, ones)) == {"returns-are-lengths"}
    late = [replace(e, reward=np.float32(k) * (np.arange(len(e)) == len(e) - 1)) for k, e in enumerate(episodes())]
    assert "rewards-at-the-end" in findings_of(tmp_path, late)


@pytest.mark.parametrize("what", ["observation", "action", "reward"])
def test_non_finite_numbers_are_reported_as_errors(what: str, tmp_path: Path) -> None:
    broken = episodes()
    array = broken[5].observation["obs"] if what == "observation" else getattr(broken[5], what)
    array[4] = np.nan if what != "action" else np.inf
    finding = findings_of(tmp_path, broken)["not-finite"]
    assert finding.severity == "error"
    assert finding.where == ("episode_5",)
    assert what in finding.what


def test_actions_out_of_range_are_reported(tmp_path: Path) -> None:
    wild = episodes(40)
    wild[5].action[3, 1] = 1.5
    finding = findings_of(tmp_path, wild)["action-range"]
    assert finding.where == ("action:1",)
    assert "1 of " in finding.what
    scaled = [replace(e, action=2 * e.action) for e in episodes(40)]  # another range altogether, such as a torque's
    assert "action-range" not in findings_of(tmp_path, scaled)
    numbered = episodes(actions=None)
    numbered[2].action[0] = -1
    assert findings_of(tmp_path, numbered)["action-range"].severity == "error"


def test_actions_outside_the_range_in_minari_metadata_are_reported(tmp_path: Path) -> None:
    path = minari(tmp_path, [replace(e, action=2 * e.action) for e in episodes()])
    space = {"type": "Box", "dtype": "float32", "shape": [2], "low": [-1.5, -1.5], "high": [1.5, 1.5]}
    for bounds, expected in ((1.5, True), (2.0, False)):
        space |= {"low": [-bounds] * 2, "high": [bounds] * 2}
        (tmp_path / "metadata.json").write_text(json.dumps({"action_space": json.dumps(space)}))
        messages = [finding.what for finding in audit(open_episodes(path)) if finding.code == "action-range"]
        assert bool(messages) == expected
        assert not messages or "outside -1.5 to 1.5" in messages[0]


def test_contradicting_flags_are_reported(tmp_path: Path) -> None:
    path = minari(tmp_path, episodes())
    with h5py.File(path, "r+") as file:
        file["episode_1/terminations"][2] = True
        file["episode_2/truncations"][-1] = file["episode_2/terminations"][-1] = True
        file["episode_3/truncations"][-1] = file["episode_3/terminations"][-1] = False
    findings = [finding for finding in audit(open_episodes(path)) if finding.code == "terminal-flags"]
    assert [(finding.severity, finding.where) for finding in findings] == [
        ("error", ("episode_1",)),
        ("warning", ("episode_2",)),
        ("warning", ("episode_3",)),
    ]


def test_consecutive_flags_up_to_the_end_count_as_one_end(tmp_path: Path) -> None:
    path = tmp_path / "a.hdf5"
    write_robomimic(path, episodes())
    with h5py.File(path, "r+") as file:
        file["data/demo_1/dones"][-4:] = 1  # robomimic can flag every step from the first success on
    assert "terminal-flags" not in {finding.code for finding in audit(open_episodes(path))}


def test_a_time_limit_flagged_as_termination_is_reported() -> None:
    findings = {finding.code: finding for finding in audit(open_episodes("pendulum"))}
    assert set(findings) == {"terminal-flags"}
    assert "time limit" in findings["terminal-flags"].meaning


def test_constant_columns_are_reported(tmp_path: Path) -> None:
    still = with_column(episodes(), 2, lambda frames, episode: 4.0)
    assert findings_of(tmp_path, still)["constant-column"].where == ("obs:2",)


@pytest.mark.parametrize("name", ["lift", "handover"])
def test_the_clock_of_the_packaged_demonstrations_is_reported(name: str) -> None:
    findings = {finding.code: finding for finding in audit(open_episodes(name))}
    assert findings["clock-column"].where == ("states:0",)
    assert "no-rewards" in findings


def test_libero_data_is_refused_for_decomposition(tmp_path: Path) -> None:
    write_libero(tmp_path / "a.hdf5", side=8)
    data = open_episodes(tmp_path / "a.hdf5")
    codes = {finding.code for finding in audit(data)}
    assert {"constant-returns", "success-only", "rewards-at-the-end", "final-missing"} <= codes
    assert "clock-column" not in codes
    assert set(unfit(data)) == {"lrd", "rrd", "success"}
    states = audit(open_episodes(tmp_path / "a.hdf5", ["states"]))
    assert [finding.where for finding in states if finding.code == "clock-column"] == [("states:0",)]


def test_progress_is_reported_after_every_episode() -> None:
    reported: list[int] = []
    audit(open_episodes("lift"), reported.append)
    assert reported == [1, 2, 3]
