"""The charts of a report as SVG files of their own, for documents and talks."""

from __future__ import annotations

import re
from pathlib import Path

from millpond.report.curves import charted_metrics, metric_chart
from millpond.report.evaluation import evaluation_chart
from millpond.report.facts import Facts
from millpond.report.phases import outer_phases, phase_bar
from millpond.report.style import standalone


def write_pictures(facts: Facts, folder: Path) -> list[Path]:
    """`evaluation.svg`, `phases.svg` and one file for each metric; those that the run has."""
    found = {"evaluation": evaluation_chart(facts)}
    if parts := outer_phases(facts):
        found["phases"] = phase_bar(parts)
    found |= {name: metric_chart(facts, name, metrics) for name, metrics in charted_metrics(facts).items()}
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, picture in found.items():
        if picture is not None:
            path = folder / f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', name).strip('.-') or 'metric'}.svg"
            path.write_text(standalone(picture), encoding="utf-8")
            written.append(path)
    return written
