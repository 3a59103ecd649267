"""The best checkpoint by evaluation of a real run: preserved, named and used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millpond.store import Checkpoints, Run, list_runs, show_runs
from millpond.store.checkpoint import read_manifest
from millpond.trainers.common.play import evaluate_run
from tests.support.ppo_runs import train_small
from tests.support.records import records

RETURN = "eval/episode_return"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run evaluated after every second iteration and saved after each, that keeps only the newest checkpoint."""
    changes = {"trainer.total_iterations": 12, "eval.interval": 2, "checkpoint.keep_last": 1, "eval.episodes": 4}
    # A learning rate so large that the policy gets worse again.
    return train_small(
        tmp_path_factory.mktemp("runs"),
        "creek",
        **changes,
        **{"ppo.learning_rate": 0.05, "seed": 3},
    ).run


def best_record(folder: Path) -> dict[str, float]:
    return max((record for record in records(folder) if RETURN in record), key=lambda record: record[RETURN])


def test_best_checkpoint_outlives_keep_last(run: Run) -> None:
    best, newest = int(best_record(run.folder)["updates"]), int(records(run.folder)[-1]["updates"])
    assert best < newest, "the run got better until its end, so this test shows nothing; change its settings"
    checkpoints = Checkpoints(run.checkpoints_path)
    assert checkpoints.updates() == [best, newest]
    assert checkpoints.best_score() == (best, best_record(run.folder)[RETURN])


def test_best_checkpoint_is_the_one_that_was_evaluated(run: Run) -> None:
    """Evaluated again on the same seeds, it has exactly the recorded return."""
    best = best_record(run.folder)
    evaluation, policy = evaluate_run(str(run.folder), episodes=4, best=True)
    assert policy.updates == best["updates"]
    assert evaluation.mean == pytest.approx(best[RETURN])
    assert evaluate_run(str(run.folder), episodes=4)[1].updates == records(run.folder)[-1]["updates"]


def test_runs_command_and_report_name_the_best_checkpoint(run: Run) -> None:
    best = best_record(run.folder)
    row = next(row for row in list_runs(run.folder.parent) if row.name == "creek")
    assert (row.best_checkpoint, row.best_score) == (best["updates"], best[RETURN])
    newest = [record for record in records(run.folder) if RETURN in record][-1]
    assert (row.headline, row.result) == (RETURN, newest[RETURN])
    assert show_runs([row]).splitlines()[1].split()[:3] == ["creek", f"{newest[RETURN]:.4g}", f"{best[RETURN]:.4g}"]
    text = run.report_path.read_text()
    assert f"after {int(best['updates'])} updates, return {best[RETURN]:.4g}" in text


def test_checkpoint_between_evaluations_has_no_score(tmp_path: Path) -> None:
    """Saved after every iteration, evaluated after every second: a score belongs to the evaluated policy."""
    trainer = train_small(tmp_path, "brook", **{"trainer.total_iterations": 4, "checkpoint.keep_last": 10})
    evaluated = {int(record["updates"]): record.get(RETURN) for record in records(trainer.run.folder)}
    checkpoints = Checkpoints(trainer.run.checkpoints_path)
    saved = {updates: read_manifest(checkpoints.path(updates))["score"] for updates in checkpoints.updates()}
    assert saved == evaluated
    assert next(iter(saved.values())) is None
    assert json.loads((trainer.run.folder / "state.json").read_text())["state"] == "finished"
