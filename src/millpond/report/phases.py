"""Where the time went: phases as a stacked bar, and the phases within them."""

from __future__ import annotations

from millpond.record import show_seconds
from millpond.report.chart import COLOURS
from millpond.report.facts import Facts
from millpond.report.markup import Markup, join, table, tag
from millpond.report.section import Block

WIDTH, HEIGHT = 860, 44


def phase_seconds(facts: Facts) -> dict[str, float]:
    """Seconds by phase over all records, nested ones as `collect/step`."""
    found: dict[str, float] = {}
    for record in facts.records:
        for name, seconds in record.items():
            if name.startswith("time/"):
                phase = name.removeprefix("time/")
                found[phase] = found.get(phase, 0.0) + seconds
    return found


def phases(facts: Facts) -> Block | None:
    """A bar of all time by outermost phase, and a table with the inner ones."""
    seconds = phase_seconds(facts)
    outer = {name: spent for name, spent in seconds.items() if "/" not in name}
    if not sum(outer.values()):
        return None
    whole = max(facts.last.get("seconds", 0.0), sum(outer.values()))
    parts = {**outer, "other": whole - sum(outer.values())}
    rows = []
    for name, spent in parts.items():
        rows.append([name, show_seconds(spent), f"{spent / whole:.1%}"])
        inner = {n: s for n, s in seconds.items() if n.startswith(f"{name}/")}
        rows += [[f"   {n}", show_seconds(s), f"{s / whole:.1%}"] for n, s in inner.items()]
    note = tag(
        "p", "Other is what lies outside of all phases: starting up, compiling, saving, recording.", class_="quiet"
    )
    return Block("Time by phase", join(_bar(parts, whole), table(["phase", "time", "share"], rows), note))


def _bar(parts: dict[str, float], whole: float) -> Markup:
    left, pieces = 0.0, []
    for k, (name, spent) in enumerate(parts.items()):
        width = spent / whole * WIDTH
        colour = "other" if name == "other" else f"f{k % COLOURS}"
        title = tag("title", f"{name}: {show_seconds(spent)}, {spent / whole:.1%}")
        text = None
        if width > 9 * (len(name) + 4):
            text = tag(
                "text", f"{name} {spent / whole:.0%}", x=left + width / 2, y=HEIGHT / 2 + 5, class_="middle inside"
            )
        pieces.append(tag("g", tag("rect", x=left, y=0, width=width, height=HEIGHT, class_=colour), text, title))
        left += width
    return tag(
        "svg",
        tag("title", "share of time by phase"),
        *pieces,
        class_="phases",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
    )
