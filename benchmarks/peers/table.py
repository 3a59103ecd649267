"""One table of all tasks: both sides, both speeds, and the ratio with its spread."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from trained import Ratio
from trainings import TRAININGS

Row = tuple[str, str, float, float, str, Ratio]  # task, peer, ours, theirs, unit, ratio


def table_rows(results: dict[str, Any]) -> Iterator[Row]:
    """Yield one row for each comparison that was run, in the order of the tasks."""
    for task, training in TRAININGS.items():
        for party, comparison in results.get(task, {}).get("peers", {}).items():
            yield task, party, comparison["ours"], comparison["theirs"], training.unit, Ratio(**comparison["ratio"])
    for name, speeds in results.get("lake", {}).items():
        unit = "env steps/s" if name == "append" else "transitions/s"
        ratio = Ratio.of(speeds["ours"], speeds["theirs"])
        yield f"lake, {name}", speeds["beside"], median(speeds["ours"]), median(speeds["theirs"]), unit, ratio
    if "reward" in results:
        speeds = results["reward"]
        ratios = sorted(speeds["ratios"])
        spread = Ratio(median(ratios), ratios[0], ratios[-1])
        yield "reward", "bare PyTorch", median(speeds["ours"]), median(speeds["bare"]), "batches/s", spread


def table(results: dict[str, Any]) -> list[str]:
    """Return the table as lines of text."""
    header = ("task", "compared with", "ours", "theirs", "", "ours / theirs")
    body = [
        (task, peer, f"{ours:,.0f}", f"{theirs:,.0f}", unit, str(ratio))
        for task, peer, ours, theirs, unit, ratio in table_rows(results)
    ]
    widths = [max(len(row[k]) for row in [header, *body]) for k in range(len(header))]

    def line(cells: tuple[str, ...]) -> str:
        shown = [
            f"{cell:>{w}}" if k in (2, 3) else f"{cell:<{w}}"
            for k, (cell, w) in enumerate(zip(cells, widths, strict=True))
        ]
        return "  ".join(shown).rstrip()

    return [line(header), "  ".join("-" * width for width in widths), *map(line, body)]
