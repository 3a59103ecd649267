"""Plain text that fits a terminal: headings, aligned figures, boxes, bars, wrapped sentences."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

WIDTH = 80


def size(count: float) -> str:
    """Bytes as people say them: 253.8 MB."""
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if abs(count) < 1000 or unit == "TB":
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1000
    raise AssertionError  # the last unit always returns


def exact_size(count: int) -> str:
    """Bytes to the last one, and as people say them."""
    return f"{count:,} bytes ({size(count)})" if count >= 1000 else f"{count:,} bytes"


def number(value: float) -> str:
    """A count with thousands marked; a fraction with as many digits as it needs."""
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.2f}".rstrip("0").rstrip(".") if abs(value) >= 0.1 else f"{value:.2g}"


def figures(rows: Iterable[tuple[str, str] | tuple[str, str, str]], indent: int = 2) -> list[str]:
    """Label, figure and perhaps a remark a line, the figures right-aligned; remarks wrap below themselves."""
    table = [(row[0], row[1], row[2] if len(row) > 2 else "") for row in rows]
    if not table:
        return []
    label_width = min(max(len(label) for label, _, _ in table), 40)
    figure_width = max(len(figure) for _, figure, _ in table)
    lines = []
    for label, figure, remark in table:
        start = f"{' ' * indent}{label:<{label_width}}  {figure:>{figure_width}}"
        room = WIDTH - len(start) - 2
        if not remark:
            lines.append(start.rstrip())
        elif room >= 20:
            first, *rest = textwrap.wrap(remark, room)
            lines.append(f"{start}  {first}")
            lines.extend(f"{' ' * len(start)}  {line}" for line in rest)
        else:
            lines.append(start.rstrip())
            lines.extend(sentence(remark, indent + 4))
    return lines


def sentence(text: str, indent: int = 2, first: str = "") -> list[str]:
    """A wrapped sentence; `first` begins its first line, such as a bullet. An override is never broken up."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=" " * indent + first,
        subsequent_indent=" " * (indent + len(first)),
        break_long_words=False,
        break_on_hyphens=False,
    )


def box(lines: Sequence[str], title: str = "", indent: int = 2) -> list[str]:
    """Lines in a frame as wide as the page."""
    inner = WIDTH - indent - 4
    pad = " " * indent
    head = f"─ {title} " if title else ""
    framed = [f"{pad}┌{head}{'─' * (inner + 2 - len(head))}┐"]
    framed += [f"{pad}│ {line[:inner]:<{inner}} │" for line in lines]
    return [*framed, f"{pad}└{'─' * (inner + 2)}┘"]


def bar(first: float, last: float, whole: float, width: int) -> str:
    """Where the stretch first..last lies in 0..whole; never invisible."""
    begin = min(int(first / whole * width), width - 1)
    end = max(begin + 1, min(round(last / whole * width), width))
    return "░" * begin + "█" * (end - begin) + "░" * (width - end)


def table(header: Sequence[str], rows: Iterable[Sequence[str]], indent: int = 2) -> list[str]:
    """Columns, the first left-aligned and the others right-aligned; where they do not fit, one figure a line."""
    body = [list(row) for row in rows]
    widths = [max(len(row[i]) for row in [list(header), *body]) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        joined = "  ".join(
            f"{cell:<{width}}" if i == 0 else f"{cell:>{width}}"
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return " " * indent + joined.rstrip()

    if indent + sum(widths) + 2 * (len(widths) - 1) > WIDTH:
        blocks = (
            [f"{' ' * indent}{row[0]}", *figures(zip(header[1:], row[1:], strict=True), indent + 4)] for row in body
        )
        return [piece for block in blocks for piece in block]
    return [line(header), " " * indent + "  ".join("─" * width for width in widths), *(line(row) for row in body)]


def ascii_only(text: str) -> str:
    """For terminals that cannot show box drawing."""
    return text.translate(str.maketrans("─│┌┐└┘├┤█░→↓", "-|++++++#.>v"))
