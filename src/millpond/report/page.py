"""Which sections a report has, and in which order. Each kind of run adds its own (`report/kinds.py`)."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from millpond.durable import replace_file
from millpond.report.curves import charted_metrics, curves, metric_chart
from millpond.report.details import checkpoints, config, host, plan
from millpond.report.evaluation import episode, evaluation_chart, evaluations
from millpond.report.facts import Facts, Picture, read_facts
from millpond.report.markup import Block, Markup, join, standalone, style_sheet, tag
from millpond.report.phases import outer_phases, phase_bar, phases
from millpond.report.summary import summary

Section = Callable[[Facts], Block | None]  # makes a block of the page; None where the run has nothing to show

FIRST: tuple[Section, ...] = (summary, episode, evaluations)
LAST: tuple[Section, ...] = (curves, phases, checkpoints, plan, config, host)


def sections_of(facts: Facts) -> tuple[Section, ...]:
    """All sections for a run; one of an unknown kind has those that every run has."""
    kind = facts.kind_report
    return (*FIRST, *(kind.sections if kind is not None else ()), *LAST)


# -- The file `report.html` of a run.


def write_report(folder: Path, picture: Picture | None = None) -> Path:
    """Write a run's report, in one step in the place of an older one. Of the run itself nothing is changed."""
    facts = read_facts(folder, picture)
    path = folder / "report.html"
    replace_file(path, page(facts, sections_of(facts)).encode())
    return path


# -- The whole page: one file, no script, nothing from a network.

# Nothing may be loaded from anywhere, whatever a run's texts hold: styles and images are in the page itself.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page(facts: Facts, sections: Sequence[Section]) -> str:
    """Every section that has something to tell; one that fails says so in its place and takes no other along."""
    blocks = [block for section in sections if (block := _made(section, facts)) is not None]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("title", f"{facts.name}: Millpond run"),
        tag("style", style_sheet("colours", "pictures", "page")),
    )
    state = facts.status.state if facts.status is not None else "state unknown"
    written = time.strftime("%Y-%m-%d %H:%M:%S %z")
    links = (tag("a", block.title, href=f"#{_anchor(k)}") for k, block in enumerate(blocks))
    header = tag(
        "header",
        tag("h1", facts.name),
        tag("p", f"Millpond run of kind {facts.kind}, {state}; report written {written}"),
        tag("nav", *links),
    )
    problems = None
    if facts.problems:
        items = (tag("li", problem) for problem in facts.problems)
        problems = tag("div", tag("p", "What could not be read:"), tag("ul", *items), class_="problems")
    body = tag("body", tag("main", header, problems, *(_block(k, block) for k, block in enumerate(blocks))))
    return "<!DOCTYPE html>\n" + tag("html", head, "\n", body, lang="en") + "\n"


def _made(section: Section, facts: Facts) -> Block | None:
    try:
        return section(facts)
    except Exception as error:
        name = getattr(section, "__name__", type(section).__name__)
        words = f"This section could not be made: {type(error).__name__}: {error}"
        return Block(name.replace("_", " ").capitalize(), tag("p", words, class_="problems"))


def _anchor(number: int) -> str:
    return f"section-{number}"


def _block(number: int, block: Block) -> Markup:
    heading = tag("h2", block.title)
    if block.folded:
        return join("\n", tag("details", tag("summary", heading), block.body, id=_anchor(number)))
    return join("\n", tag("section", heading, block.body, id=_anchor(number)))


# -- The charts of a report as SVG files of their own, for documents and talks.


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
