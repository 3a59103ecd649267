"""Plain text for people: plurals, sizes, aligned figures, wrapped sentences, boxes, bars, tables."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

WIDTH = 80
_SPACES = dict.fromkeys(map(ord, "\t\n\x0b\x0c\r"), " ")  # as textwrap replaces them


def printable(text: str) -> str:
    r"""Return text for a terminal: control characters, which could move the cursor or hide text, are shown as \x1b.

    So are line breaks, and characters that reverse the direction of writing.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> str:
    """Return text for a terminal, as `printable` does, and keep its line breaks."""
    return "\n".join(map(printable, text.split("\n")))


def plural(count: int, word: str) -> str:
    """Return `1 row`, `2 rows`, `32 minibatches`, `2 worker processes`, `2 epochs`, `2 entries`."""
    return f"{count:,} {word if count == 1 else many(word)}"


def many(word: str) -> str:
    """Return the plural of a noun."""
    if word.endswith("y") and word[-2:-1] not in "aeiou":
        return f"{word[:-1]}ies"
    sibilant = word.endswith(("ch", "s", "x")) and not word.endswith("epoch")
    return f"{word}{'es' if sibilant else 's'}"


def verb(count: int, plain: str) -> str:
    """Return the form of a verb after a count: `1 minibatch` gives, `2 minibatches` give; `are` becomes is."""
    if plain == "are":
        return "is" if count == 1 else plain
    return plain if count != 1 else f"{plain}{'es' if plain.endswith('o') else 's'}"


def size(count: float) -> str:
    """Format a number of bytes: 253.8 MB."""
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if abs(count) < 1000 or unit == "TB":
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1000
    raise AssertionError  # the last unit always returns


def exact_size(count: int) -> str:
    """Format a number of bytes exactly, and rounded: 253,755,392 bytes (253.8 MB)."""
    return f"{count:,} bytes ({size(count)})" if count >= 1000 else f"{count:,} bytes"


def number(value: float) -> str:
    """Format a count with thousands separators; a fraction with two decimals or two digits."""
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.2f}".rstrip("0").rstrip(".") if abs(value) >= 0.1 else f"{value:.2g}"


def short_number(value: float) -> str:
    """Format a number with at most four significant digits: 512, 1,536, 15.73M, 0.1364, -331.8."""
    for scale, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= scale:
            return f"{value / (1e3 if unit == 'k' else scale):.4g}{unit}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def figures(rows: Iterable[tuple[str, str] | tuple[str, str, str]], indent: int = 2) -> list[str]:
    """Format lines of label, figure and optional remark; figures are right-aligned, remarks wrapped."""
    table = [(printable(row[0]), printable(row[1]), row[2] if len(row) > 2 else "") for row in rows]
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
    """Wrap a sentence; `first` starts its first line, such as a bullet. An override is never broken."""
    return textwrap.wrap(
        printable(text.translate(_SPACES)),
        WIDTH,
        initial_indent=" " * indent + first,
        subsequent_indent=" " * (indent + len(first)),
        break_long_words=False,
        break_on_hyphens=False,
    )


def box(lines: Sequence[str], title: str = "", indent: int = 2) -> list[str]:
    """Draw a frame around lines, as wide as the page."""
    inner = WIDTH - indent - 4
    pad = " " * indent
    head = f"─ {title} " if title else ""
    framed = [f"{pad}┌{head}{'─' * (inner + 2 - len(head))}┐"]
    framed += [f"{pad}│ {line[:inner]:<{inner}} │" for line in lines]
    return [*framed, f"{pad}└{'─' * (inner + 2)}┘"]


def bar(first: float, last: float, whole: float, width: int) -> str:
    """Draw the interval first..last within 0..whole; always visible."""
    start = min(int(first / whole * width), width - 1)
    end = max(start + 1, min(round(last / whole * width), width))
    return "░" * start + "█" * (end - start) + "░" * (width - end)


def table(header: Sequence[str], rows: Iterable[Sequence[str]], indent: int = 2) -> list[str]:
    """Format columns, the first left-aligned and the others right-aligned; one figure per line if they are too wide."""
    body = [[printable(cell) for cell in row] for row in rows]
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
    """Replace box-drawing characters, for terminals that cannot show them."""
    return text.translate(str.maketrans("─│┌┐└┘├┤█░→↓", "-|++++++#.>v"))
