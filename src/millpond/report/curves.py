"""Curves of every metric in the records, whatever the trainer: small multiples in groups."""

from __future__ import annotations

import re
from collections.abc import Sequence

from millpond.record import COUNTERS
from millpond.report.chart import chart, legend, series
from millpond.report.facts import Facts
from millpond.report.markup import Block, Markup, join, tag

# What the names mean, for the line below a chart.
WORDS = {
    "episode_return": "mean return of the episodes that ended",
    "episode_length": "mean length of these episodes, in env steps",
    "reward_per_agent_step": "mean reward of one action",
    "policy_loss": "clipped surrogate; near 0 by design, its slope is what counts",
    "value_loss": "squared error of the values, clipped",
    "entropy": "how undecided the policy is; falls as it makes up its mind",
    "approx_kl": "how far an update moved the policy",
    "clip_fraction": "share of actions whose ratio was clipped",
    "explained_variance": "how much of the returns the values foresaw; 1 is all",
    "grad_norm": "length of the gradient, before it is clipped",
    "agent_steps_per_second": "of the iteration, evaluation included",
    "R_loss": "loss of the reward network",
    "dropped_agent_steps": "steps of rows that a crashed worker left unfinished",
}
# One chart has the same metric of several learners, or of a learned reward and its baselines.
LEARNER = re.compile(r"(agent\d+|big)/(.+)")
HELD_OUT = re.compile(r"held_out/(?:(\w+)/)?(\w+)")
GROUPS = (
    ("Return", re.compile(r"episode_|reward_|env/")),
    ("Held-out episodes", HELD_OUT),
    ("Learning", re.compile(r".*(loss|entropy|kl|clip_fraction|explained_variance|grad_norm|epsilon|lr|beta)$")),
    ("Speed", re.compile(r".*_per_second$")),
)
OTHERS = "Others"
TOLD_ELSEWHERE = ("time/", "eval/")


def curves(facts: Facts) -> Block | None:
    """One chart a metric, over the axis that the run is read by."""
    charts = charted_metrics(facts)
    if not charts:
        return None
    groups: dict[str, list[Markup]] = {name: [] for name in (*(group for group, _ in GROUPS), OTHERS)}
    known = list(WORDS)
    for title in sorted(charts, key=lambda title: known.index(title) if title in known else len(known)):
        metrics = charts[title]
        figure = _figure(facts, title, metrics)
        if figure is not None:
            groups[_group(title)].append(figure)
    several = sum(map(bool, groups.values())) > 1
    parts = [
        join(tag("h3", name) if several else None, tag("div", *figures, class_="multiples"))
        for name, figures in groups.items()
        if figures
    ]
    return Block("Curves", join(*parts)) if parts else None


def charted_metrics(facts: Facts) -> dict[str, list[str]]:
    """The charts by title, in the records' order, each with its metrics: several where several learners have it."""
    found: dict[str, list[str]] = {}
    for record in facts.records:
        for name in record:
            if name in COUNTERS or name.startswith(TOLD_ELSEWHERE):
                continue
            title, _ = _place(name)
            metrics = found.setdefault(title, [])
            if name not in metrics:
                metrics.append(name)
    return found


def _group(title: str) -> str:
    return next((name for name, pattern in GROUPS if pattern.match(title)), OTHERS)


def _figure(facts: Facts, title: str, metrics: Sequence[str]) -> Markup | None:
    picture = metric_chart(facts, title, metrics)
    if picture is None:
        return None
    words = WORDS.get(title)
    keys = legend([_place(metric)[1] for metric in metrics])
    return tag("figure", picture, keys, tag("figcaption", words) if words else None)


def metric_chart(facts: Facts, title: str, metrics: Sequence[str]) -> Markup | None:
    """One metric of one or several learners over the run's axis."""
    lines = [series(facts.records, facts.axis, metric, name=_place(metric)[1]) for metric in metrics]
    return chart(lines, x_label=facts.axis.replace("_", " "), y_label=title)


def _place(metric: str) -> tuple[str, str]:
    """The chart that a metric is drawn in, and the name of its curve there."""
    if learner := LEARNER.fullmatch(metric):
        return learner[2], learner[1]
    if held_out := HELD_OUT.fullmatch(metric):
        return f"held_out/{held_out[2]}", held_out[1] or "learned"
    return metric, "all"
