"""Count what a run asks of a GPU, on the emulated device: launches, copies and waits by phase and by line of code."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from typing import Any

from millpond.bench.run import Unit
from millpond.config import Loaded
from millpond.devices import EMULATED
from millpond.devices.counts import KINDS, Counts, counting
from millpond.errors import MillpondError
from millpond.formatting import sentence, table
from millpond.kinds import KINDS as KINDS_OF_RECIPE
from millpond.trainers.common.session import load_to_run, make_trainer, require_trainer, start_run

PLACES = 8  # lines of code that are shown of each kind


@dataclass(frozen=True)
class EmulatedRun:
    """Counts of a whole run, how often each of its phases was entered, and what was done in them."""

    recipe: str
    counts: Counts
    entered: Mapping[str, int]
    units: Mapping[str, Unit]

    def per_unit(self, name: str) -> dict[str, float]:
        """Return the counts of the phase in which a unit of work is done, per unit."""
        unit = self.units[name]
        return {kind: count / max(1, unit.count) for kind, count in self.counts.totals(unit.phase).items()}

    def per_entry(self, phase: str) -> dict[str, float]:
        """Return the counts of a phase, and of those inside it, per time that it was entered."""
        times = max(1, self.entered.get(phase, 0))
        return {kind: count / times for kind, count in self.counts.totals(phase).items()}

    def to_json(self) -> dict[str, Any]:
        return {
            "recipe": self.recipe,
            "units": {
                name: {"phase": unit.phase, "count": unit.count, "each": self.per_unit(name)}
                for name, unit in self.units.items()
            },
            "phases": {phase: {"entered": times, **self.counts.totals(phase)} for phase, times in self.entered.items()},
            "places": {kind: dict(self.counts.at(kind)) for kind in KINDS},
            "bytes": {kind: self.counts.bytes[kind] for kind in KINDS if self.counts.bytes[kind]},
        }


def count_run(recipe: str, overrides: Iterable[str] = (), *, trust: bool | None = None) -> EmulatedRun:
    """Train the preset `debug` of a recipe on the emulated device, in a temporary folder, and count."""
    settings = [*overrides]
    if any(setting.partition("=")[0].strip() in ("device", "run_dir") for setting in settings):
        raise MillpondError("the emulated device and a temporary folder are used here: leave out device= and run_dir=")
    with tempfile.TemporaryDirectory() as folder:
        ours = [f"device={EMULATED}", f"run_dir={folder}", "log.tensorboard=false"]
        return count_loaded(load_to_run(recipe, [*settings, *ours], "debug", trust=trust))


def count_loaded(loaded: Loaded) -> EmulatedRun:
    """Train a loaded config and count; its device is the emulated one."""
    recorded = require_trainer(loaded)
    trainer: Any = make_trainer(loaded, start_run(loaded, None, recorded=recorded), recorded=recorded)
    try:
        with counting(lambda: str(trainer.timer.current.path)) as counts, redirect_stdout(StringIO()):
            trainer.train()
    finally:
        trainer.close()
    units = KINDS_OF_RECIPE[loaded.recipe.kind].bench.load().units(trainer)
    return EmulatedRun(loaded.name, counts, trainer.timer.entered(), units)


def show_run(run: EmulatedRun) -> list[str]:
    """Return tables of counts per phase, and of the lines of code that cause most of them."""
    names = [f"{kind}s" if kind != "launch" else "launches" for kind in KINDS]
    of_units = [
        (name, f"{unit.count:,}", *(f"{run.per_unit(name)[kind]:,.1f}" for kind in KINDS))
        for name, unit in run.units.items()
    ]
    header = ("phase", "times", *names)
    rows = [
        (phase, f"{times:,}", *(f"{run.per_entry(phase)[kind]:,.1f}" for kind in KINDS))
        for phase, times in run.entered.items()
        if any(run.counts.totals(phase).values())
    ]
    lines = [f"{run.recipe}, preset debug, on the emulated device", ""]
    lines += [*table(("for one", "of", *names), of_units), ""]
    lines += table(header, rows)
    for kind in KINDS:
        found = run.counts.at(kind)
        if found:
            lines += ["", f"{kind}: {run.counts.of(kind):,} in all"]
            lines += [f"  {count:>7,}  {place}" for place, count in found[:PLACES]]
    note = (
        "An operation of torch counts as one launch, and so does a kernel of Millpond. A blocking upload comes from "
        "memory that is not pinned. Numbers are computed on the CPU; nothing here says how fast a GPU is: docs/gpu.md."
    )
    return [*lines, "", *sentence(note)]
