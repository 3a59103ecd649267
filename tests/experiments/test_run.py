"""An experiment with real runs: killed, resumed, and analysed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from millpond.store import read_status
from millpond.store.folder import is_run

TINY = [
    "pqn.num_envs=4", "pqn.num_steps=8", "pqn.num_minibatches=2", "mixture.agents=2", "mixture.pond_transitions=128",
    "mixture.big_pond_transitions=128", "dqn.batch_size=8", "policy.hidden_size=16", "eval.episodes=2",
    "env.max_steps=50",
]  # fmt: skip


def command(folder: Path, *options: str) -> list[str]:
    base = [sys.executable, "-m", "millpond", "experiment", "mixture-vs-single", *TINY, "--rounds", "2"]
    sizes = ["--frames", "512", "--seeds", "1", "--episodes", "3", "--games", "minatar:breakout"]
    return [*base, *sizes, "--folder", str(folder), "--methods", "mixture,single", *options]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_experiment_resumes(tmp_path: Path) -> None:
    process = subprocess.Popen(command(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    runs = tmp_path / "runs"
    while not (runs.is_dir() and any(is_run(path) for path in runs.iterdir())):
        assert process.poll() is None, process.stdout.read() if process.stdout else ""
        time.sleep(0.05)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 120
    while any(is_run(path) and read_status(path).state == "running" for path in runs.iterdir()):
        assert time.monotonic() < deadline, "a training outlived the experiment that started it"
        time.sleep(0.1)
    done = subprocess.run(command(tmp_path), capture_output=True, text=True, check=True)
    assert "can be shown" in " ".join(done.stdout.split())
    saved = json.loads((tmp_path / "results.json").read_text())
    assert {row["method"] for row in saved["rows"]} == {"mixture", "single"}
    assert {run["frames"] for game in saved["runs"].values() for m in game.values() for run in m.values()} == {512}
    for name in ("table.txt", "curves.json", "curves.png", "curves.svg", "profiles.png", "page.md"):
        assert (tmp_path / name).stat().st_size > 0
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/metrics.jsonl")}
    again = subprocess.run(command(tmp_path, "--json"), capture_output=True, text=True, check=True)
    assert json.loads(again.stdout)["rows"] == saved["rows"]
    assert "2 of 2 runs are already finished" in again.stderr
    assert times == {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/metrics.jsonl")}
    other = subprocess.run(command(tmp_path, "--rounds", "4"), capture_output=True, text=True, check=False)
    assert other.returncode == 2
    assert "which cannot be compared with" in other.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_interrupted_experiment_saves_its_runs(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*command(tmp_path), "--frames", "200000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    runs = tmp_path / "runs"
    while not list(runs.glob("*/metrics.jsonl")):
        assert process.poll() is None
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(180) != 0
    started = [path for path in runs.iterdir() if is_run(path)]
    assert started
    assert all(read_status(path).state in ("stopped", "failed") for path in started)
    assert any(read_status(path).state == "stopped" for path in started)
