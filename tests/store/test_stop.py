"""The request to stop: a file in the run's folder."""

from __future__ import annotations

from pathlib import Path

import pytest

import millpond
from millpond.store import read_status
from millpond.store.stop import REASON, STOP, request_stop
from tests.support.mixture_runs import SMALL as SMALL_MIXTURE
from tests.support.ppo_runs import SMALL
from tests.support.records import records


def stop_at(iteration: int):
    """Return a callback that requests the stop before the record of an iteration is written."""
    seen = 0

    def callback(event: millpond.Event) -> None:
        nonlocal seen
        seen += 1
        if seen == iteration:
            request_stop(event.run.folder)

    return callback


def train(folder: Path, recipe: str, settings: dict, name: str, **options) -> millpond.Run:
    return millpond.train(recipe, run=name, overrides={**settings, "run_dir": str(folder)}, **options)


def test_run_stops_after_the_iteration_saves_and_resumes_exactly(tmp_path: Path) -> None:
    whole = train(tmp_path, "grid", SMALL, "whole")
    run = train(tmp_path, "grid", SMALL, "cut", callbacks=stop_at(2))
    status = read_status(run.folder)
    assert (status.state, status.note) == ("stopped", REASON)
    assert len(records(run.folder)) == 2
    assert not (run.folder / STOP).exists()
    request_stop(run.folder)  # after its end: the next session forgets it
    resumed = millpond.resume(run)
    assert read_status(run.folder).state == "finished"
    assert not (run.folder / STOP).exists()
    assert records(resumed.folder) == records(whole.folder)


@pytest.mark.slow
def test_mixture_stops_too(tmp_path: Path) -> None:
    run = train(tmp_path, "mixture", SMALL_MIXTURE, "mix", callbacks=stop_at(1))
    assert read_status(run.folder).note == REASON
