"""A bench as text: limits, stages, and one iteration as a waterfall; and the waterfall as a picture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from millpond.bench.measure import Spread, Stage
from millpond.bench.run import Arithmetic, Bench, KindBench
from millpond.formatting import bar, figures, plural, sentence, size, table
from millpond.kinds import KINDS
from millpond.planner.estimate import duration

WATERFALL_WIDTH = 32  # characters
IN_RUN, ALONE, LIMIT = "#0b6e99", "#edae49", "#444444"


def show_bench(bench: Bench) -> list[str]:
    """Return the lines that `millpond bench` prints."""
    lines = [
        f"bench of {bench.recipe}{' (quick: tiny sizes, the numbers mean nothing)' if bench.quick else ''}",
        *sentence(f"{bench.machine}; torch {bench.versions.get('torch', '?')}, {bench.threads} threads"),
        *sentence(_kind(bench).describe(bench.sizes, bench.vector, bench.precision)),
    ]
    if bench.limits is not None:
        lines += _limits(bench)
        lines += _stages(bench)
    return [*lines, *_waterfall(bench), *_iteration(bench), *_products(bench)]


def waterfall(bench: Bench) -> list[tuple[str, float, float]]:
    """Return name, start and end in seconds of each phase of an iteration, one after the other."""
    phases, at, kind = [], 0.0, _kind(bench)
    for phase, name in kind.phases.items():
        seconds = bench.iteration.phases.get(phase, 0.0)
        if not seconds and not kind.show_empty_phases:  # a mode without this phase
            continue
        phases.append((name, at, at + seconds))
        at += seconds
    return phases


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
    header = ("stage", "alone", "per second", "in a run", "share", "limit", "of limit")
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
    total = max(phases[-1][2], 1e-12)
    name_width = max(len(name) for name, _, _ in phases)
    lines = ["", f"One {_kind(bench).level}"]
    for name, first, last in phases:
        seconds = last - first
        drawn = bar(first, last, total, WATERFALL_WIDTH)
        lines.append(f"  {name:<{name_width}}  {drawn}  {duration(seconds):>8}  {seconds / total:6.1%}")
    return lines


def _iteration(bench: Bench) -> list[str]:
    iteration = bench.iteration
    level = _kind(bench).level
    median = (f"{'an' if level == 'iteration' else 'a'} {level}", duration(iteration.seconds.median))
    if iteration.bare is None or iteration.ratio is None:
        return ["", *figures([(*median, _spread(iteration.seconds, duration))])]
    rows = [
        (*median, _spread(iteration.seconds, duration)),
        ("bare network arithmetic", duration(iteration.bare.seconds), _split(iteration.bare)),
        ("iteration / bare", f"{iteration.ratio.median:.3f}", _spread(iteration.ratio, "{:.3f}".format)),
    ]
    plain = [
        [
            name,
            duration(reference.seconds),
            duration(reference.inference.median),
            duration(reference.training.median),
            f"{iteration.reference_ratios[name].median:.3f}",
            f"{iteration.reference_ratios[name].low:.3f} to {iteration.reference_ratios[name].high:.3f}",
        ]
        for name, reference in iteration.references.items()
    ]
    notes = sentence(
        "Bare: the same policy acts on as many steps and is trained as often, on ready data, between the iterations. "
        "Plain: nn.Linear on the flat observation, torch's recurrent layer, linear heads. A share of each is run and "
        "scaled up. A processor without instructions for bfloat16 emulates it; then compare with the float32 ones."
    )
    header = ("plain network", "seconds", "inference", "updates", "bare / plain", "spread")
    return ["", "Against the arithmetic of the network alone", *figures(rows), "", *table(header, plain), *notes]


def _products(bench: Bench) -> list[str]:
    """Return a table of the phases in which networks compute, beside their products alone."""
    iteration, names = bench.iteration, _kind(bench).phases
    if not iteration.products:
        return []
    pairs = [(names.get(phase, phase), iteration.phases[phase], alone) for phase, alone in iteration.products.items()]
    rows = [
        [name, duration(seconds), duration(alone.median), f"{duration(alone.low)} to {duration(alone.high)}",
         f"{seconds / alone.median:.2f}"]
        for name, seconds, alone in pairs
    ]  # fmt: skip
    total = sum(alone.median for _, _, alone in pairs)
    whole = f"whole {_kind(bench).level}"
    rows.append(
        [whole, duration(iteration.seconds.median), duration(total), "", f"{iteration.seconds.median / total:.2f}"]
    )
    notes = sentence(
        "Products: the matrix products and convolutions of the plain networks, by torch, one after the other on ready "
        "numbers: no envs, replay, activations, norms, losses and optimisers. A share of them is run and scaled up."
    )
    header = ("phase", "in a run", "products", "spread", "in a run / products")
    return ["", "Against the products of the networks alone", *table(header, rows), *notes]


def _split(arithmetic: Arithmetic) -> str:
    return f"inference {duration(arithmetic.inference.median)}, updates {duration(arithmetic.training.median)}"


def _spread(spread: Spread, show: Callable[[float], str]) -> str:
    return f"median of {spread.count}; {show(spread.low)} to {show(spread.high)}"


def draw_bench(bench: Bench, path: Path) -> None:
    """Draw the waterfall: each phase in the run, the same work alone, and at its limit. The suffix of `path` is the format."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axis: Any = figure.subplots()
    stages = {stage.name: stage for stage in bench.stages}
    phases = waterfall(bench)
    total, kind = phases[-1][2], _kind(bench)
    for row, (name, first, last) in enumerate(phases):
        axis.barh(row, last - first, left=first, height=0.5, color=IN_RUN, label="in the run" if row == 0 else None)
        axis.text(last + total * 0.008, row, f"{duration(last - first)} ({(last - first) / total:.0%})", va="center")
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
    longest = total
    if bench.iteration.bare is not None:
        bare = bench.iteration.bare.seconds
        axis.axvline(bare, color="#d1495b", linestyle="--", linewidth=1, label=f"bare arithmetic {duration(bare)}")
        longest = max(total, bare)
    axis.set_yticks(range(len(phases)), [name for name, _, _ in phases])
    axis.invert_yaxis()
    axis.set_xlim(0, longest * 1.18)
    axis.set_xlabel("seconds")
    size = _size(bench)
    axis.set_title(f"{bench.recipe}: one {kind.level} of {size} in {duration(total)}\n{bench.machine}", fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8, loc="lower left", ncols=2)
    figure.savefig(path, dpi=140, metadata={"Date": None} if path.suffix == ".svg" else None)


def _size(bench: Bench) -> str:
    name, unit = _kind(bench).size
    return plural(bench.sizes[name], unit)


def _kind(bench: Bench) -> KindBench:
    return KINDS[bench.kind].bench.load()
