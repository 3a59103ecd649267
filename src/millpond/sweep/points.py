"""The check of a point before it runs: can it run at all, how long will it take, and how much memory does it need?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from millpond.config import Loaded
from millpond.errors import MillpondError
from millpond.formatting import size
from millpond.planner import Host, Planned, plan_loaded
from millpond.planner.estimate import duration, read_measured, settings_of
from millpond.sweep.folder import SweepSettings, TrialRecord
from millpond.trainers.common.session import load_to_run, require_trainer

# Settings of a trial's runs that its point does not decide. The overrides of the user take precedence.
OF_A_RUN: dict[str, Any] = {
    "log.tensorboard": False,
    "eval.interval": None,  # a trial is evaluated at its rungs
    "checkpoint.keep_last": 1,
    "vector.backend": "inline",  # the workers are parallel, and each has one core
}


class PointRefused(MillpondError):
    """A point that cannot run; the message is the rule."""


@dataclass(frozen=True)
class Cost:
    """Expected cost of a trial: seconds of one run and where they come from, bytes of one run."""

    seconds: float | None
    source: str
    memory: int | None

    def describe(self, seeds: int) -> str:
        """Return the cost in words."""
        if self.seconds is None:
            return "how long a trial takes is not known yet: `millpond bench RECIPE` measures it, and so do the first trials"
        buffers = f", each run with buffers of {size(self.memory)}" if self.memory is not None else ""
        return f"a trial takes {duration(self.seconds * seeds)} ({self.source}){buffers}"


@dataclass(frozen=True)
class SweepPoint:
    """A point that can run."""

    params: dict[str, Any]
    planned: Planned
    cost: Cost
    speed_settings: str

    @property
    def steps(self) -> int:
        return steps_of(self.planned)


def steps_of(planned: Planned) -> int:
    """Return the env steps of a run, or its updates if no agent acts."""
    return planned.plan.env_steps_in_run or planned.plan.updates_in_run


def run_overrides(settings: SweepSettings, params: dict[str, Any]) -> dict[str, Any]:
    """Return the overrides of a trial's runs, without seed and folder."""
    return {**OF_A_RUN, **settings.overrides, **params}


def check_point(
    settings: SweepSettings,
    params: dict[str, Any],
    trials: Sequence[TrialRecord] = (),
    *,
    at_once: int = 1,
    trust: bool | None = None,
) -> SweepPoint:
    """Return the point with its cost; raise `PointRefused` with the rule if it cannot run."""
    try:
        loaded = load_to_run(settings.recipe, run_overrides(settings, params), trust=trust)
        require_trainer(loaded)
        planned = plan_loaded(loaded, host=Host.here(), measured=read_measured())
    except MillpondError as error:
        raise PointRefused(str(error)) from error
    cost = expected_cost(loaded, planned, trials)
    memory = Host.here().memory
    if cost.memory is not None and memory and cost.memory * at_once > memory:
        workers = f" for each of {at_once} workers" if at_once > 1 else ""
        raise PointRefused(f"a run needs {size(cost.memory)}{workers}, and this machine has {size(memory)}")
    return SweepPoint(params, planned, cost, settings_of(loaded.recipe))


def expected_cost(loaded: Loaded, planned: Planned, trials: Sequence[TrialRecord]) -> Cost:
    """Return the cost of a run: from trials that have trained, or from the bench of this machine.

    Trials whose speed depends on the same settings are the best source. Else the bench's estimate is scaled by how long
    trials took against it; without a bench, all trials have the same seconds per step.
    """
    memory = planned.plan.to_json().get("memory_bytes")
    steps, settings = steps_of(planned), settings_of(loaded.recipe)
    trained = [trial for trial in trials if trial.steps]
    alike = [trial.seconds / trial.steps for trial in trained if trial.speed_settings == settings]
    if alike:
        return Cost(median(alike) * steps, "as trials with the same sizes", memory)
    if planned.estimate is not None:
        return Cost(planned.estimate.seconds, "from the bench", memory)
    if trained:
        per_step = median(trial.seconds / trial.steps for trial in trained)
        return Cost(per_step * steps, "as the other trials", memory)
    return Cost(None, "", memory)
