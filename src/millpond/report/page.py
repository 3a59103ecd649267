"""The whole page: one file, no script, nothing from a network."""

from __future__ import annotations

import time
from collections.abc import Sequence

from millpond.report.facts import Facts
from millpond.report.markup import Markup, join, tag
from millpond.report.section import Block, Section
from millpond.report.style import style_sheet

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
