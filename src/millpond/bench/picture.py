"""One iteration as a waterfall: what each phase took, and beside it the same work alone and at its limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from millpond.bench.result import Bench
from millpond.bench.show import waterfall
from millpond.planner.estimate import duration

TAKEN, ALONE, LIMIT = "#0b6e99", "#edae49", "#444444"
STAGES = {"waiting for envs": "vector", "inference": "inference", "storing": "storing", "advantage": "advantage",
          "training": "training", "loop and records": "loop"}  # fmt: skip


def draw_bench(bench: Bench, path: Path) -> None:
    """Write the picture in the format that the path's ending names."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axis: Any = figure.subplots()
    stages = {stage.name: stage for stage in bench.stages}
    phases = waterfall(bench)
    whole = bench.iteration.seconds.median
    for row, (name, first, last) in enumerate(phases):
        axis.barh(row, last - first, left=first, height=0.5, color=TAKEN, label="in the run" if row == 0 else None)
        axis.text(last + whole * 0.008, row, f"{duration(last - first)} ({(last - first) / whole:.0%})", va="center")
        stage = stages.get(STAGES.get(name, ""))
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
    bare = bench.iteration.bare.seconds
    axis.axvline(bare, color="#d1495b", linestyle="--", linewidth=1, label=f"bare arithmetic {duration(bare)}")
    axis.set_yticks(range(len(phases)), [name for name, _, _ in phases])
    axis.invert_yaxis()
    axis.set_xlim(0, max(whole, bare) * 1.18)
    axis.set_xlabel("seconds")
    sizes = bench.sizes
    axis.set_title(
        f"{bench.recipe}: an iteration of {sizes['agent_steps']:,} agent steps in {duration(whole)}\n{bench.machine}",
        fontsize=10,
    )
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8, loc="lower left", ncols=2)
    figure.savefig(path, dpi=140, metadata={"Date": None} if path.suffix == ".svg" else None)
