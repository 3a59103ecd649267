"""Where the time went: phases as a stacked bar, and the phases within them."""

from __future__ import annotations

from millpond.record import show_seconds
from millpond.report.chart import COLOURS
from millpond.report.facts import Facts
from millpond.report.markup import Block, Markup, join, table, tag

BAR_WIDTH, BAR_HEIGHT = 860, 44


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
    seconds, parts = phase_seconds(facts), outer_phases(facts)
    whole = sum(parts.values())
    if not whole:
        return None
    rows = []
    for name, spent in parts.items():
        rows.append([name, show_seconds(spent), f"{spent / whole:.1%}"])
        inner = {n: s for n, s in seconds.items() if n.startswith(f"{name}/")}
        rows += [[f"   {n}", show_seconds(s), f"{s / whole:.1%}"] for n, s in inner.items()]
    note = tag(
        "p", "Other is what lies outside of all phases: starting up, compiling, saving, recording.", class_="quiet"
    )
    return Block("Time by phase", join(phase_bar(parts), table(["phase", "time", "share"], rows), note))


def outer_phases(facts: Facts) -> dict[str, float]:
    """Seconds by outermost phase, and as `other` what lies outside of all; empty where nothing was timed."""
    outer = {name: spent for name, spent in phase_seconds(facts).items() if "/" not in name}
    timed = sum(outer.values())
    return {**outer, "other": max(facts.last.get("seconds", 0.0), timed) - timed} if timed else {}


def phase_bar(parts: dict[str, float]) -> Markup:
    """Phases side by side, as wide as their share of all time."""
    left, whole, pieces = 0.0, sum(parts.values()), []
    for k, (name, spent) in enumerate(parts.items()):
        width = spent / whole * BAR_WIDTH
        colour = "other" if name == "other" else f"f{k % COLOURS}"
        title = tag("title", f"{name}: {show_seconds(spent)}, {spent / whole:.1%}")
        text = None
        if width > 9 * (len(name) + 4):
            text = tag(
                "text", f"{name} {spent / whole:.0%}", x=left + width / 2, y=BAR_HEIGHT / 2 + 5, class_="middle inside"
            )
        pieces.append(tag("g", tag("rect", x=left, y=0, width=width, height=BAR_HEIGHT, class_=colour), text, title))
        left += width
    return tag(
        "svg",
        tag("title", "share of time by phase"),
        *pieces,
        class_="phases",
        viewBox=f"0 0 {BAR_WIDTH} {BAR_HEIGHT}",
        role="img",
    )
