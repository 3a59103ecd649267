"""Training of a trial: all of its seeds from rung to rung, each from its own checkpoint, so that nothing is trained twice."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from millpond.config import load
from millpond.errors import MillpondError
from millpond.experiments.statistics import is_worse, mean_interval
from millpond.record import last_record, read_records
from millpond.store import read_status
from millpond.store.folder import CONFIG, METRICS, is_run
from millpond.sweep.folder import Rung, SweepFolder, SweepSettings, TrialRecord, rung_at, with_rung
from millpond.sweep.points import SweepPoint, run_overrides
from millpond.trainers.common.callbacks import Event
from millpond.trainers.common.interface import resume_trained, train_new
from millpond.trainers.common.play import evaluate_run

RETURN = "return"
EVALUATED = "eval/episode_return"
FEWEST = 4  # trials of one seed that must have reached a rung before one of them is stopped there
FRESH_EVALUATION_SEED = 9_000_003  # first evaluation seed of the winner's runs on fresh seeds


class Interrupted(Exception):
    """The process was told to stop, or the hours are over; what was trained is saved."""


class TrialFailed(MillpondError):
    """A run of a trial ended with an error."""


class StopAt:
    """A callback that stops a run when a number of steps is reached, or when time is over."""

    def __init__(self, steps: int, counter: str, seconds: float | None) -> None:
        self._steps, self._counter = steps, counter
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self.reached = False
        self.out_of_time = False

    def on_iteration(self, event: Event) -> None:
        if event.counters[self._counter] >= self._steps:
            self.reached = True
            event.stop("the next rung of its sweep")
        elif self._deadline is not None and time.monotonic() >= self._deadline:
            self.out_of_time = True
            event.stop("the hours of its sweep are over")


def train_to(
    folder: SweepFolder,
    name: str,
    recipe: str,
    overrides: dict[str, Any],
    steps: int,
    fraction: float,
    *,
    acts: bool,
    seconds: float | None,
    trust: bool | None,
) -> None:
    """Start or resume a run, and train it to a fraction of its `steps`.

    Raises `Interrupted` if it was stopped before, and `TrialFailed` if it ended with an error.
    """
    path = folder.runs / name
    started = is_run(path)
    if started and read_status(path).state == "finished":
        return
    counter = "env_steps" if acts else "updates"
    target = math.ceil(steps * fraction) if fraction < 1 else math.inf
    record = last_record(path / METRICS) if started else None
    if record is not None and record[counter] >= target and read_status(path).state == "stopped":
        return
    if seconds is not None and seconds <= 0:
        raise Interrupted("the hours of the sweep are over")
    stop = StopAt(target, counter, seconds)  # type: ignore[arg-type]
    try:
        if started:
            resume_trained(path, {}, callbacks=stop, trust=trust, report=False)
        else:
            settings = {**overrides, "run_dir": str(folder.runs)}
            train_new(recipe, settings, callbacks=stop, run=name, trust=trust, report=False)
    except MillpondError as error:
        raise TrialFailed(f"{name}: {error}") from error
    except Exception as error:
        raise TrialFailed(f"{name}: {type(error).__name__}: {error}") from error
    if not stop.reached and read_status(path).state != "finished":
        raise Interrupted("the hours of the sweep are over" if stop.out_of_time else "stopped")


def score_of(path: Path, metric: str, *, trust: bool | None) -> float:
    """Return the score of a run at its newest checkpoint: the mean return of an evaluation, or a metric's newest value."""
    if metric == RETURN:
        finished = read_status(path).state == "finished"
        record = last_record(path / METRICS) if finished else None
        if record is not None and EVALUATED in record:
            return record[EVALUATED]
        episodes = load(path / CONFIG).recipe.eval.episodes
        try:
            evaluation, _ = evaluate_run(str(path), episodes=episodes, trust=trust)
        except MillpondError as error:
            raise TrialFailed(f"{path.name} cannot be evaluated: {error}") from error
        return evaluation.mean
    values = [record[metric] for record in read_records(path / METRICS) if metric in record]
    if not values:
        raise TrialFailed(f"{path.name} has not recorded {metric}; see docs/metrics.md for names")
    return values[-1]


def run_trial(
    folder: SweepFolder,
    settings: SweepSettings,
    record: TrialRecord,
    point: SweepPoint,
    *,
    deadline: float | None,
    trust: bool | None,
) -> TrialRecord:
    """Train a trial to its end, or to the rung at which it is stopped; return its record, which is saved as it grows.

    `deadline` is on the clock of `time.monotonic`.
    """
    acts = point.planned.loaded.recipe.acts
    for fraction in settings.rungs:
        rung = rung_at(record, fraction)
        for seed in range(1, settings.seeds + 1):
            if str(seed) in rung.scores:
                continue
            name = folder.run_name(record.number, seed)
            overrides = {**run_overrides(settings, record.params), "seed": seed}
            train_to(
                folder,
                name,
                settings.recipe,
                overrides,
                point.steps,
                fraction,
                acts=acts,
                seconds=None if deadline is None else deadline - time.monotonic(),
                trust=trust,
            )
            score = score_of(folder.runs / name, settings.metric, trust=trust)
            rung = Rung(fraction, {**rung.scores, str(seed): score})
            seconds, steps = _trained(folder, settings, record.number, "env_steps" if acts else "updates")
            record = folder.save(replace(with_rung(record, rung), seconds=seconds, steps=steps, deaths=0))
        record = folder.save(with_rung(record, complete(rung)))
        if fraction < 1:
            reason = poor(record, fraction, folder.trials(), settings)
            if reason:
                return folder.save(replace(record, state="stopped", reason=reason, ended=time.time()))
    return folder.save(replace(record, state="finished", ended=time.time()))


def complete(rung: Rung) -> Rung:
    """Return a rung with the mean of all seeds and its interval."""
    scores = list(rung.scores.values())
    interval = mean_interval(scores)
    low, high = interval if interval is not None else (None, None)
    return replace(rung, mean=float(np.mean(scores)), low=low, high=high)


def poor(record: TrialRecord, fraction: float, trials: Sequence[TrialRecord], settings: SweepSettings) -> str:
    """Return why a trial is stopped at a rung, or an empty text.

    With several seeds it is stopped if it is worse than the best trial at this rung with 95 % confidence. A single seed
    has no interval: then it is stopped if it is not in the better half, once `FEWEST` trials are there. Nothing is stopped
    if hours are an objective, too: a poor trial may be the best of the short ones.
    """
    if len(settings.objectives) > 1:
        return ""
    sign = -1.0 if settings.minimize else 1.0
    at = {
        trial.number: [sign * score for score in rung_at(trial, fraction).scores.values()]
        for trial in trials
        if rung_at(trial, fraction).mean is not None
    }
    own = at.pop(record.number)
    if not at:
        return ""
    best = max(at, key=lambda number: float(np.mean(at[number])))
    where = f"after {fraction:.0%} of its runs"
    ours, theirs = sign * float(np.mean(own)), sign * float(np.mean(at[best]))
    if settings.seeds == 1:
        better = sum(np.mean(other) > np.mean(own) for other in at.values())
        if len(at) + 1 >= FEWEST and 2 * better >= len(at) + 1:
            return f"{ours:.4g} {where}: not in the better half of {len(at) + 1} trials"
        return ""
    if is_worse(own, at[best]):
        return f"{ours:.4g} {where}: worse than trial {best} ({theirs:.4g}) with 95 % confidence"
    return ""


def _trained(folder: SweepFolder, settings: SweepSettings, number: int, counter: str) -> tuple[float, int]:
    """Return seconds and steps of a trial's runs so far."""
    seconds, steps = 0.0, 0
    for seed in range(1, settings.seeds + 1):
        record = last_record(folder.runs / folder.run_name(number, seed) / METRICS)
        if record is not None:
            seconds, steps = seconds + record["seconds"], steps + int(record[counter])
    return seconds, steps


def run_winner_seed(
    folder: SweepFolder,
    settings: SweepSettings,
    winner: TrialRecord,
    point: SweepPoint,
    seed: int,
    *,
    deadline: float | None,
    trust: bool | None,
) -> float:
    """Train the winner on a fresh seed, evaluate it on fresh episodes, and return its score."""
    name = folder.winner_run_name(winner.number, seed)
    overrides = {
        **run_overrides(settings, winner.params),
        "seed": seed,
        "eval.seed": FRESH_EVALUATION_SEED,
    }
    left = None if deadline is None else deadline - time.monotonic()
    acts = point.planned.loaded.recipe.acts
    train_to(folder, name, settings.recipe, overrides, point.steps, 1.0, acts=acts, seconds=left, trust=trust)
    return score_of(folder.runs / name, settings.metric, trust=trust)
