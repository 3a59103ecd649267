"""The commands of a lake: output, files and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import millpond
from millpond.replay import Field, Lake, Schema, Steps
from millpond.replay.tools import info as read_info
from millpond.replay.tools import verify

SCHEMA = Schema((Field.of("observation", (20, 20), "uint8"),), Field("action", (), "int32"))


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "millpond", "lake", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two streams of ten episodes of four steps each, in several files."""
    folder, rng = tmp_path / "lake", np.random.default_rng(0)
    with Lake.create(folder, SCHEMA, segment_bytes=4_000) as lake:
        for agent in range(2):
            with lake.writer(f"agent{agent}", 2) as writer:
                for _ in range(5):
                    terminated = np.zeros((4, 2), bool)
                    terminated[-1] = True
                    observation = rng.integers(0, 3, (4, 2, 20, 20)).astype(np.uint8)
                    actions, rewards = np.ones((4, 2), int), np.full((4, 2), 1.0 + agent)
                    writer.append(Steps(observation, actions, rewards, terminated, np.zeros((4, 2), bool)))
    return folder


def test_info(folder: Path) -> None:
    result = run("info", folder)
    assert result.returncode == 0, result.stderr
    assert f"{folder}: 80 transitions in 2 streams" in result.stdout
    assert "round 0: 10 episodes, return 8.0 (8.0 to 8.0), 4.0 steps" in result.stdout
    assert result.stderr == ""  # no progress without a terminal
    found = json.loads(run("info", folder, "--json").stdout)
    assert found["transitions"] == 80
    assert [stream["episodes"] for stream in found["streams"]] == [10, 10]


def test_counts_of_one_are_singular(tmp_path: Path) -> None:
    with Lake.create(tmp_path / "one", SCHEMA) as lake, lake.writer("a", 1) as writer:
        ended, zeros = np.ones((1, 1), bool), np.zeros((1, 1), bool)
        writer.append(Steps(np.zeros((1, 1, 20, 20), np.uint8), zeros.astype(int), zeros.astype(float), ended, zeros))
    result = read_info(tmp_path / "one").lines()
    assert result[0].endswith(": 1 transition in 1 stream")
    assert result[2].startswith("  a: 1 transition, 1 episode, 1 lane, 1 append, 1 file (0 compacted), ")
    assert result[3].startswith("    round 0: 1 episode, return 0.0")
    assert verify(tmp_path / "one").lines()[1] == "  a: 1 record, 1 of 1 transitions readable"


def test_verify_exits_with_one_if_bytes_are_damaged(folder: Path) -> None:
    result = run("verify", folder)
    assert (result.returncode, result.stderr) == (0, "")
    assert "every checksum matches" in result.stdout
    assert json.loads(run("verify", folder, "--json").stdout)["good"] is True
    steps = folder / "streams" / "agent0" / "000000.steps"
    data = bytearray(steps.read_bytes())
    data[20] ^= 1
    steps.write_bytes(data)
    result = run("verify", folder, "--json")
    assert result.returncode == 1
    found = json.loads(result.stdout)
    assert not found["good"]
    assert str(steps) in found["streams"][0]["damage"][0]
    assert found["streams"][0]["readable"] == 39
    assert found["streams"][1]["damage"] == []
    (folder / "lake.json").write_text("{}")
    assert run("verify", folder).returncode == 1
    damaged = run("info", folder)
    assert damaged.returncode == 1
    assert "lake.json cannot be read" in damaged.stderr


def test_compact(folder: Path) -> None:
    before = Lake(folder).sample(50, np.random.default_rng(1)).observation
    result = run("compact", folder)
    assert result.returncode == 0, result.stderr
    assert "files compacted" in result.stdout
    assert list(folder.rglob("*.zst"))
    np.testing.assert_array_equal(Lake(folder).sample(50, np.random.default_rng(1)).observation, before)
    assert "nothing to compact" in run("compact", folder).stdout
    assert json.loads(run("compact", folder, "--json").stdout) == {
        "segments": 0,
        "before": 0,
        "after": 0,
        "upgraded_from": None,
    }


@pytest.mark.parametrize("target", ["episodes.npz", "dataset"])
def test_export_and_import_round_trip(folder: Path, tmp_path: Path, target: str) -> None:
    result = run("export", folder, tmp_path / target, "--stream", "agent1")
    assert result.returncode == 0, result.stderr
    assert "10 episodes, 40 steps" in result.stdout
    assert "note: 10 terminated episodes without a final observation" in result.stdout
    found = json.loads(run("import", tmp_path / "again", tmp_path / target, "--stream", "human", "--json").stdout)
    assert found == {"stream": "human", "episodes": 10, "steps": 40, "notes": []}
    with Lake(tmp_path / "again") as again:
        assert again.streams == ["human"]
        assert all(episode.episode_return == 8 for episode in again.episodes())


@pytest.mark.parametrize(
    "arguments",
    [
        ["info", "nowhere"],
        ["verify", "nowhere"],
        ["compact", "nowhere"],
        ["export", "nowhere", "x.npz"],
        ["import", "again", "nothing.npz"],
        ["compact", "lake", "--stream", "other"],
        ["export", "lake", "x.npz", "--stream", "other"],
        ["export", "lake", "lake"],
        ["verify"],
    ],
)
def test_bad_input(folder: Path, arguments: list[str]) -> None:
    result = run(
        *(folder.parent / word if word in ("lake", "nowhere", "again", "x.npz") else word for word in arguments)
    )
    assert result.returncode == 2, result.stdout
    assert result.stderr
    assert "Traceback" not in result.stderr
    assert not (folder.parent / "again").exists()


def test_progress_is_shown_on_a_terminal(folder: Path) -> None:
    for command, word in (("verify", "verifying agent1"), ("info", "reading agent1")):
        result = run(command, folder, FORCE_COLOR="1")
        assert word in result.stderr
        assert word not in result.stdout


@pytest.mark.parametrize("command", ["info", "verify", "compact", "export", "import"])
def test_every_command_has_help(command: str) -> None:
    result = run(command, "--help", COLUMNS="100")
    assert result.returncode == 0
    assert f"millpond lake {command} " in result.stdout.partition("Usage")[2].partition("\n")[2]


def test_lazy_names_of_the_package() -> None:
    code = "import sys, millpond; heavy = {'torch', 'numba', 'numpy', 'pydantic'} & set(sys.modules); assert not heavy"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert millpond.Lake is Lake
    assert {millpond.Pond.__module__, millpond.Loop.__module__} == {"millpond.replay.pond", "millpond.loop.loop"}
    assert not hasattr(millpond, "Ocean")
