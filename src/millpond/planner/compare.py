"""Plans side by side: two recipes (`millpond compare A B`), or one for several values of a key (`plan --scale KEY=a,b,c`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from millpond.config.check import flatten
from millpond.config.keys import keys, nearest_key
from millpond.config.load import parse_override
from millpond.config.rules import show as show_value
from millpond.errors import MillpondError
from millpond.formatting import WIDTH, number, plural, sentence, size, table
from millpond.kinds import KINDS
from millpond.planner.estimate import Host
from millpond.planner.kind import ComparisonRow
from millpond.planner.planned import Planned, plan, show_alerts, show_source

LABEL_WIDTH = 27  # of the table
MAX_VALUES = 32  # of a key that is scaled
MAX_NAME_LENGTH = 16  # leaves room for the columns

# Settings that the table already shows, or that do not affect learning.
_IN_TABLE = ("trainer.", "env.num_agents", "env.id", "description", "expect", "left_out", "presets", "run_dir", "kind")
_SHOWN_ANYWAY = ("trainer.precision", "trainer.compile", "trainer.cpu_offload")


@dataclass(frozen=True)
class Words:
    """Differences that matter, and what each side is better for."""

    differences: tuple[str, ...]
    a_is_better_for: tuple[str, ...]
    b_is_better_for: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """Everything that `millpond compare A B` prints."""

    a: Planned
    b: Planned
    rows: tuple[ComparisonRow, ...]
    settings: tuple[tuple[str, Any, Any], ...]  # keys that differ and are in no row
    words: Words
    alerts: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return both plans, the rows, and the words."""
        return {
            "a": self.a.to_json(),
            "b": self.b.to_json(),
            "table": [
                {"parameter": row.label, "a": row.a, "b": row.b, "note": row.note}
                for row in self.rows
                if not row.heading
            ],
            "settings": [{"key": key, "a": a, "b": b} for key, a, b in self.settings],
            "alerts": list(self.alerts),
            "differences": list(self.words.differences),
            "a_is_better_for": list(self.words.a_is_better_for),
            "b_is_better_for": list(self.words.b_is_better_for),
        }


def compare(a: Planned, b: Planned) -> Comparison:
    """Compare two plans, of the same kind or not."""
    rows = _rows(a, b)
    return Comparison(a, b, tuple(rows), tuple(_settings(a, b)), words_between(a, b), alerts_between(a, b))


def _rows(a: Planned, b: Planned) -> list[ComparisonRow]:
    ours, theirs = a.loaded.recipe, b.loaded.recipe
    if ours.kind == theirs.kind:
        return KINDS[ours.kind].text.load().compare_rows(a, b)
    return [
        ComparisonRow("Kind", ours.kind, theirs.kind, "different jobs"),
        ComparisonRow("Learns from", ours.learns_from, theirs.learns_from),
        ComparisonRow("Gradient updates in the run", a.plan.updates_in_run, b.plan.updates_in_run),
        ComparisonRow("Env steps in the run", a.plan.env_steps_in_run, b.plan.env_steps_in_run),
    ]


def alerts_between(a: Planned, b: Planned) -> tuple[str, ...]:
    """Return mismatches that make the rest misleading unless they are intended."""
    alerts = [*a.alerts, *b.alerts]
    ours, theirs = a.loaded.recipe, b.loaded.recipe
    if ours.kind != theirs.kind or not (ours.acts and theirs.acts):
        return tuple(alerts)  # there are not two environments to compare
    first, second = ours.env, theirs.env
    if first.num_agents != second.num_agents:
        alerts.append(
            f"{a.loaded.name} has {plural(first.num_agents, 'agent')} per env, {b.loaded.name} has {second.num_agents:,}. "
            f"Either they are different tasks, or one config is out of date; find out before you compare returns"
        )
    if first.id != second.id:
        alerts.append(f"the environments differ: {first.id} against {second.id}; their returns cannot be compared")
    return tuple(alerts)


def words_between(a: Planned, b: Planned) -> Words:
    """Describe the differences between two plans, of the same kind or not."""
    kinds = [KINDS[side.loaded.recipe.kind] for side in (a, b)]
    if kinds[0] is not kinds[1]:
        sides = zip((a, b), kinds, strict=True)
        return Words((" ".join(f"{side.loaded.name} {kind.job}." for side, kind in sides),), (), ())
    text = kinds[0].text.load()
    return Words(tuple(text.differences(a, b)), tuple(text.better_for(a, b)), tuple(text.better_for(b, a)))


def _settings(a: Planned, b: Planned) -> list[tuple[str, Any, Any]]:
    ours, theirs = flatten(a.loaded.recipe), flatten(b.loaded.recipe)
    in_table = (*_IN_TABLE, *KINDS[a.loaded.recipe.kind].text.load().in_table)
    return [
        (key, ours[key], theirs[key])
        for key in ours
        if key in theirs and ours[key] != theirs[key] and (key in _SHOWN_ANYWAY or not key.startswith(in_table))
    ]


def cell(value: Any, label: str) -> str:
    """Format a value for the table."""
    if value is None:
        return "?"
    if isinstance(value, (bool, str)):
        return show_value(value)
    if "bytes" in label.lower() and value >= 1_000_000:
        return size(value)
    return number(value)


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


@dataclass(frozen=True)
class Scaled:
    """A key, and for each of its values the plan or the error."""

    key: str
    own: Planned  # with the recipe's own value
    own_value: Any
    plans: tuple[tuple[Any, Planned | str], ...]

    def to_json(self) -> dict[str, Any]:
        """Return one object per value; a value that is refused has `error`."""
        return {
            "key": self.key,
            "plans": [
                {"value": value, **({"error": planned} if isinstance(planned, str) else planned.to_json())}
                for value, planned in self.plans
            ],
        }


def scale(
    recipe: str, overrides: Iterable[str], text: str, preset: str | None = None, host: Host | None = None
) -> Scaled:
    """Plan the recipe for each value in `text`, which is KEY=a,b,c."""
    overrides = list(overrides)
    key, equals, values = (part.strip() for part in text.partition("="))
    choices = [value.strip() for value in values.split(",") if value.strip()]
    if not equals or not choices:
        raise MillpondError(f"--scale {text!r} is not KEY=a,b,c, such as env.num_agents=3,4,8,24")
    if len(choices) > MAX_VALUES:
        raise MillpondError(f"--scale {key} has {len(choices)} values; at most {MAX_VALUES} are shown")
    own = plan(recipe, overrides, preset=preset, host=host)
    flat = flatten(own.loaded.recipe)
    if key not in flat:
        near = nearest_key(key, own.loaded.recipe.kind)
        raise MillpondError(f"{key} is not a key that can be scaled" + (f"; did you mean {near}?" if near else ""))
    plans: list[tuple[Any, Planned | str]] = []
    for choice in choices:
        try:
            planned = plan(recipe, [*overrides, f"{key}={choice}"], preset=preset, host=host)
        except MillpondError as error:
            plans.append((parse_override(f"{key}={choice}")[1], str(error)))
        else:
            plans.append((flatten(planned.loaded.recipe)[key], planned))
    if all(isinstance(planned, str) for _, planned in plans):
        raise MillpondError(str(plans[0][1]))
    return Scaled(key, own, flat[key], tuple(plans))


def show_scale(scaled: Scaled) -> str:
    """Return the table, and what each value changes against the recipe's own."""
    name = scaled.key.rpartition(".")[2]
    lines = [*sentence(f"{scaled.own.loaded.name}, by {scaled.key}", 0), ""]
    rows = [(show_value(value), planned.plan) for value, planned in scaled.plans if not isinstance(planned, str)]
    first = name if len(name) <= MAX_NAME_LENGTH else "value"
    text = KINDS[scaled.own.loaded.recipe.kind].text.load()
    lines += table([first, *text.scale_header], [[value, *text.scale_columns(plan)] for value, plan in rows])
    for value, planned in scaled.plans:
        if isinstance(planned, str):
            lines += ["", *sentence(f"{show_value(value)} is refused: {planned}", 2)]
    remarks = []
    for value, other in rows:
        changes = text.scale_remarks(other, scaled.own.plan) if other != scaled.own.plan else []
        remarks += sentence(f"{value}: {'; '.join(changes)}.", 2, "- ") if changes else []
    if remarks:
        lines += ["", f"  Against {name}={show_value(scaled.own_value)}:", *remarks]
    lines += ["", *sentence(keys(scaled.own.loaded.recipe.kind)[scaled.key].description)]
    return "\n".join(lines)
