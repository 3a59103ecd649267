"""Real iterations of a recipe on a device: times of its units of work, agent steps per second, peak memory."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import torch

from millpond.bench.gpu.hardware import ReportEffort, synchronizer
from millpond.bench.measure import Effort, Progress, limit_seconds
from millpond.bench.run import TIMED_RUN, KindBench
from millpond.config.check import flatten
from millpond.kinds import KINDS
from millpond.loop import LevelEnd
from millpond.planner import plan_loaded
from millpond.trainers.common.session import load_to_run, make_trainer, require_trainer, start_run

# What a recipe is measured with, by name; a variant whose keys a recipe does not have is left out.
VARIANTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "TF32": {"trainer.matmul_precision": "high"},
    "bfloat16": {"trainer.precision": "bfloat16"},
    "graphs": {"trainer.graphs": True},
    "graphs and TF32": {"trainer.graphs": True, "trainer.matmul_precision": "high"},
}
EVALUATING = ("evaluate", "test")  # phases that are not part of an iteration's time


@dataclass(frozen=True)
class Moment:
    """The state of a run at the end of an iteration."""

    seconds: float
    phases: dict[str, float]
    units: dict[str, int]
    agent_steps: int
    updates: int


def variants_of(recipe: str, device: str, preset: str | None) -> dict[str, dict[str, Any]]:
    """Return the variants that a recipe has keys for, and that are not what it has anyway."""
    flat = flatten(load_to_run(recipe, {"device": device}, preset, trust=True).recipe)
    return {
        name: changes
        for name, changes in VARIANTS.items()
        if all(key in flat and flat[key] != value for key, value in changes.items())
    }


def time_recipe(
    recipe: str,
    device: torch.device,
    changes: Mapping[str, Any],
    effort: ReportEffort,
    folder: Path,
    progress: Progress,
) -> dict[str, Any]:
    """Train a few iterations of a recipe at its own sizes and return their times; the first does not count.

    The host waits for the device at the end of each phase, so that its time counts where it belongs. `agent_steps_per_second`
    is therefore a lower bound.
    """
    preset = "debug" if effort.quick else None
    settings = {**changes, "device": str(device)}
    requested = load_to_run(recipe, settings, preset, trust=True)
    kind: KindBench = KINDS[requested.recipe.kind].bench.load()
    short = kind.settings(requested, Effort(iterations=effort.iterations))
    timed = load_to_run(recipe, {**settings, **TIMED_RUN, **short, "run_dir": str(folder)}, preset, trust=True)
    recorded = require_trainer(timed)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    moments: list[Moment] = []
    with redirect_stdout(StringIO()):
        trainer: Any = make_trainer(timed, start_run(timed, None, recorded=recorded), recorded=recorded)
        try:
            trainer.timer.wait = synchronizer(device)
            trainer.loop.at_end(kind.level, lambda ended: moments.append(take_moment(trainer, kind, ended)))
            limit_seconds(trainer.loop, kind.level, progress, effort.seconds)
            trainer.train()
        finally:
            trainer.close()
    found = between(moments, kind.units(trainer))
    found["sizes"] = plan_loaded(timed).plan.to_json()
    found["changes"] = dict(changes)
    if device.type == "cuda":
        found["peak_bytes"] = torch.cuda.max_memory_allocated(device)
        found["reserved_bytes"] = torch.cuda.max_memory_reserved(device)
    return found


def take_moment(trainer: Any, kind: KindBench, ended: LevelEnd) -> Moment:
    """Return the state of a run now."""
    units = {name: unit.count for name, unit in kind.units(trainer).items()}
    return Moment(
        time.perf_counter(), trainer.timer.totals(), units, trainer.counters.agent_steps, trainer.counters.updates
    )


def between(moments: list[Moment], units: Mapping[str, Any]) -> dict[str, Any]:
    """Return times per iteration and per unit of work between the first moment and the last."""
    first, last = moments[0], moments[-1]
    count, seconds = len(moments) - 1, last.seconds - first.seconds
    if count < 1:
        raise ValueError("at least two iterations must be measured")
    phases = {name: total - first.phases.get(name, 0.0) for name, total in last.phases.items()}
    seconds -= sum(phases.get(name, 0.0) for name in EVALUATING)
    done = {name: number - first.units.get(name, 0) for name, number in last.units.items()}
    return {
        "iterations": count,
        "seconds_per_iteration": seconds / count,
        "phases": {name: total / count for name, total in phases.items()},
        "agent_steps_per_second": (last.agent_steps - first.agent_steps) / seconds,
        "updates_per_second": (last.updates - first.updates) / seconds,
        "units": {
            name: {"count": number, "milliseconds": 1_000 * phases.get(units[name].phase, 0.0) / number}
            for name, number in done.items()
            if number
        },
    }
