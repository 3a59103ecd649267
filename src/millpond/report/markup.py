"""HTML and SVG put together so that whatever came from a run is escaped, always."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files

VOID = frozenset({"meta", "img", "br", "link"})


class Markup(str):
    """Text that is markup already. Everything else is escaped when it becomes part of an element."""

    __slots__ = ()


def tag(name: str, /, *children: str | None, **attributes: str | float | None) -> Markup:
    """An element. `class_` is class, other underscores in the names of attributes are hyphens; None is left out."""
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_text(value), quote=True)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID:
        return Markup(f"<{name}{words}>")
    return Markup(f"<{name}{words}>{join(*children)}</{name}>")


def join(*children: str | None) -> Markup:
    """Several pieces as one; plain text among them is escaped."""
    return Markup("".join(child if isinstance(child, Markup) else escape(child) for child in children if child))


def table(header: list[str], rows: list[list[str]], *, left: int = 1) -> Markup:
    """A table whose first `left` columns are words; the others are figures, aligned to the right."""

    def cells(kind: str, row: list[str]) -> Markup:
        return tag("tr", *(tag(kind, cell, class_=None if k < left else "figure") for k, cell in enumerate(row)))

    head = tag("thead", cells("th", header)) if header else None
    return tag("div", tag("table", head, tag("tbody", *(cells("td", row) for row in rows))), class_="scroll")


def _text(value: str | float) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# -- How a report looks: the style sheets of the package, and a picture that stands alone with those that it needs.


@cache
def style_sheet(*names: str) -> Markup:
    """The text of the packaged style sheets; it goes into the page itself."""
    return Markup("".join((files("millpond.report") / "css" / f"{name}.css").read_text("utf-8") for name in names))


def standalone(picture: Markup) -> str:
    """A chart as an SVG file of its own. Colours are written out, for viewers that know no variables."""
    light, dark = (dict(re.findall(r"--(\w+): (#\w+)", part)) for part in style_sheet("colours").split("@media"))
    rules = style_sheet("pictures")
    styles = f"{_filled(rules, light)}@media (prefers-color-scheme: dark) {{ {_filled(rules, dark)} }}"
    head, rest = picture.split(">", 1)
    head = head.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    ground = tag("rect", width="100%", height="100%", class_="ground")
    return f"{head}>{tag('style', Markup(styles))}{ground}{rest}\n"


def _filled(rules: str, colours: dict[str, str]) -> str:
    return re.sub(r"var\(--(\w+)\)", lambda match: colours[match[1]], rules)


# -- What a report is made of.


@dataclass(frozen=True)
class Block:
    """A part of the page with a heading. `folded` ones are opened with a click."""

    title: str
    body: Markup
    folded: bool = False
