"""Plans and comparisons as text."""

from __future__ import annotations

from millpond.config.rules import as_override, as_overrides
from millpond.config.rules import show as show_value
from millpond.formatting import WIDTH, sentence
from millpond.kinds import KINDS
from millpond.planner.compare import Comparison, cell
from millpond.planner.estimate import show_estimate
from millpond.planner.planned import Planned


def show(planned: Planned) -> str:
    """Return a plan as text: alerts first, then the plan, then advice."""
    recipe, plan = planned.loaded.recipe, planned.plan
    lines = sentence(f"{planned.loaded.name}: {recipe.description}" if recipe.description else planned.loaded.name, 0)
    if planned.loaded.changes:
        lines += sentence(f"with {as_overrides(planned.loaded.changes)}")
    lines += show_alerts(planned.alerts)
    lines.append("")
    lines += KINDS[recipe.kind].text.load().show(recipe, plan)
    lines += show_estimate(planned.estimate) if planned.estimate is not None else []
    lines += _rewards(planned)
    lines += show_source(planned)
    if planned.advice:
        lines += ["", "Advice"]
        for advice in planned.advice:
            lines += sentence(f"{advice.topic}: {advice.reason}.", 2, "- ")
            if advice.overrides:
                lines += sentence(as_overrides(dict(advice.overrides)), 8)
    return "\n".join(lines)


def show_alerts(alerts: tuple[str, ...]) -> list[str]:
    """Return alerts as lines that stand out."""
    return [line for alert in alerts for line in ["", *sentence(f"{alert}.", 0, "!! ALERT: ")]]


def show_source(planned: Planned) -> list[str]:
    """Return notes, and what a PufferLib file leaves to defaults or sets without a meaning here."""
    loaded = planned.loaded
    lines: list[str] = []
    if loaded.notes:
        lines += ["", "Notes", *(line for note in loaded.notes for line in sentence(f"{note}.", 2, "- "))]
    if loaded.defaulted:
        shown = ", ".join(as_override(key, value) for key, value in loaded.defaulted.items())
        lines += ["", "Defaults of PufferLib 3.0", *sentence(shown)]
    if loaded.ignored:
        lines += ["", "Ignored, since it has no meaning here", *sentence(", ".join(loaded.ignored))]
    return lines


def _rewards(planned: Planned) -> list[str]:
    """Return a sentence on changes to rewards, if there are any."""
    env = planned.loaded.recipe.env
    changes = []
    if env.reward_scale != 1:
        changes.append(f"multiplied by {env.reward_scale:g}")
    if env.reward_clip is not None:
        changes.append(f"clipped to +-{env.reward_clip:g}")
    if env.episodic:
        changes.append("paid in one sum at the end of each episode")
    return ["", *sentence(f"Rewards are {', and '.join(changes)}.")] if changes else []


# -- A comparison as text.

LABEL_WIDTH = 27


def show_compare(comparison: Comparison) -> str:
    """Return a comparison as text: alerts, table, other settings, differences, what each is better for."""
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
        lines += ["", "Both do the same."]
    return "\n".join(lines)


def _table(comparison: Comparison, a: str, b: str) -> list[str]:
    values = [(cell(row.a, row.label), cell(row.b, row.label)) for row in comparison.rows if not row.heading]
    first, second = max(len(v) for v, _ in values), max(len(v) for _, v in values)
    room = WIDTH - 2 - LABEL_WIDTH - 4 - first - second  # left for longer names and for notes
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
    """Shorten a long path to its end."""
    return name if len(name) <= width else f"...{name[-(width - 3) :]}"
