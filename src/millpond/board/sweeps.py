"""A sweep for its page: trials with their points and scores, the Pareto front, importance, and the winner on fresh seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from millpond.errors import MillpondError
from millpond.safe_read import read_json_object
from millpond.sweep.folder import SweepFolder, TrialRecord

RESULTS = "results.json"
MAX_TRIALS = 2000


def sweep_details(path: Path) -> dict[str, Any]:
    """Return the state of a sweep. What cannot be read is named in `problems`."""
    folder, problems = SweepFolder(path), []
    try:
        settings = folder.settings()
        trials = folder.trials()[:MAX_TRIALS]
        hours = folder.seconds_spent() / 3600
    except (MillpondError, OSError, TypeError, KeyError, ValueError, AttributeError) as error:
        return {"problems": [f"{type(error).__name__}: {error}"], "trials": []}
    results: dict[str, Any] = {}
    if (path / RESULTS).exists():
        try:
            results = read_json_object(path / RESULTS)
        except MillpondError as error:
            problems.append(str(error))
    rows = [_trial(trial, settings.seeds) for trial in trials]
    return {
        "settings": asdict(settings),
        "trials": rows,
        "pareto": pareto_front(rows, minimize=settings.minimize),
        "importance": results.get("importance", {}),
        "winner": results.get("winner"),
        "refused": len(results.get("refused", [])),
        "hours": {"planned": settings.hours, "spent": hours},
        "problems": problems,
    }


def _trial(trial: TrialRecord, seeds: int) -> dict[str, Any]:
    rung = next((rung for rung in reversed(trial.rungs) if rung.mean is not None), None)
    return {
        "number": trial.number,
        "params": trial.params,
        "state": trial.state,
        "reason": trial.reason[:500],
        "score": None if rung is None else rung.mean,
        "low": None if rung is None else rung.low,
        "high": None if rung is None else rung.high,
        "at": 0.0 if rung is None else rung.fraction,
        "hours": trial.hours_per_run(seeds),
    }


def pareto_front(trials: Sequence[dict[str, Any]], *, minimize: bool = False) -> list[int]:
    """Return the numbers of the finished trials that no other beats in both score and hours, the fastest first."""
    sign = -1.0 if minimize else 1.0
    finished = [trial for trial in trials if trial["state"] == "finished" and trial["score"] is not None]
    front, best = [], float("-inf")
    for trial in sorted(finished, key=lambda trial: (trial["hours"], -sign * trial["score"])):
        if sign * trial["score"] > best:
            best = sign * trial["score"]
            front.append(trial["number"])
    return front
