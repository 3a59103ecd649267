"""The file `report.html` of a run."""

from __future__ import annotations

from pathlib import Path

from millpond.durable import replace_file
from millpond.report.facts import Picture, read_facts
from millpond.report.order import sections
from millpond.report.page import page


def write_report(folder: Path, picture: Picture | None = None) -> Path:
    """Write a run's report, in one step in the place of an older one. Of the run itself nothing is changed."""
    facts = read_facts(folder, picture)
    path = folder / "report.html"
    replace_file(path, page(facts, sections(facts.kind)).encode())
    return path
