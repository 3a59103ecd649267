"""Runs side by side: final and best return, steps, time and speed, and the settings that differ.

Runs that differ in nothing but their seed are one group, with an interval of the mean over its runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from millpond.config.check import flatten_mapping
from millpond.config.rules import show as show_value
from millpond.errors import MillpondError
from millpond.formatting import plural, sentence, short_number, table
from millpond.planner import plan
from millpond.planner.compare import words_between
from millpond.planner.planned import Planned, show_alerts
from millpond.record import HEADLINES, RETURNS, Record, show_seconds
from millpond.report.chart import Series, series
from millpond.report.facts import Facts, read_facts

# Settings that may differ between the runs of a group: they do not affect what is learned.
NOT_LEARNING = ("seed", "run_dir", "description", "expect", "log.", "checkpoint.", "presets.")
MIN_EVALUATIONS = 5  # of every run, for curves of evaluations instead of training episodes
# 97.5 % quantiles of Student's t distribution, for 1, 2, ... degrees of freedom
T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


@dataclass(frozen=True)
class Interval:
    """A number with its 95 % interval, if it has one."""

    value: float
    low: float | None = None
    high: float | None = None

    def show(self) -> str:
        """Format as 0.83, or as 0.83 (0.79 to 0.87)."""
        if self.low is None or self.high is None:
            return short_number(self.value)
        return f"{short_number(self.value)} ({short_number(self.low)} to {short_number(self.high)})"


@dataclass(frozen=True)
class ComparedRun:
    """A run, its settings by dotted key, its curve, and its figures."""

    facts: Facts
    label: str
    settings: Mapping[str, Any]
    curve: Series
    final: Interval | None
    best: float | None

    @property
    def steps(self) -> float:
        return self.facts.last.get(self.facts.axis, 0.0)

    @property
    def seconds(self) -> float:
        return self.facts.last.get("seconds", 0.0)

    @property
    def speed(self) -> float | None:
        return self.steps / self.seconds if self.seconds else None


@dataclass(frozen=True)
class RunGroup:
    """Runs with the same settings, apart from their seeds."""

    label: str
    runs: tuple[ComparedRun, ...]

    def mean(self, figure: Callable[[ComparedRun], float | None]) -> Interval | None:
        """Return the mean of a figure over the runs that have it, with the 95 % interval of Student's t."""
        values = [value for value in map(figure, self.runs) if value is not None]
        return mean_interval(values) if values else None

    @property
    def final(self) -> Interval | None:
        """Final value: with the interval of the run's evaluation, or of the mean over several runs."""
        if len(self.runs) == 1:
            return self.runs[0].final
        return self.mean(lambda run: None if run.final is None else run.final.value)

    @property
    def best(self) -> Interval | None:
        return self.mean(lambda run: run.best)


@dataclass(frozen=True)
class RunComparison:
    """Everything that `millpond compare RUN RUN ...` prints."""

    metric: str
    axis: str
    lower_is_better: bool
    groups: tuple[RunGroup, ...]
    differences: tuple[tuple[str, tuple[Any, ...]], ...]  # keys, and the value in each group
    words: tuple[str, ...]  # for two groups of the same kind
    alerts: tuple[str, ...]
    problems: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the table, and the settings that differ by group."""
        return {
            "metric": self.metric,
            "axis": self.axis,
            "groups": [
                {
                    "label": group.label,
                    "runs": [str(run.facts.folder) for run in group.runs],
                    "final": None if group.final is None else vars(group.final),
                    "best": None if group.best is None else vars(group.best),
                    "finals": [None if run.final is None else run.final.value for run in group.runs],
                    self.axis: [run.steps for run in group.runs],
                    "seconds": [run.seconds for run in group.runs],
                    "speed": [run.speed for run in group.runs],
                }
                for group in self.groups
            ],
            "settings": [{"key": key, "values": list(values)} for key, values in self.differences],
            "differences": list(self.words),
            "alerts": list(self.alerts),
        }


def mean_interval(values: Sequence[float]) -> Interval:
    """Return the mean and its 95 % interval by Student's t; of a single value, no interval."""
    mean, count = math.fsum(values) / len(values), len(values)
    if count < 2:
        return Interval(mean)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    quantile = T_QUANTILES[count - 2] if count - 2 < len(T_QUANTILES) else 2.0
    reach = quantile * deviation / math.sqrt(count)
    return Interval(mean, mean - reach, mean + reach)


def compare_runs(folders: Sequence[Path], metric: str | None = None) -> RunComparison:
    """Read the runs and compare them, by default in their return."""
    read = [read_facts(folder) for folder in folders]
    metric = metric or common_metric(read)
    missing = [facts.name for facts in read if not any(metric in record for record in facts.records)]
    if len(missing) == len(read):
        known = sorted({name for facts in read for name in facts.last if not name.startswith("time/")})
        hint = f"; they have {', '.join(known)}" if known else ""
        raise MillpondError(f"none of the runs has recorded {metric!r}{hint}")
    axis = read[0].axis if len({facts.axis for facts in read}) == 1 else "updates"
    lower = "loss" in metric
    runs = [_compared(facts, label, metric, axis, lower) for facts, label in zip(read, _labels(folders), strict=True)]
    groups = _group(runs)
    problems = [f"{facts.name}: {problem}" for facts in read for problem in facts.problems]
    problems += [f"{name} has not recorded {metric} yet" for name in missing]
    return RunComparison(
        metric, axis, lower, groups, _differences(groups), _words(groups), _alerts(groups), tuple(problems)
    )


def common_metric(read: Sequence[Facts]) -> str:
    """Return the metric that runs are compared in: evaluations if all have some, else training returns, else a loss."""

    def count(facts: Facts, name: str) -> int:
        return sum(name in record for record in facts.records)

    if all(count(facts, RETURNS[0]) >= MIN_EVALUATIONS for facts in read):
        return RETURNS[0]
    order = (*reversed(RETURNS), *HEADLINES)
    shared = (name for name in order if all(count(facts, name) for facts in read))
    either = (name for name in order if any(count(facts, name) for facts in read))
    return next(shared, next(either, RETURNS[-1]))


def _compared(facts: Facts, label: str, metric: str, axis: str, lower: bool) -> ComparedRun:
    recorded = [record for record in facts.records if metric in record]
    curve = series(recorded, axis, metric, name=label)
    best = (min if lower else max)((record[metric] for record in recorded), default=None)
    return ComparedRun(facts, label, flatten_mapping(facts.config), curve, _final(recorded, metric), best)


def _final(recorded: Sequence[Record], metric: str) -> Interval | None:
    if not recorded:
        return None
    last = recorded[-1]
    return Interval(last[metric], last.get(f"{metric}_low"), last.get(f"{metric}_high"))


def _labels(folders: Sequence[Path]) -> list[str]:
    """Return the names of runs; where two are the same, their paths."""
    names = [folder.resolve().name for folder in folders]
    return [name if names.count(name) == 1 else str(folder) for name, folder in zip(names, folders, strict=True)]


def _group(runs: Sequence[ComparedRun]) -> tuple[RunGroup, ...]:
    members: dict[str, list[ComparedRun]] = {}
    for run in runs:
        learning = {k: v for k, v in run.settings.items() if not k.startswith(NOT_LEARNING)}
        key = repr(sorted(learning.items())) if learning else run.label  # without a config, alone
        members.setdefault(key, []).append(run)
    return tuple(RunGroup(_group_label(group), tuple(group)) for group in members.values())


def _group_label(runs: Sequence[ComparedRun]) -> str:
    return runs[0].label if len(runs) == 1 else f"{runs[0].label} ({plural(len(runs), 'seed')})"


def _differences(groups: Sequence[RunGroup]) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    """Return the keys that all configs have, with different values."""
    first, *others = (group.runs[0].settings for group in groups)
    rows = ((key, (first[key], *(values.get(key) for values in others))) for key in first)
    seeds = all(len(group.runs) == 1 for group in groups)  # else a group has several
    return tuple(
        (key, values)
        for key, values in rows
        if all(key in other for other in others)
        and any(value != values[0] for value in values)
        and not key.startswith(NOT_LEARNING[1:] if seeds else NOT_LEARNING)
    )


def _alerts(groups: Sequence[RunGroup]) -> tuple[str, ...]:
    ids = dict.fromkeys(str(group.runs[0].settings.get("env.id")) for group in groups)
    if len(ids) < 2:
        return ()
    return (f"the environments differ ({', '.join(ids)}): their returns cannot be compared",)


def _words(groups: Sequence[RunGroup]) -> tuple[str, ...]:
    """Return the differences that matter between two groups, if their plans differ and can be made here."""
    if len(groups) != 2:
        return ()
    try:
        first, second = map(_plan, groups)
    except MillpondError:
        return ()
    return words_between(first, second).differences if first.plan != second.plan else ()


def _plan(group: RunGroup) -> Planned:
    planned = plan(group.runs[0].facts.folder / "config.yaml")
    return replace(planned, loaded=replace(planned.loaded, name=group.label))


def show_runs_compared(comparison: RunComparison) -> str:
    """Return a comparison as text: alerts, the table, runs of groups, settings that differ, and what that means."""
    steps = "steps" if comparison.axis == "agent_steps" else comparison.axis.replace("_", " ")
    names = [group.label for group in comparison.groups]
    lines = [f"{comparison.metric} of {plural(sum(len(g.runs) for g in comparison.groups), 'run')}"]
    lines += show_alerts(comparison.alerts)
    rows = [_row(group) for group in comparison.groups]
    best = "lowest" if comparison.lower_is_better else "best"
    lines += ["", *table(["", "final (95%)", best, steps, "time", "speed"], rows)]
    for group in comparison.groups:
        if len(group.runs) > 1:
            figures = [f"{run.label} {'-' if run.final is None else run.final.show()}" for run in group.runs]
            lines += ["", f"Final of {group.label}", *sentence(", ".join(figures))]
    if comparison.differences:
        lines += ["", "Settings that differ"]
        for key, values in comparison.differences:
            shown = "; ".join(f"{show_value(value)} in {name}" for name, value in zip(names, values, strict=True))
            lines += sentence(f"{key}: {shown}")
    elif len(comparison.groups) > 1:
        lines += ["", "No setting differs."]
    if comparison.words:
        lines += ["", "Differences that matter"]
        lines += [line for point in comparison.words for line in sentence(point, 2, "- ")]
    return "\n".join(lines)


def _row(group: RunGroup) -> list[str]:
    steps, seconds, speed = (group.mean(figure) for figure in (_steps, _seconds, _speed))
    return [
        group.label,
        "-" if group.final is None else group.final.show(),
        "-" if group.best is None else short_number(group.best.value),
        "-" if steps is None else short_number(steps.value),
        "-" if seconds is None else show_seconds(seconds.value),
        "-" if speed is None else f"{short_number(speed.value)}/s",
    ]


def _steps(run: ComparedRun) -> float:
    return run.steps


def _seconds(run: ComparedRun) -> float:
    return run.seconds


def _speed(run: ComparedRun) -> float | None:
    return run.speed
