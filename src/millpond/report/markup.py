"""HTML and SVG put together so that whatever came from a run is escaped, always."""

from __future__ import annotations

from html import escape

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
