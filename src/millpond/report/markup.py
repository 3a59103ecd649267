"""HTML and SVG elements whose text is always escaped, and the style sheets of a report."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files

VOID = frozenset({"meta", "img", "br", "link"})


class Markup(str):
    """Text that is markup already. Any other string is escaped when it becomes part of an element."""

    __slots__ = ()


@dataclass(frozen=True)
class Block:
    """A part of the page with a heading. A `folded` block opens with a click."""

    title: str
    body: Markup
    folded: bool = False


def tag(name: str, /, *children: str | None, **attributes: str | float | None) -> Markup:
    """Return an element. `class_` becomes class, other underscores become hyphens; attributes that are None are omitted."""
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_attribute(value), quote=True)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID:
        return Markup(f"<{name}{pairs}>")
    return Markup(f"<{name}{pairs}>{join(*children)}</{name}>")


def join(*children: str | None) -> Markup:
    """Concatenate children, escaping those that are plain text."""
    return Markup("".join(child if isinstance(child, Markup) else escape(child) for child in children if child))


def table(header: list[str], rows: list[list[str]], *, left: int = 1) -> Markup:
    """Return a table. The first `left` columns are text; the others are numbers, aligned to the right."""

    def cells(kind: str, row: list[str]) -> Markup:
        return tag("tr", *(tag(kind, cell, class_=None if k < left else "figure") for k, cell in enumerate(row)))

    head = tag("thead", cells("th", header)) if header else None
    return tag("div", tag("table", head, tag("tbody", *(cells("td", row) for row in rows))), class_="scroll")


@cache
def style_sheet(*names: str) -> Markup:
    """Return the text of packaged style sheets, to be inlined in the page."""
    return Markup("".join((files("millpond.report") / "css" / f"{name}.css").read_text("utf-8") for name in names))


def standalone(picture: Markup) -> str:
    """Return a chart as the text of an SVG file. CSS variables are replaced by colours: many viewers do not know them."""
    light, dark = (dict(re.findall(r"--(\w+): (#\w+)", part)) for part in style_sheet("colours").split("@media"))
    rules = style_sheet("pictures")
    styles = f"{_with_colours(rules, light)}@media (prefers-color-scheme: dark) {{ {_with_colours(rules, dark)} }}"
    head, rest = picture.split(">", 1)
    head = head.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    background = tag("rect", width="100%", height="100%", class_="ground")
    return f"{head}>{tag('style', Markup(styles))}{background}{rest}\n"


def _with_colours(rules: str, colours: dict[str, str]) -> str:
    return re.sub(r"var\(--(\w+)\)", lambda match: colours[match[1]], rules)


def _attribute(value: str | float) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
