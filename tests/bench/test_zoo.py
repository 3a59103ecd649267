"""The zoo of standard tasks: arithmetic by hand, the same rules on all sides, a page that is up to date, and that it runs."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.peers.environments import interpreter, last_line_and_cpu
from benchmarks.zoo.__main__ import planned
from benchmarks.zoo.page import PAGE, PICTURE, cell, compared, digest, not_run, page_of, places, warned
from benchmarks.zoo.recall_env import Recall
from benchmarks.zoo.results import POINTS, RESULTS, Iteration, Result, curve_of, final_return, read_results
from benchmarks.zoo.tasks import MILLPOND, RECURRENT, SB3, TASKS, TUNED
from benchmarks.zoo.tuned import TUNED as TUNED_SETTINGS
from millpond.envs.probes import RecallEnvs

ROOT = Path(__file__).parents[2]
CARTPOLE = Result("cartpole", MILLPOND, 1, 200_000, [(100, 1.0)], 20.0, 9, 6.0, 1, "cpu", {"torch": "2"}, {})


def zoo(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.zoo", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_window_of_the_curve_averages_episodes_not_iterations() -> None:
    """1,000 steps in 100 iterations: 2 in each of 50 windows, with 1 and 3 episodes of returns 10 and 20."""
    iterations: list[Iteration] = [(10 * (k + 1), 1 + 2 * (k % 2), 10.0 * (1 + k % 2)) for k in range(100)]
    curve = curve_of(iterations)
    assert len(curve) == POINTS
    assert curve[0] == (20, 17.5)
    assert curve[-1] == (1_000, 17.5)


def test_a_window_without_episodes_has_no_point() -> None:
    assert curve_of([(500, 0, None), (1_000, 2, 3.0)]) == [(1_000, 3.0)]


def test_the_final_return_is_that_of_episodes_in_the_last_tenth() -> None:
    iterations: list[Iteration] = [(900, 5, 100.0), (950, 1, 10.0), (1_000, 3, 20.0)]
    assert final_return(iterations) == 17.5
    assert final_return([(900, 5, 100.0), (1_000, 0, None)]) is None


def test_a_cell_has_mean_lowest_and_highest_seed_and_seconds_of_the_cheapest() -> None:
    runs = [
        replace(CARTPOLE, seed=k, final=final, seconds=60.0 * k) for k, final in ((1, 100.0), (2, 500.0), (3, 300.0))
    ]
    assert cell(runs) == "300 (100 to 500); 60 s on the clock"
    assert cell([*runs[:2], replace(runs[2], cpu_seconds=7.0)]) == "300 (100 to 500); 7 CPU s"
    assert cell(runs[:1]) == "100; 60 s on the clock"
    assert cell([replace(CARTPOLE, final=None)]) == "no episode ended; 6 s on the clock"


def test_a_task_with_a_limit_of_time_says_how_far_each_side_came() -> None:
    pong = replace(CARTPOLE, task="pong", steps=400_000, cpu_seconds=1_800.0)
    assert cell([pong]) == "20; 400,000 steps in 1,800 CPU s"


BUSY = """
import signal, time
def stop(*_): raise SystemExit(0)
signal.signal(signal.SIGINT, stop)
while True: print(time.process_time(), flush=True)
"""


def test_a_command_is_interrupted_after_its_cpu_seconds() -> None:
    line, spent = last_line_and_cpu([sys.executable, "-c", BUSY], cpu_limit=0.4)
    assert float(line) >= 0.3
    assert spent >= 0.4


def test_time_that_a_command_waits_does_not_count_for_its_cpu_limit() -> None:
    line, _ = last_line_and_cpu([sys.executable, "-c", "import time; time.sleep(1.5); print('done')"], cpu_limit=1)
    assert line == "done"


def test_machines_are_listed_with_their_runs() -> None:
    other = replace(CARTPOLE, task="pendulum", party=SB3, machine="other cpu")
    assert places([CARTPOLE, replace(CARTPOLE, seed=2), other]) == [
        "- cpu: Millpond's recipe (cartpole)",
        "- other cpu: SB3's PPO, its defaults (pendulum)",
    ]


def test_warnings_are_named_by_run_and_cause() -> None:
    silent, loud = replace(CARTPOLE, warnings={}), replace(CARTPOLE, seed=2, warnings={"entropy": 2})
    assert warned([silent, CARTPOLE]).endswith("in these 1 runs: none.")
    assert warned([silent, loud]).endswith("in these 2 runs: `gymnasium:CartPole-v1`, seed 2: entropy (2).")


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [((3.0, 4.0), "every seed better"), ((0.1, 0.2), "every seed worse"), ((1.5, 9.0), "seeds overlap, mean better"),
     ((0.0, 1.5), "seeds overlap, mean not better")],
)  # fmt: skip
def test_the_verdict_compares_seeds(ours: tuple[float, float], verdict: str) -> None:
    runs = {
        MILLPOND: [replace(CARTPOLE, final=final) for final in ours],
        SB3: [replace(CARTPOLE, party=SB3, final=final) for final in (1.0, 2.0)],
    }
    found = compared(TASKS["cartpole"], runs)
    assert found is not None
    assert found[0] == verdict
    assert compared(TASKS["cartpole"], {MILLPOND: runs[MILLPOND]}) is None


def test_what_was_not_run_is_listed_by_seed() -> None:
    lines = not_run([CARTPOLE, replace(CARTPOLE, party=TUNED)])
    parties = "Millpond's recipe (seeds 2, 3); SB3's PPO, its defaults; single-file PPO with an LSTM"
    assert lines[0] == f"- `gymnasium:CartPole-v1`: {parties}"
    assert len(lines) == len(TASKS)


def test_millpond_and_the_defaults_of_sb3_come_first_in_all_tasks() -> None:
    jobs = planned(["cartpole", "recall"], [MILLPOND, SB3, RECURRENT], None)
    assert [party for _, party, _ in jobs] == [MILLPOND, SB3] * 6 + [RECURRENT]
    assert jobs[:3] == [("cartpole", MILLPOND, 1), ("cartpole", SB3, 1), ("cartpole", MILLPOND, 2)]
    assert jobs[-1] == ("recall", RECURRENT, 1)
    assert planned(["pong"], [MILLPOND], None) == [("pong", MILLPOND, 1)]


def test_tasks_with_the_tuned_party_are_those_with_tuned_settings() -> None:
    assert {task.name for task in TASKS.values() if TUNED in task.parties} == TUNED_SETTINGS.keys()


def test_recall_of_the_references_has_the_rules_of_ours() -> None:
    """Both play ten episodes with the same cues, delays and actions."""
    ours, theirs = RecallEnvs(1, {}), Recall()
    ours.reset(np.array([5], np.uint64))
    rng = np.random.default_rng(0)
    seen = theirs.start(int(ours._cue[0]), int(ours._left[0]))
    ended, rewards = 0, 0.0
    while ended < 10:
        assert ours.buffers.observation[0, 0].tolist() == seen.tolist()
        action = int(rng.integers(4)) if ended % 2 else int(ours._cue[0])
        ours.buffers.action[0, 0] = action
        ours.step(0, 1)
        seen, reward, terminated, truncated, _ = theirs.step(action)
        assert (reward, terminated, truncated) == (ours.buffers.reward[0, 0], ours.buffers.terminated[0, 0], False)
        rewards += reward
        if terminated:
            ended += 1
            seen = theirs.start(int(ours._cue[0]), int(ours._left[0]))
    assert rewards >= 5


def test_recall_of_the_references_draws_all_cues_and_delays() -> None:
    env = Recall()
    env.reset(seed=1)
    drawn = [(env.reset()[0].argmax(), env.left) for _ in range(2_000)]
    assert {cue for cue, _ in drawn} == set(range(4))
    assert {delay for _, delay in drawn} == set(range(8, 33))


def test_the_page_is_up_to_date_with_the_results() -> None:
    results = read_results(RESULTS)
    assert PAGE.read_text(encoding="utf-8") == page_of(results), "python -m benchmarks.zoo --page"
    with Image.open(PICTURE) as picture:
        assert picture.info["Description"] == digest(results), "python -m benchmarks.zoo --page"


@pytest.mark.parametrize("result", read_results(RESULTS), ids=lambda one: f"{one.task}-{one.party}-{one.seed}")
def test_results_are_of_whole_trainings(result: Result) -> None:
    task = TASKS[result.task]
    assert result.party in task.parties
    assert result.threads == 1, "the page says that seconds are with one thread"
    assert 1 <= len(result.curve) <= POINTS
    if task.seconds is None:
        assert abs(result.steps - task.steps) <= 0.02 * task.steps


def test_a_finished_training_is_a_file_and_is_not_run_again(tmp_path: Path) -> None:
    run = ("--quick", "--task", "cartpole", "--party", MILLPOND, "--seeds", 1, "--jobs", 1, "--folder", tmp_path)
    first = zoo(*run)
    assert first.returncode == 0, first.stderr
    (path,) = tmp_path.iterdir()
    result = json.loads(path.read_text(encoding="utf-8"))
    assert (result["task"], result["party"], result["seed"], result["steps"]) == ("cartpole", MILLPOND, 1, 8_192)
    assert [steps for steps, _ in result["curve"]] == [2_048, 4_096, 6_144, 8_192]
    assert all(15 < value <= 500 for _, value in result["curve"])
    assert result["final"] == result["curve"][-1][1]
    assert result["cpu_seconds"] > 0.5  # importing torch alone takes that long
    assert result["warnings"] == {}
    written = path.stat().st_mtime_ns
    again = zoo(*run)
    assert again.returncode == 0
    assert "after 8,192 steps" in first.stdout
    assert "after" not in again.stdout
    assert path.stat().st_mtime_ns == written


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "party"),
    [(task.name, party) for task in TASKS.values() for party in task.parties if party != MILLPOND],
)
def test_quick_training_of_a_reference_runs(task: str, party: str, tmp_path: Path) -> None:
    try:
        interpreter("sb3", {})
    except SystemExit as missing:
        pytest.skip(str(missing))
    done = zoo("--quick", "--task", task, "--party", party, "--seeds", 1, "--folder", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = read_results(tmp_path)
    assert (result.task, result.party, result.seed) == (task, party, 1)
    assert result.steps > 0
