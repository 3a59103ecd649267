"""Comparison of two plans: a table, the differences that matter, and what each is better for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millpond.config.check import flatten
from millpond.config.rules import show as show_value
from millpond.formatting import number, plural, size
from millpond.kinds import KINDS
from millpond.planner.kind import ComparisonRow
from millpond.planner.planned import Planned


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


# Settings that the table already shows, or that do not affect learning.
_IN_TABLE = ("trainer.", "env.num_agents", "env.id", "description", "presets", "run_dir", "kind")
_SHOWN_ANYWAY = ("trainer.precision", "trainer.compile", "trainer.cpu_offload")


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
