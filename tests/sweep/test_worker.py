"""A worker runs trials, refuses points that cannot run, takes over from dead processes, and trains the winner again."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from millpond.config import load
from millpond.durable import replace_json
from millpond.record import read_records
from millpond.sweep.folder import SweepFolder, SweepSettings
from millpond.sweep.results import read_results, show_results, show_status
from millpond.sweep.trial import Interrupted
from millpond.sweep.worker import MAX_DEATHS, SweepWorker
from tests.support.sweeps import SMALL, settings

pytest.importorskip("optuna")


def begun(path: Path, wanted: SweepSettings) -> SweepFolder:
    folder = SweepFolder(path)
    folder.begin(wanted)
    return folder


def small(**changes: object) -> SweepSettings:
    """Two trials of one seed; a minibatch of 100 does not divide the batch."""
    fields = {
        "overrides": {key: value for key, value in SMALL.items() if key != "trainer.minibatch_size"}
        | {"trainer.total_timesteps": 256},
        "space": {"trainer.minibatch_size": {"choices": [100, 64, 32]}},
        "trials": 2,
        "seeds": 1,
        "final_seeds": 1,
    }
    return settings(**{**fields, **changes})


def test_a_sweep_in_one_worker(tmp_path: Path) -> None:
    folder = begun(tmp_path, small(trials=9))  # two points can run
    SweepWorker(folder).work()
    results = json.loads((tmp_path / "results.json").read_text())
    assert sorted(trial["params"]["trainer.minibatch_size"] for trial in results["trials"]) == [32, 64]
    assert {trial["state"] for trial in results["trials"]} == {"finished"}
    reasons = [one["reason"] for one in results["refused"]]
    assert any("trainer.minibatch_size=100 is not a multiple of trainer.bptt_horizon" in reason for reason in reasons)
    assert list(results["winner"]["fresh"]) == ["1001"]
    best = load(tmp_path / "best.yaml").recipe
    assert best.model_dump()["trainer"]["minibatch_size"] == results["winner"]["params"]["trainer.minibatch_size"]
    assert best.seed == load("gymnasium:CartPole-v1").recipe.seed
    text = " ".join("\n".join(show_results(read_results(folder))).split())
    assert "over 1 seed of the sweep" in text
    assert "over 1 fresh seed." in text
    assert "point: trainer.minibatch_size=100 is not a multiple" in text or "points: trainer.minibatch_size=100" in text
    assert show_status(folder).startswith("2 of 9 trials started; 2 finished.")


def test_a_trial_of_a_dead_process_goes_on_where_it_was(tmp_path: Path) -> None:
    folder = begun(tmp_path, small(trials=1, final_seeds=0))
    dead = SweepWorker(folder)
    claim = dead._claim()
    assert claim is not None
    number = claim.record.number
    assert "1 running" in show_status(folder)
    assert SweepWorker(folder)._claim() is None  # its process is alive
    claim.lock.release()  # as the end of the process does
    assert "1 paused" in show_status(folder)
    SweepWorker(folder).work()
    record = folder.trial(number)
    assert record is not None
    assert record.state == "finished"
    assert [trial.number for trial in folder.trials()] == [number]


def test_a_trial_that_kills_its_processes_is_given_up_with_a_reason(tmp_path: Path) -> None:
    folder = begun(tmp_path, small(trials=1, final_seeds=0))
    claim = SweepWorker(folder)._claim()
    assert claim is not None
    folder.save(replace(claim.record, deaths=MAX_DEATHS))
    claim.lock.release()
    SweepWorker(folder).work()
    record = folder.trial(claim.record.number)
    assert record is not None
    assert (record.state, record.reason) == ("failed", "its process died 3 times at the same place; see logs")


def test_a_failing_run_is_kept_with_its_reason_and_the_sweep_goes_on(tmp_path: Path) -> None:
    wanted = small(space={"ppo.learning_rate": {"choices": [1e-3, 1e18]}}, final_seeds=0, trials=2)
    wanted = replace(wanted, overrides={**wanted.overrides, "trainer.minibatch_size": 64, "ppo.max_grad_norm": 1e18})
    folder = begun(tmp_path, wanted)
    SweepWorker(folder).work()
    by_rate = {trial.params["ppo.learning_rate"]: trial for trial in folder.trials()}
    assert by_rate[1e-3].state == "finished"
    assert by_rate[1e18].state == "failed"
    assert "seed1" in by_rate[1e18].reason
    assert "failed:" in " ".join(show_results(read_results(folder)))


def test_hours_that_are_over_start_no_further_trial(tmp_path: Path) -> None:
    folder = begun(tmp_path, small(hours=1.0))
    replace_json(tmp_path / "sessions" / "before.json", {"began": 1000.0, "last": 1000.0 + 3700.0})
    SweepWorker(folder).work()
    assert folder.trials() == []


def test_a_trial_that_runs_out_of_hours_is_paused_and_goes_on_with_more(tmp_path: Path) -> None:
    folder = begun(tmp_path, small(hours=1.0, final_seeds=0, trials=1))
    replace_json(tmp_path / "sessions" / "before.json", {"began": 1000.0, "last": 1000.0 + 3600.0 - 0.001})
    with pytest.raises(Interrupted):
        SweepWorker(folder).work()
    (paused,) = folder.trials()
    assert (paused.state, paused.deaths) == ("running", 0)
    folder.begin(small(hours=2.0, final_seeds=0, trials=1))
    SweepWorker(folder).work()
    (done,) = folder.trials()
    assert done.state == "finished"
    (run,) = folder.runs.iterdir()
    assert [record["env_steps"] for record in read_records(run / "metrics.jsonl")] == [128.0, 256.0]


def test_points_that_do_not_fit_into_the_hours_are_not_started(tmp_path: Path) -> None:
    folder = begun(tmp_path, small(hours=1.0, trials=3, final_seeds=0))
    SweepWorker(folder)._run(claimed(folder))
    (first,) = folder.trials()
    folder.save(replace(first, seconds=3700.0))  # as if it had taken more than an hour
    SweepWorker(folder).work()
    assert len(folder.trials()) == 1
    reasons = SweepWorker(folder).study.reasons().values()
    assert any(
        re.fullmatch(r".* expected; of the .* that were left, .* were kept for the winner.*", one) for one in reasons
    )


def claimed(folder: SweepFolder):  # type: ignore[no-untyped-def]
    claim = SweepWorker(folder)._claim()
    assert claim is not None
    return claim
