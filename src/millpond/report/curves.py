"""Everything that is drawn from the records of any trainer: one small chart per metric, and the time by phase."""

from __future__ import annotations

import re
from collections.abc import Sequence

from millpond.formatting import plural
from millpond.record import COUNTERS, show_number, show_seconds
from millpond.report.chart import COLOURS, Series, chart, legend, series
from millpond.report.facts import Facts
from millpond.report.markup import Block, Markup, join, table, tag

# Captions below the charts; charts are drawn in this order.
CAPTIONS = {
    "episode_return": "mean return of the episodes that ended",
    "episode_length": "mean length of these episodes, in env steps",
    "reward_per_agent_step": "mean reward of one action",
    "reward_std": "standard deviation of the rewards; 0 if all are the same",
    "termination_rate": "share of agent steps that terminated an episode",
    "policy_loss": "clipped surrogate; near 0 by design, only its trend is informative",
    "value_loss": "squared error of the values, clipped",
    "entropy": "entropy of the policy; falls as the policy becomes deterministic",
    "approx_kl": "KL divergence between the policy before and after an update",
    "clip_fraction": "share of actions whose ratio was clipped",
    "explained_variance": "share of the variance of returns that the values explain; 1 is all",
    "grad_norm": "norm of the gradient before clipping",
    "value_gradient_share": "share of the value loss in the gradient of the network that it shares with the policy",
    "observation_range": "difference between the largest and the smallest value of the number that varies most",
    "observation_range_ratio": "that range over the one of the number that varies least",
    "agent_steps_per_second": "of the iteration, evaluation included",
    "R_loss": "loss of the reward network",
    "dropped_agent_steps": "steps of rows that a crashed worker left unfinished",
}
# One chart shows the same metric of several learners, the return of each agent, or a learned reward and its baselines.
LEARNER = re.compile(r"(agent\d+|big)/(.+)")
AGENT_RETURN = re.compile(r"(?!env/)(.+)/(episode_return)")
HELD_OUT = re.compile(r"held_out/(?:(\w+)/)?(\w+)")
GROUPS = (
    ("Return", re.compile(r"episode_|reward_|env/")),
    ("Held-out episodes", HELD_OUT),
    (
        "Learning",
        re.compile(r".*(loss|entropy|kl|clip_fraction|explained_variance|grad_norm|gradient_share|epsilon|lr|beta)$"),
    ),
    ("Speed", re.compile(r".*_per_second$")),
)
OTHERS = "Others"
BAR_WIDTH, BAR_HEIGHT = 860, 44  # of the phases
IN_OTHER_SECTIONS = ("time/", "eval/")


def curves(facts: Facts) -> Block | None:
    """Return one chart per metric, over the run's axis. Metrics that never change are listed below, folded."""
    charts = charted_metrics(facts)
    if not charts:
        return None
    constant = {title: values[0] for title, metrics in charts.items() if len(values := _values(facts, metrics)) == 1}
    charts = {title: metrics for title, metrics in charts.items() if title not in constant}
    groups: dict[str, list[Markup]] = {name: [] for name in (*(group for group, _ in GROUPS), OTHERS)}
    order = list(CAPTIONS)
    for title in sorted(charts, key=lambda title: order.index(title) if title in order else len(order)):
        figure = _figure(facts, title, charts[title])
        if figure is not None:
            groups[_group(title)].append(figure)
    several = sum(map(bool, groups.values())) > 1
    parts = [
        join(tag("h3", name) if several else None, tag("div", *figures, class_="multiples"))
        for name, figures in groups.items()
        if figures
    ]
    if constant:
        rows = [[title, show_number(value), CAPTIONS.get(title, "")] for title, value in sorted(constant.items())]
        heading = tag("summary", f"{plural(len(rows), 'metric')} that never changed")
        parts.append(tag("details", heading, table(["metric", "value", ""], rows, left=3)))
    return Block("Curves", join(*parts)) if parts else None


def _values(facts: Facts, metrics: Sequence[str]) -> list[float]:
    """Return up to two different values of metrics; those of fewer than two records count as different."""
    values: dict[float, None] = {}
    count = 0
    for record in facts.records:
        for metric in metrics:
            if metric in record:
                values[record[metric]] = None
                count += 1
        if len(values) > 1:
            break
    return list(values) if count > len(metrics) else []


def charted_metrics(facts: Facts) -> dict[str, list[str]]:
    """Return the metrics of each chart by its title, in the order of the records."""
    charts: dict[str, list[str]] = {}
    for record in facts.records:
        for name in record:
            if name in COUNTERS or name.startswith(IN_OTHER_SECTIONS):
                continue
            title, _ = _chart_and_curve(name)
            metrics = charts.setdefault(title, [])
            if name not in metrics:
                metrics.append(name)
    return charts


def metric_series(facts: Facts, metrics: Sequence[str]) -> list[Series]:
    """Return the curves of one chart."""
    return [series(facts.records, facts.axis, metric, name=_chart_and_curve(metric)[1]) for metric in metrics]


def metric_chart(facts: Facts, title: str, metrics: Sequence[str]) -> Markup | None:
    """Draw one metric, of one or several learners, over the run's axis."""
    return chart(metric_series(facts, metrics), x_label=facts.axis.replace("_", " "), y_label=title)


def _figure(facts: Facts, title: str, metrics: Sequence[str]) -> Markup | None:
    picture = metric_chart(facts, title, metrics)
    if picture is None:
        return None
    caption = CAPTIONS.get(title)
    names = legend([_chart_and_curve(metric)[1] for metric in metrics])
    return tag("figure", picture, names, tag("figcaption", caption) if caption else None, data_chart=title)


def _group(title: str) -> str:
    return next((name for name, pattern in GROUPS if pattern.match(title)), OTHERS)


def _chart_and_curve(metric: str) -> tuple[str, str]:
    """Return the title of the chart that a metric belongs to, and the name of its curve there."""
    if learner := LEARNER.fullmatch(metric) or AGENT_RETURN.fullmatch(metric):
        return learner[2], learner[1]
    if held_out := HELD_OUT.fullmatch(metric):
        return f"held_out/{held_out[2]}", held_out[1] or "learned"
    return metric, "all"


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
        width = spent / total * BAR_WIDTH
        colour = "other" if name == "other" else f"f{k % COLOURS}"
        title = tag("title", f"{name}: {show_seconds(spent)}, {spent / total:.1%}")
        text = None
        if width > 9 * (len(name) + 4):  # the label fits
            text = tag(
                "text", f"{name} {spent / total:.0%}", x=left + width / 2, y=BAR_HEIGHT / 2 + 5, class_="middle inside"
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
