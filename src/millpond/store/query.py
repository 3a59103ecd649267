"""Choose and sort runs: by text in the name, by state, and by conditions such as `return>0.5` or `env.id=grid`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from millpond.errors import MillpondError
from millpond.store.listing import RunRow
from millpond.store.status import State

Settings = Callable[[Path], Mapping[str, Any]]  # the flat config of a run's folder

FIELDS: dict[str, Callable[[RunRow], Any]] = {
    "return": lambda row: row.result,
    "best": lambda row: row.best_score,
    "steps": lambda row: row.steps[0],
    "speed": lambda row: row.speed,
    "age": lambda row: row.age,
    "state": lambda row: row.state,
    "name": lambda row: row.name,
}
SMALLEST_FIRST = {"age", "state", "name"}
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    "=": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "k": 1e3, "M": 1e6, "G": 1e9}


class QueryError(MillpondError):
    """A condition or order that cannot be used."""

    one_line = True


@dataclass(frozen=True)
class Condition:
    """FIELD OP VALUE: of a column of the list, a counter, a metric of the newest record, or a setting of the run."""

    field: str
    compare: str
    value: str

    @staticmethod
    def parse(text: str) -> Condition:
        match = re.fullmatch(r"\s*([^<>=!\s]+)\s*(>=|<=|!=|==?|>|<)\s*(.*?)\s*", text)
        if match is None:
            raise QueryError(f"--where {text!r} is not FIELD OP VALUE, such as 'return>0.5', 'age<2h' or 'env.id=grid'")
        return Condition(match[1], "=" if match[2] == "==" else match[2], match[3])

    def holds(self, row: RunRow, settings: Settings) -> bool:
        """Return True for a run that has the field, with a value that fits."""
        value = self._value_of(row, settings)
        if value is None:
            return False
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            number = parse_number(self.value)
            if number is None:
                raise QueryError(f"--where {self.field}{self.compare}{self.value}: {self.value!r} is not a number")
            return OPERATORS[self.compare](value, number)
        return OPERATORS[self.compare](str(value).lower(), self.value.lower())

    def _value_of(self, row: RunRow, settings: Settings) -> Any:
        if self.field in FIELDS:
            return FIELDS[self.field](row)
        known = {**row.metrics, **row.counters}
        return known[self.field] if self.field in known else settings(row.folder).get(self.field)


def parse_number(text: str) -> float | None:
    """Parse 0.5, 1e6, 1_000, 2M (millions) or 3h (seconds); None if it is no number."""
    unit = UNITS.get(text[-1:])
    try:
        return float(text[:-1]) * unit if unit is not None else float(text)
    except ValueError:
        return None


def choose_runs(
    rows: Iterable[RunRow],
    *,
    texts: Sequence[str] = (),
    states: Sequence[str] = (),
    where: Sequence[str] = (),
    settings: Settings = lambda folder: {},
) -> list[RunRow]:
    """Return the runs whose names contain all texts, in one of the states, for which all conditions hold."""
    for state in states:
        if state not in get_args(State):
            raise QueryError(f"--state {state!r} is none of {', '.join(get_args(State))}")
    conditions = [Condition.parse(text) for text in where]
    return [
        row
        for row in rows
        if all(text.lower() in row.name.lower() for text in texts)
        and (not states or row.state in states)
        and all(condition.holds(row, settings) for condition in conditions)
    ]


def sort_runs(rows: Iterable[RunRow], by: str, *, reverse: bool = False) -> list[RunRow]:
    """Sort by a column, or a counter or metric of the newest record: the highest first, of names and ages the smallest.

    Runs without a value come last.
    """
    rows = list(rows)

    def value(row: RunRow) -> Any:
        return FIELDS[by](row) if by in FIELDS else {**row.metrics, **row.counters}.get(by)

    with_value = [row for row in rows if value(row) is not None]
    if rows and not with_value and by not in FIELDS:
        raise QueryError(f"--sort {by}: no run has it; sort by {', '.join(FIELDS)}, or by a metric of the runs")
    ordered = sorted(with_value, key=value, reverse=(by not in SMALLEST_FIRST) != reverse)
    return ordered + [row for row in rows if value(row) is None]
