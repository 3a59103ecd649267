"""docs/metta-2026.md: a picture and tables, whose numbers come from the results only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.metta.tasks import BATCH, ITERATIONS, SETTINGS, TASKS
from benchmarks.zoo.ablations_page import cell
from benchmarks.zoo.curves import digest, draw_runs, save
from benchmarks.zoo.page import DOCS
from benchmarks.zoo.results import Result

PAGE, PICTURE = DOCS / "metta-2026.md", DOCS / "pictures" / "metta_2026.png"
MAIN = ("metta", "metta-2026")
SCORES = {"grid": "return per episode", "mettagrid": "reward per 1,000 agent steps"}

HEAD = """# Metta as it is now: the recipe `metta-2026`

`metta` is the pipeline as it was first described; `metta-2026` has the algorithm of Metta's public defaults of January 2026,
with the same envs and network. `millpond plan metta-2026` shows it, and `millpond compare metta metta-2026` says what each
difference is for:

| setting | `metta` | `metta-2026` |
|---|---|---|
| optimiser | Adam, learning rate 0.000457 | schedule-free AdamW, 0.00738, decay 0.01, warm-up of 1,000 updates |
| discount | 0.977 | 1, with rewards less the average of their agent (share 0.001) |
| lambda | 0.916 | 0.95 |
| critic | squared error, clipped | gradient TD(lambda) with an auxiliary head |
| advantages | once per iteration | before each minibatch, from the newest values |
| normalised over | the iteration | each minibatch, on all ranks |
| log-ratio | unbounded | within 10 |
| rows | 64 steps, a new permutation | 256 steps, in order |
| batch, minibatch | 524,288 and 16,384 env steps | 2,097,152 and 16,384 agent steps |
| clip, entropy, value coefficient | 0.1, 0.0021, 0.44 | 0.22, 0.01, 0.497 |

[Policies](policies.md) has the equations. The plan lists what is left out, since it has no meaning here: Metta's networks,
teachers and cloning, curricula, automatic numbers of epochs, the action part of vibes. Where Metta resets the memory of a
policy before each collection and does not train the last step of a row, the state and the value go on here.
"""


def page_of(results: Sequence[Result]) -> str:
    """Return the whole page."""
    runs = {
        (task, name): [one for one in results if (one.task, one.party) == (task, name)]
        for task in TASKS
        for name in SETTINGS
    }
    tried = [task for task in TASKS if all(runs[task, name] for name in MAIN)]
    lines = [HEAD]
    if tried:
        lines += [
            "## At equal steps", "",
            "Both at a sixteenth of their size: 128 envs of 3 agents, episodes of 256 steps, iterations of "
            f"{BATCH:,} agent steps, {ITERATIONS * BATCH:,} in all. On `grid` the return of training episodes, on `mettagrid` "
            "(the real MettaGrid) the reward per 1,000 agent steps. Mean of the last tenth over seeds; in brackets the lowest "
            "and the highest.", "",
            "![curves of both](pictures/metta_2026.png)", "",
            f"| setting | {' | '.join(f'`{task}`, {SCORES[task]}' for task in tried)} | CPU seconds |",
            "|---" * (len(tried) + 2) + "|",
        ]  # fmt: skip
        for name, setting in SETTINGS.items():
            if any(runs[task, name] for task in tried):
                base = {task: runs[task, MAIN[1]] for task in tried}
                cells = [cell(runs[task, name], base[task]) for task in tried]
                seconds = [one.cpu_seconds for task in tried for one in runs[task, name] if one.cpu_seconds is not None]
                title = setting.title if name in MAIN or setting.recipe == "metta" else f"`metta-2026` {setting.title}"
                lines.append(f"| {title} | {' | '.join(cells)} | {min(seconds):.0f} |")
        seeds = max(len(found) for found in runs.values())
        lines += [
            "",
            "**Bold**: every seed is better than every seed of `metta-2026`; *italic*: every seed is worse. At most "
            f"{seeds} seeds: "
            "read small differences as none. CPU seconds are of the cheapest run, on a busy machine. These are settings for 10 "
            "billion steps; after 4 million the warm-up is a quarter of the updates of `metta-2026`.", "",
            "By `python -m benchmarks.metta`, which keeps its results in `benchmarks/metta/results`, on "
            f"{'; '.join(sorted({one.machine for one in results}))}.",
        ]  # fmt: skip
    return "\n".join(lines).rstrip() + "\n"


def shown(results: Sequence[Result]) -> list[Result]:
    """Return the results that the picture shows."""
    return [one for one in results if one.party in MAIN]


def draw(results: Sequence[Result], path: Path) -> None:
    """Draw both recipes, one panel per task."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * len(TASKS), 2.7), layout="constrained")
    for number, task in enumerate(TASKS):
        axes: Any = figure.add_subplot(1, len(TASKS), number + 1)
        for colour, name in enumerate(MAIN):
            runs = [one for one in results if (one.task, one.party) == (task, name)]
            if runs:
                draw_runs(axes, runs, f"C{colour}").set_label(name)
        axes.set_title(f"{task}: {SCORES[task]}", fontsize=9)
        axes.tick_params(labelsize=7)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=7)
    save(figure, path, digest(shown(results)))


def write_page(results: Sequence[Result]) -> None:
    """Write the page, and the picture if there are results."""
    PAGE.write_text(page_of(results), encoding="utf-8")
    if shown(results):
        draw(results, PICTURE)
