"""The results as a page with a table and curves."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.learning.tasks import TASKS, Task

RESULTS = Path(__file__).parent / "results"
HEAD = """# What it learns

Small environments whose answers are known, trained with three seeds each, one core a run. This page is written by
`python -m benchmarks.learning`, which trains all of it and takes an hour or so; the recipes are in
[benchmarks/learning](../benchmarks/learning/README.md), except `grid`, which is the package's own.

Returns are the means of evaluations at the end of training: episodes on seeds of their own (100; 1,000 for `recall`), with
actions drawn as in training. `truncation` is scored by how far the learned value is from the true one; `truncation-cut` is
the same with `ppo.bootstrap_truncation: false`, which takes every truncation for an end.
"""


def found() -> list[tuple[Task, dict[str, Any]]]:
    """The tasks that there are results of."""
    paths = [(task, RESULTS / f"{task.name}.json") for task in TASKS]
    return [(task, json.loads(path.read_text())) for task, path in paths if path.exists()]


def write_page(path: Path) -> None:
    """The table, and one picture for each group of tasks."""
    results = found()
    lines = [HEAD, "| task | wanted | reached, by seed | agent steps | minutes a seed |", "|---|---|---|---|---|"]
    for task, result in results:
        seeds = result["seeds"]
        scores = ", ".join(f"{one['score']:.3g}{'' if one['passes'] else ' (missed)'}" for one in seeds)
        minutes = sum(one["seconds"] for one in seeds) / len(seeds) / 60
        lines.append(f"| `{task.name}` | {task.wanted} | {scores} | {seeds[0]['agent_steps']:,} | {minutes:.1f} |")
    where = sorted({f"{result['hardware']}, torch {result['torch']}" for _, result in results})
    lines += ["", f"On {'; '.join(where)}. Minutes are of a machine with other work on it."]
    for group, members in groupby(results, key=lambda pair: pair[0].name.partition("-")[0]):
        draw(list(members), RESULTS / f"{group}.png")
        lines += ["", f"![{group}](../benchmarks/learning/results/{group}.png)"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def draw(members: list[tuple[Task, dict[str, Any]]], path: Path) -> None:
    """A line a seed, a colour a task, and dashes where it should get to."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3), layout="constrained")
    for number, (task, result) in enumerate(members):
        colour = f"C{number}"
        for one in result["seeds"]:
            steps, values = zip(*one["curve"], strict=True)
            axes.plot(steps, values, color=colour, alpha=0.7, label=task.name if one is result["seeds"][0] else None)
        for bound in {task.low, task.high} - {float("-inf"), float("inf")}:
            axes.axhline(bound, color=colour, linestyle="--", linewidth=0.8)
    axes.set_xlabel("agent steps")
    axes.set_ylabel(members[0][0].unit)
    axes.legend()
    figure.savefig(path, dpi=80, metadata={"Software": None})
    pyplot.close(figure)
