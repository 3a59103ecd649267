"""One iteration as a waterfall: what each phase took, and beside it the same work alone and at its limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from millpond.bench.kinds import KINDS
from millpond.bench.result import Bench
from millpond.bench.show import waterfall
from millpond.planner.estimate import duration
from millpond.plurals import plural

TAKEN, ALONE, LIMIT = "#0b6e99", "#edae49", "#444444"


def draw_bench(bench: Bench, path: Path) -> None:
    """Write the picture in the format that the path's ending names."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axis: Any = figure.subplots()
    stages = {stage.name: stage for stage in bench.stages}
    phases = waterfall(bench)
    whole, kind = phases[-1][2], KINDS[bench.kind]
    for row, (name, first, last) in enumerate(phases):
        axis.barh(row, last - first, left=first, height=0.5, color=TAKEN, label="in the run" if row == 0 else None)
        axis.text(last + whole * 0.008, row, f"{duration(last - first)} ({(last - first) / whole:.0%})", va="center")
        stage = stages.get(kind.stages.get(name, ""))
        if stage is not None:
            axis.barh(
                row + 0.33, stage.alone, left=first, height=0.12, color=ALONE, label="alone" if row == 0 else None
            )
            if stage.at_best is not None:
                axis.barh(
                    row + 0.45,
                    stage.at_best,
                    left=first,
                    height=0.08,
                    color=LIMIT,
                    label="at its limit" if row == 0 else None,
                )
    longest = whole
    if bench.iteration.bare is not None:
        bare = bench.iteration.bare.seconds
        axis.axvline(bare, color="#d1495b", linestyle="--", linewidth=1, label=f"bare arithmetic {duration(bare)}")
        longest = max(whole, bare)
    axis.set_yticks(range(len(phases)), [name for name, _, _ in phases])
    axis.invert_yaxis()
    axis.set_xlim(0, longest * 1.18)
    axis.set_xlabel("seconds")
    size = _size(bench)
    axis.set_title(f"{bench.recipe}: one {kind.whole} of {size} in {duration(whole)}\n{bench.machine}", fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8, loc="lower left", ncols=2)
    figure.savefig(path, dpi=140, metadata={"Date": None} if path.suffix == ".svg" else None)


def _size(bench: Bench) -> str:
    names = {"ppo": "agent_steps", "mixture": "env_steps_per_round", "reward": "batches"}
    units = {"ppo": "agent step", "mixture": "env step", "reward": "batch"}
    return plural(bench.sizes[names[bench.kind]], units[bench.kind])
