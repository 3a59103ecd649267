"""A bench as text: limits, stages, and one iteration as a waterfall; and the waterfall as a picture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from millpond.bench.result import Arithmetic, Bench, KindBench, Stage
from millpond.bench.timing import Spread
from millpond.kinds import KINDS
from millpond.planner.estimate import duration
from millpond.planner.lines import bar, figures, sentence, size, table
from millpond.plurals import plural

WALL = 32  # characters of the waterfall


def show_bench(bench: Bench) -> list[str]:
    """Everything that was measured."""
    lines = [
        f"bench of {bench.recipe}{' (quick: tiny sizes, figures that say nothing)' if bench.quick else ''}",
        *sentence(f"{bench.machine}; torch {bench.versions.get('torch', '?')}, {bench.threads} threads"),
        *sentence(_kind(bench).opening(bench.sizes, bench.vector, bench.precision)),
    ]
    if bench.limits is not None:
        lines += _limits(bench)
        lines += _stages(bench)
    return [*lines, *_waterfall(bench), *_iteration(bench)]


def waterfall(bench: Bench) -> list[tuple[str, float, float]]:
    """Name, beginning and end in seconds of each phase of an iteration, laid end to end."""
    found, at, kind = [], 0.0, _kind(bench)
    for phase, name in kind.phases.items():
        seconds = bench.iteration.phases.get(phase, 0.0)
        if not seconds and not kind.every_phase:  # a mode that does not have it
            continue
        found.append((name, at, at + seconds))
        at += seconds
    return found


def _limits(bench: Bench) -> list[str]:
    limits = bench.limits
    assert limits is not None
    rows = [
        ("matrix product, float32", f"{limits.float32 / 1e9:,.1f} GFLOP/s"),
        (
            "matrix product, bfloat16",
            f"{limits.bfloat16 / 1e9:,.1f} GFLOP/s" if limits.bfloat16 else "does not work on this processor",
        ),
        ("memory copy", f"{size(limits.memory)}/s"),
        ("disk write, synced", f"{size(limits.disk_write)}/s"),
        ("disk read, not cached", f"{size(limits.disk_read)}/s"),
    ]
    return ["", "Limits of this machine", *figures(rows)]


def _stages(bench: Bench) -> list[str]:
    header = ("stage", "alone", "a second", "in a run", "share", "limit", "of limit")
    rows = [_stage(bench, stage) for stage in bench.stages]
    return ["", "Stages", *table(header, rows), *sentence(_kind(bench).notes)]


def _stage(bench: Bench, stage: Stage) -> list[str]:
    share, of_limit = bench.of_iteration(stage), stage.of_limit
    return [
        stage.name,
        duration(stage.alone),
        _rate(stage.rate),
        "" if stage.together is None else duration(stage.together),
        "" if share is None else f"{share:.1%}",
        stage.limit,
        "" if of_limit is None else f"{of_limit:.1%}",
    ]


def _rate(rate: float) -> str:
    for unit, text in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if rate >= unit:
            return f"{rate / unit:.3g}{text}"
    return f"{rate:.3g}"


def _waterfall(bench: Bench) -> list[str]:
    phases = waterfall(bench)
    whole = max(phases[-1][2], 1e-12)
    name_width = max(len(name) for name, _, _ in phases)
    lines = ["", f"One {_kind(bench).whole}"]
    for name, first, last in phases:
        seconds = last - first
        shown = bar(first, last, whole, WALL)
        lines.append(f"  {name:<{name_width}}  {shown}  {duration(seconds):>8}  {seconds / whole:6.1%}")
    return lines


def _iteration(bench: Bench) -> list[str]:
    found = bench.iteration
    whole = _kind(bench).whole
    took = (f"{'an' if whole == 'iteration' else 'a'} {whole}", duration(found.seconds.median))
    if found.bare is None or found.ratio is None:
        return ["", *figures([(*took, _spread(found.seconds, duration))])]
    rows = [
        (*took, _spread(found.seconds, duration)),
        ("bare network arithmetic", duration(found.bare.seconds), _parts(found.bare)),
        ("iteration / bare", f"{found.ratio.median:.3f}", _spread(found.ratio, "{:.3f}".format)),
    ]
    plain = [
        [
            name,
            duration(reference.seconds),
            duration(reference.inference.median),
            duration(reference.training.median),
            f"{found.reference_ratios[name].median:.3f}",
            f"{found.reference_ratios[name].low:.3f} to {found.reference_ratios[name].high:.3f}",
        ]
        for name, reference in found.references.items()
    ]
    notes = sentence(
        "Bare: the same policy acts on as many steps and is trained as often, on ready data, between the iterations. "
        "Plain: nn.Linear on the flat observation, torch's recurrent layer, linear heads. Each is run in part and "
        "scaled up. Without instructions for bfloat16 the processor emulates it, and the float32 ones are what counts."
    )
    header = ("plain network", "seconds", "inference", "updates", "bare / plain", "spread")
    return ["", "Against the arithmetic of the network alone", *figures(rows), "", *table(header, plain), *notes]


def _parts(arithmetic: Arithmetic) -> str:
    return f"inference {duration(arithmetic.inference.median)}, updates {duration(arithmetic.training.median)}"


def _spread(spread: Spread, show: Callable[[float], str]) -> str:
    return f"median of {spread.count}; {show(spread.low)} to {show(spread.high)}"


# -- One iteration as a waterfall: what each phase took, and beside it the same work alone and at its limit.

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
    whole, kind = phases[-1][2], _kind(bench)
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
    name, unit = _kind(bench).size
    return plural(bench.sizes[name], unit)


def _kind(bench: Bench) -> KindBench:
    return KINDS[bench.kind].bench.load()
