"""Poor trials are stopped by their interval against the best; runs go from rung to rung and train nothing twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from millpond.config import load
from millpond.planner import plan_loaded
from millpond.record import read_records
from millpond.store import read_status
from millpond.sweep.folder import Rung, SweepFolder
from millpond.sweep.points import run_overrides, steps_of
from millpond.sweep.trial import Interrupted, TrialFailed, complete, poor, score_of, train_to
from tests.support.sweeps import record, settings


def test_a_rung_has_the_mean_of_its_seeds_and_students_interval() -> None:
    rung = complete(Rung(0.5, {"1": 1.0, "2": 2.0, "3": 3.0}))
    assert rung.mean == pytest.approx(2.0)
    half = 4.302653 / 3**0.5  # Student's t with 2 degrees of freedom, standard deviation 1
    assert (rung.low, rung.high) == (pytest.approx(2.0 - half, abs=1e-5), pytest.approx(2.0 + half, abs=1e-5))
    assert complete(Rung(0.5, {"1": 4.0})).low is None


def test_a_trial_that_is_surely_worse_than_the_best_is_stopped() -> None:
    three = settings(seeds=3)
    best, near, far = record(0, [9.0, 10.0, 11.0]), record(1, [7.0, 9.0, 11.0]), record(2, [1.0, 2.0, 3.0])
    assert poor(near, 1.0, [best, near, far], three) == ""
    assert poor(far, 1.0, [best, near, far], three).startswith("2 after 100% of its runs: worse than trial 0 (10)")
    assert poor(best, 1.0, [best, near, far], three) == ""
    lowest = replace(three, minimize=True)
    assert poor(far, 1.0, [best, near, far], lowest) == ""
    assert "worse than trial 2" in poor(best, 1.0, [best, near, far], lowest)


def test_trials_are_compared_at_the_same_rung() -> None:
    three = settings(seeds=3)
    ahead, behind = record(0, [90.0, 91.0, 92.0]), record(1, [1.0, 2.0, 3.0], fraction=0.5)
    assert poor(behind, 0.5, [ahead, behind], three) == ""


def test_a_single_seed_must_be_in_the_better_half_of_four() -> None:
    one = settings(seeds=1)
    trials = [record(number, [float(number)]) for number in range(4)]
    assert poor(trials[0], 1.0, trials[:3], one) == ""  # too few to tell
    assert poor(trials[1], 1.0, trials, one).endswith("not in the better half of 4 trials")
    assert poor(trials[2], 1.0, trials, one) == ""


def test_nothing_is_stopped_if_hours_are_an_objective() -> None:
    both = settings(seeds=3, objectives=("return", "hours"))
    best, far = record(0, [9.0, 10.0, 11.0]), record(1, [1.0, 2.0, 3.0])
    assert poor(far, 1.0, [best, far], both) == ""


def train(folder: SweepFolder, fraction: float, *, seconds: float | None = None) -> None:
    overrides = {**run_overrides(settings(), {}), "seed": 1}
    planned = plan_loaded(load(settings().recipe, overrides))
    assert steps_of(planned) == 1024
    train_to(folder, "one", settings().recipe, overrides, 1024, fraction, acts=True, seconds=seconds, trust=None)


def test_a_run_goes_from_rung_to_rung_and_trains_nothing_twice(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    train(folder, 0.5)
    run = folder.runs / "one"
    assert [record["env_steps"] for record in read_records(run / "metrics.jsonl")] == [128.0, 256.0, 384.0, 512.0]
    assert read_status(run).state == "stopped"
    half = score_of(run, "return", trust=None)
    assert 5 < half <= 30
    before = (run / "metrics.jsonl").read_bytes()
    train(folder, 0.5)  # as after a kill between training and evaluation
    assert (run / "metrics.jsonl").read_bytes() == before
    train(folder, 1.0)
    records = list(read_records(run / "metrics.jsonl"))
    assert (run / "metrics.jsonl").read_bytes().startswith(before)
    assert [record["env_steps"] for record in records][-1] == 1024.0
    assert read_status(run).state == "finished"
    assert score_of(run, "return", trust=None) == records[-1]["eval/episode_return"]
    assert score_of(run, "entropy", trust=None) == records[-1]["entropy"]
    assert not (run / "report.html").exists()
    with pytest.raises(TrialFailed, match=r"one has not recorded rewrad; see"):
        score_of(run, "rewrad", trust=None)


def test_a_run_without_time_left_is_interrupted_and_saved(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    with pytest.raises(Interrupted, match="hours"):
        train(folder, 1.0, seconds=0.0)
    assert not (folder.runs / "one").exists()
    with pytest.raises(Interrupted, match="hours"):
        train(folder, 1.0, seconds=1e-9)  # over after the first iteration
    assert [record["env_steps"] for record in read_records(folder.runs / "one" / "metrics.jsonl")] == [128.0]
    assert read_status(folder.runs / "one").state == "stopped"
