"""Sweeps with real processes: killed, continued, shared by two, and refused points."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from millpond.config import load
from millpond.errors import MillpondError
from millpond.record import read_records
from millpond.sweep.folder import SweepFolder
from millpond.sweep.run import make_settings
from tests.support.sweeps import SMALL

pytest.importorskip("optuna")

SPACE = "ppo.learning_rate: {log: [1e-4, 1e-2]}\ntrainer.minibatch_size: [32, 64, 100]\n"  # 100 does not divide
OVERRIDES = [f"{key}={value}" for key, value in SMALL.items() if key != "trainer.minibatch_size"]


def command(folder: Path, *options: str, space: str = SPACE) -> list[str]:
    folder.mkdir(exist_ok=True)
    (folder / "space.yaml").write_text(space)
    base = [sys.executable, "-m", "millpond", "sweep", "gymnasium:CartPole-v1", str(folder / "space.yaml"), *OVERRIDES]
    return [*base, "--folder", str(folder / "sweep"), "--seeds", "2", "--rungs", "2", *options]


def results(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((folder / "sweep" / "results.json").read_text())
    return loaded


def assert_trained_once(sweep: SweepFolder, total: int = 1024) -> None:
    """Every record of every run is there once, in order."""
    for run in sweep.runs.iterdir():
        steps = [record["env_steps"] for record in read_records(run / "metrics.jsonl")]
        assert steps == [128.0 * k for k in range(1, len(steps) + 1)], run.name
        assert len(steps) in (total // 256, total // 128), run.name


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_sweep_from_start_to_end(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path, "--trials", "2", "--workers", "1"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    saved, sweep = results(tmp_path), SweepFolder(tmp_path / "sweep")
    assert [trial["state"] for trial in saved["trials"]].count("finished") >= 1
    assert all(trial["reason"] for trial in saved["trials"] if trial["state"] != "finished")
    assert all("is not a multiple of" in one["reason"] for one in saved["refused"])
    winner = saved["winner"]
    assert sorted(winner["fresh"]) == ["1001", "1002"]
    assert winner["confirmed"]
    best = load(tmp_path / "sweep" / "best.yaml").recipe
    assert best.model_dump()["ppo"]["learning_rate"] == pytest.approx(winner["params"]["ppo.learning_rate"])
    assert best.model_dump()["log"]["tensorboard"] is True  # as the recipe, not as a trial
    text = (tmp_path / "sweep" / "table.txt").read_text()
    assert "over 2 seeds of the sweep" in text
    assert "over 2 fresh seeds" in " ".join(text.split())
    assert_trained_once(sweep)
    again = subprocess.run(
        command(tmp_path, "--trials", "2", "--workers", "1", "--json"), capture_output=True, text=True, check=True
    )
    assert [t["rungs"] for t in json.loads(again.stdout)["trials"]] == [t["rungs"] for t in saved["trials"]]
    status = subprocess.run(
        [sys.executable, "-m", "millpond", "sweep", "--status", str(tmp_path / "sweep")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert status.stdout.startswith("2 of 2 trials started")
    other = subprocess.run(command(tmp_path, "--seeds", "3"), capture_output=True, text=True, check=False)
    assert other.returncode == 2
    assert "seeds: 2 -> 3" in other.stderr


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a command and all of its workers at once."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait_for(sweep: Path, condition: Any, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline
        assert process.poll() is None, "the sweep ended before it could be killed"
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_sweep_killed_twice_goes_on_and_trains_nothing_twice(tmp_path: Path) -> None:
    options = ("--trials", "3", "--workers", "2", "trainer.total_timesteps=4096")
    runs = tmp_path / "sweep" / "runs"
    for count in (1, 4):
        process = subprocess.Popen(command(tmp_path, *options), start_new_session=True, stdout=subprocess.DEVNULL)
        wait_for(runs, lambda count=count: len(list(runs.glob("*/metrics.jsonl"))) >= count, process)
        kill_group(process)
    done = subprocess.run(command(tmp_path, *options), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    saved = results(tmp_path)
    assert len(saved["trials"]) == 3
    assert {trial["state"] for trial in saved["trials"]} <= {"finished", "stopped"}
    assert saved["winner"]["confirmed"]
    assert_trained_once(SweepFolder(tmp_path / "sweep"), 4096)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_commands_share_a_sweep(tmp_path: Path) -> None:
    options = ("--trials", "4", "--workers", "1", "trainer.total_timesteps=2048")
    both = [
        subprocess.Popen(command(tmp_path, *options), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=600)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    saved = results(tmp_path)
    assert len(saved["trials"]) == 4
    assert len({json.dumps(trial["params"]) for trial in saved["trials"]}) == 4
    assert saved["winner"]["confirmed"]
    assert_trained_once(SweepFolder(tmp_path / "sweep"), 2048)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_space_without_a_point_that_can_run_is_an_error_with_the_rule(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path, "--workers", "1", space="trainer.minibatch_size: [100, 200]\n"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "points in a row cannot run" in done.stderr
    assert "trainer.minibatch_size=" in done.stderr
    assert "Traceback" not in done.stderr


WANTED: dict[str, Any] = {
    "source": "space.yaml", "trials": 2, "seeds": 2, "final_seeds": None, "hours": None, "objectives": "return",
    "minimize": False, "sampler": "tpe", "rungs": 3, "random_seed": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("overrides", "changes", "message"),
    [
        (["seed=3"], {}, "seed is set by the sweep"),
        (["ppo.gamma=0.9"], {}, r"ppo\.gamma: set by an override and searched"),
        ([], {"objectives": "hours"}, "--objectives hours is not one of return, return,hours"),
        ([], {"sampler": "cmaes"}, "searches ranges"),
        ([], {"recipe": "reward"}, r"ppo\.gamma is not a key of kind reward"),
    ],
)
def test_bad_input_is_refused_with_the_rule(overrides: list[str], changes: dict[str, Any], message: str) -> None:
    wanted = {"recipe": "gymnasium:CartPole-v1", **WANTED, **changes}
    with pytest.raises(MillpondError, match=message):
        make_settings(wanted.pop("recipe"), {"ppo.gamma": [0.9, 0.99]}, overrides, **wanted)


def test_rungs_double_from_one_to_the_next() -> None:
    made, _ = make_settings("gymnasium:CartPole-v1", {"ppo.gamma": [0.9, 0.99]}, [], **WANTED)
    assert made.rungs == (0.25, 0.5, 1.0)
    assert made.final_seeds == 2


def test_a_space_cannot_name_code() -> None:
    space = {"policy.target": ["evil:policy", "worse:policy"]}
    with pytest.raises(MillpondError, match=r"policy\.target: evil:policy names code to import; a space cannot"):
        make_settings("gymnasium:CartPole-v1", space, ["ppo.normalize_values=false"], **WANTED)
