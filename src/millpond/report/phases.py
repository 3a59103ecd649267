"""Time by phase: outermost phases as a stacked bar, and a table with the nested ones."""

from __future__ import annotations

from millpond.record import show_seconds
from millpond.report.chart import COLOURS
from millpond.report.facts import Facts
from millpond.report.markup import Block, Markup, join, table, tag

WIDTH, HEIGHT = 860, 44


def phase_seconds(facts: Facts) -> dict[str, float]:
    """Sum the seconds of each phase over all records; nested phases are named like `collect/step`."""
    totals: dict[str, float] = {}
    for record in facts.records:
        for name, seconds in record.items():
            if name.startswith("time/"):
                phase = name.removeprefix("time/")
                totals[phase] = totals.get(phase, 0.0) + seconds
    return totals


def outer_phases(facts: Facts) -> dict[str, float]:
    """Return seconds by outermost phase, with the time outside of all phases as `other`; empty if nothing was timed."""
    outer = {name: spent for name, spent in phase_seconds(facts).items() if "/" not in name}
    timed = sum(outer.values())
    return {**outer, "other": max(facts.last.get("seconds", 0.0), timed) - timed} if timed else {}


def phases(facts: Facts) -> Block | None:
    """Return a bar of the total time by outermost phase, and a table with the nested ones."""
    seconds, outer = phase_seconds(facts), outer_phases(facts)
    total = sum(outer.values())
    if not total:
        return None
    rows = []
    for name, spent in outer.items():
        rows.append([name, show_seconds(spent), f"{spent / total:.1%}"])
        nested = {n: s for n, s in seconds.items() if n.startswith(f"{name}/")}
        rows += [[f"   {n}", show_seconds(s), f"{s / total:.1%}"] for n, s in nested.items()]
    note = tag("p", "Other: time outside of all phases (startup, compilation, saving, recording).", class_="quiet")
    return Block("Time by phase", join(phase_bar(outer), table(["phase", "time", "share"], rows), note))


def phase_bar(seconds: dict[str, float]) -> Markup:
    """Draw phases side by side, each as wide as its share of the total time."""
    left, total, pieces = 0.0, sum(seconds.values()), []
    for k, (name, spent) in enumerate(seconds.items()):
        width = spent / total * WIDTH
        colour = "other" if name == "other" else f"f{k % COLOURS}"
        title = tag("title", f"{name}: {show_seconds(spent)}, {spent / total:.1%}")
        text = None
        if width > 9 * (len(name) + 4):  # the label fits
            text = tag(
                "text", f"{name} {spent / total:.0%}", x=left + width / 2, y=HEIGHT / 2 + 5, class_="middle inside"
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
