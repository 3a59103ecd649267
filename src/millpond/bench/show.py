"""What a bench of each kind of recipe is of, and the words for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millpond.bench.result import Arithmetic, Bench, Stage
from millpond.bench.timing import Spread
from millpond.planner.estimate import duration
from millpond.planner.lines import bar, figures, sentence, size, table
from millpond.plurals import plural


@dataclass(frozen=True)
class Kind:
    """`whole`: what a run is made of. `phases`: of a run, in order, with their names. `stages`: measured beside each."""

    whole: str
    phases: dict[str, str]
    stages: dict[str, str]
    notes: str


KINDS = {
    "ppo": Kind(
        "iteration",
        {
            "collect/step": "waiting for envs",
            "collect/infer": "inference",
            "collect/store": "storing",
            "collect/rest": "rest of collecting",
            "advantage": "advantage",
            "train": "training",
            "other": "loop and records",
        },
        {
            "waiting for envs": "vector",
            "inference": "inference",
            "storing": "storing",
            "advantage": "advantage",
            "training": "training",
            "loop and records": "loop",
        },
        "Alone: one iteration's work, or one call for the lake. Share: of the iteration; of the environment, its time alone. "
        "A second: env steps of the first two, updates of the loop, transitions of the lake, else agent steps. In a run "
        "envs step while the policy looks at others, so they may be waited for less, and the policy may take longer, "
        "than alone. Limits of products count matrix products only, not tables, gates and losses.",
    ),
    "mixture": Kind(
        "round",
        {
            "collect": "collecting",
            "pour": "waiting for ponds",
            "learn": "learning",
            "fill": "filling the BigPond",
            "train_big": "BigAgent",
            "other": "reset and records",
        },
        {
            "collecting": "collect",
            "waiting for ponds": "pour",
            "learning": "learn",
            "filling the BigPond": "fill",
            "BigAgent": "BigAgent",
        },
        "A part of a round is run and scaled up to a whole one. Alone: one round's work, or one call for the lake. "
        "Share: of the round; of the envs, their time alone. In a run ponds are poured out beside the learning, so they "
        "are waited for less than pouring takes alone. A second: env steps of envs, collect and pour, transitions else. "
        "The limit of collect is that of the envs and the products together.",
    ),
    "reward": Kind(
        "cycle",
        {"act": "acting", "train": "batches", "other": "loop and records"},
        {"acting": "act", "batches": "update", "loop and records": "record"},
        "Alone: one cycle's work. Update is a batch as a run trains it, so sample and target are in it too. Share: of the "
        "cycle, without test rollouts. A second: env steps of act, else batches.",
    ),
}


def opening(kind: str, sizes: dict[str, int], vector: str, precision: str) -> str:
    """The sizes of what was measured, in a sentence."""
    if kind == "ppo":
        return (
            f"{plural(sizes['num_envs'], 'env')} of {plural(sizes['num_agents'], 'agent')} ({vector}), "
            f"{plural(sizes['agent_steps'], 'agent step')} and {plural(sizes['gradient_updates'], 'update')} an iteration, "
            f"{precision}"
        )
    if kind == "mixture":
        return (
            f"{plural(sizes['agents'], 'agent')} of {plural(sizes['envs_per_agent'], 'env')} ({vector}); a round: "
            f"{plural(sizes['collections_per_round'], 'collection')}, {plural(sizes['env_steps_per_round'], 'env step')}, "
            f"{plural(sizes['drawn'], 'transition')} drawn, {plural(sizes['big_updates'], 'update')} of the BigAgent"
        )
    acting = f", {plural(sizes['env_steps'], 'env step')} ({vector})" if sizes["env_steps"] else ""
    return f"a cycle: {plural(sizes['batches'], 'batch')} of {plural(sizes['steps_per_batch'], 'step')}{acting}"


# -- A bench as text: limits, stages, and one iteration as a waterfall.

WALL = 32  # characters of the waterfall


def show_bench(bench: Bench) -> list[str]:
    """Everything that was measured."""
    lines = [
        f"bench of {bench.recipe}{' (quick: tiny sizes, figures that say nothing)' if bench.quick else ''}",
        *sentence(f"{bench.machine}; torch {bench.versions.get('torch', '?')}, {bench.threads} threads"),
        *sentence(opening(bench.kind, bench.sizes, bench.vector, bench.precision)),
    ]
    if bench.limits is not None:
        lines += _limits(bench)
        lines += _stages(bench)
    return [*lines, *_waterfall(bench), *_iteration(bench)]


def waterfall(bench: Bench) -> list[tuple[str, float, float]]:
    """Name, beginning and end in seconds of each phase of an iteration, laid end to end."""
    found, at = [], 0.0
    for phase, name in KINDS[bench.kind].phases.items():
        seconds = bench.iteration.phases.get(phase, 0.0)
        if bench.kind != "ppo" and not seconds:  # a mode that does not have it
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
    return ["", "Stages", *table(header, rows), *sentence(KINDS[bench.kind].notes)]


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
    lines = ["", f"One {KINDS[bench.kind].whole}"]
    for name, first, last in phases:
        seconds = last - first
        shown = bar(first, last, whole, WALL)
        lines.append(f"  {name:<{name_width}}  {shown}  {duration(seconds):>8}  {seconds / whole:6.1%}")
    return lines


def _iteration(bench: Bench) -> list[str]:
    found = bench.iteration
    whole = KINDS[bench.kind].whole
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
