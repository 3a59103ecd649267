"""A comparison as text."""

from __future__ import annotations

from millpond.config.violations import show as show_value
from millpond.planner.compare import Comparison, cell
from millpond.planner.lines import WIDTH, sentence
from millpond.planner.show import show_alerts, show_source

LABEL_WIDTH = 27


def show_compare(comparison: Comparison) -> str:
    """Alert, table, other settings, differences, what each is better for."""
    a, b = comparison.a.loaded.name, comparison.b.loaded.name
    lines = [*sentence(f"{a} against {b}", 0), *show_alerts(comparison.alerts), ""]
    lines += _table(comparison, a, b)
    for side in (comparison.a, comparison.b):
        source = show_source(side)
        lines += ["", f"On {side.loaded.name}", *source] if source else []
    if comparison.settings:
        lines += ["", "Other settings that differ"]
        for key, first, second in comparison.settings:
            lines += sentence(f"{key}: {show_value(first)} against {show_value(second)}")
    for title, points in (
        ("Differences that matter", comparison.words.differences),
        (f"{a} is better for", comparison.words.a_is_better_for),
        (f"{b} is better for", comparison.words.b_is_better_for),
    ):
        if points:
            lines += ["", title, *(line for point in points for line in sentence(point, 2, "- "))]
    if not comparison.words.differences:
        lines += ["", "They do the same."]
    return "\n".join(lines)


def _table(comparison: Comparison, a: str, b: str) -> list[str]:
    values = [(cell(row.a, row.label), cell(row.b, row.label)) for row in comparison.rows if not row.heading]
    first, second = max(len(v) for v, _ in values), max(len(v) for _, v in values)
    room = WIDTH - 2 - LABEL_WIDTH - 4 - first - second  # beyond the values: for longer names, and for remarks
    first += max(0, min(len(a) - first, room // 2))
    second += max(0, min(len(b) - second, room // 2))
    lines = [f"  {'':<{LABEL_WIDTH}}  {_end(a, first):>{first}}  {_end(b, second):>{second}}"]
    for row in comparison.rows:
        if row.heading:
            lines.append(row.label)
            continue
        left, right = cell(row.a, row.label), cell(row.b, row.label)
        line = f"  {row.label:<{LABEL_WIDTH}}  {left:>{first}}  {right:>{second}}"
        if row.note and len(line) + 2 + len(row.note) > WIDTH:
            lines += [line, f"{row.note:>{len(line)}}"]
        else:
            lines.append(f"{line}  {row.note}".rstrip())
    return lines


def _end(name: str, width: int) -> str:
    """A long path by its end."""
    return name if len(name) <= width else f"...{name[-(width - 3) :]}"
