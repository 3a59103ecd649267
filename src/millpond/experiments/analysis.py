"""Analysis of an experiment's results: the table with intervals, profiles, efficiency, and a conclusion.

The conclusion is one sentence that claims no more than the runs show.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from millpond.experiments.file import Experiment
from millpond.experiments.results import Results, RunResult
from millpond.experiments.statistics import (
    SIGNIFICANCE,
    BootstrapEstimate,
    Scores,
    estimate,
    estimate_improvement,
    interquartile_mean,
    mean,
    optimality_gap,
    performance_profile,
    permutation_test,
)
from millpond.formatting import plural, sentence, short_number, table

ALL = "all worlds"
PROFILE_POINTS = 41


@dataclass(frozen=True)
class MethodRow:
    """One method in one world, or in all of them on the common scale.

    `improvement` is the probability that a run of it beats one of the baseline, and `p_value` that of a permutation test.
    """

    world: str
    method: str
    runs: int
    mean: BootstrapEstimate
    iqm: BootstrapEstimate
    improvement: BootstrapEstimate | None
    p_value: float | None
    agents_mean: float | None
    optimality_gap: BootstrapEstimate | None = None  # on the common scale

    def to_json(self) -> dict[str, Any]:
        return {
            "world": self.world,
            "method": self.method,
            "runs": self.runs,
            "mean": self.mean.to_json(),
            "iqm": self.iqm.to_json(),
            "probability_of_improvement": self.improvement.to_json() if self.improvement else None,
            "p_value": self.p_value,
            "agents_mean": self.agents_mean,
            "optimality_gap": self.optimality_gap.to_json() if self.optimality_gap else None,
        }


@dataclass(frozen=True)
class Profile:
    """Performance profile of a method: the fraction of its runs with a score above each threshold."""

    thresholds: tuple[float, ...]
    fractions: tuple[BootstrapEstimate, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "thresholds": list(self.thresholds),
            "fraction": [one.value for one in self.fractions],
            "low": [one.low for one in self.fractions],
            "high": [one.high for one in self.fractions],
        }


@dataclass(frozen=True)
class Efficiency:
    """Median frames and seconds until a run's curve first reaches a return; None if fewer than half of the runs do."""

    world: str
    method: str
    threshold: float
    reached: int
    runs: int
    frames: float | None
    seconds: float | None


@dataclass(frozen=True)
class Answer:
    """Table and conclusion. `random` are the random player's returns, the zero of the common scale."""

    baseline: str
    rows: tuple[MethodRow, ...]
    random: Mapping[str, float]
    sentence: str
    recovery: Mapping[str, Mapping[str, float]]
    profiles: Mapping[str, Profile]
    efficiency: tuple[Efficiency, ...]
    below_zero: tuple[str, ...] = ()  # worlds in which the baseline is below the zero of the common scale

    def to_json(self) -> dict[str, Any]:
        return {
            "baseline": self.baseline,
            "rows": [row.to_json() for row in self.rows],
            "random": dict(self.random),
            "profiles": {method: profile.to_json() for method, profile in self.profiles.items()},
            "efficiency": [vars(one) for one in self.efficiency],
            "recovery": {method: dict(values) for method, values in self.recovery.items()},
            "sentence": self.sentence,
            "below_zero": list(self.below_zero),
        }


def analyse(results: Results, random: Mapping[str, float], experiment: Experiment) -> Answer:
    """Rows of every world, then of all worlds if there are several; intervals are deterministic."""
    rng = np.random.default_rng(0)
    worlds, baseline = experiment.worlds, experiment.baseline
    methods = [m for m in experiment.methods if all(m in results.get(world, {}) for world in worlds)]
    scores: dict[str, Scores] = {
        method: {world: [r.score for r in results[world][method].values()] for world in worlds} for method in methods
    }
    rows = []
    for world in worlds:
        for method in methods:
            agents = [r.agents_score for r in results[world][method].values() if r.agents_score is not None]
            own, other = {world: scores[method][world]}, _only(scores.get(baseline), world)
            rows.append(_row(world, method, own, None if method == baseline else other, agents, rng))
    scaled = scores
    if baseline in methods and (len(worlds) > 1 or random):
        scaled = {method: _scaled(scores[method], scores[baseline], random) for method in methods}
    if len(worlds) > 1 and baseline in methods:
        rows += [
            _row(ALL, method, scaled[method], None if method == baseline else scaled[baseline], [], rng, gap=True)
            for method in methods
        ]
    return Answer(
        baseline,
        tuple(rows),
        random,
        _conclusion(scores, results, experiment, rng),
        _recoveries(results, methods),
        _profiles(scaled, rng),
        tuple(_efficiencies(results, methods, experiment)),
        _below_zero(scores[baseline], random) if baseline in methods else (),
    )


def _only(scores: Scores | None, world: str) -> Scores | None:
    return None if scores is None else {world: scores[world]}


def _row(
    world: str,
    method: str,
    own: Scores,
    baseline: Scores | None,
    agents: list[float],
    rng: np.random.Generator,
    *,
    gap: bool = False,
) -> MethodRow:
    return MethodRow(
        world,
        method,
        sum(len(runs) for runs in own.values()),
        estimate(own, mean, rng),
        estimate(own, interquartile_mean, rng),
        None if baseline is None else estimate_improvement(own, baseline, rng),
        None if baseline is None else permutation_test(own, baseline, rng),
        float(np.mean(agents)) if agents else None,
        estimate(own, optimality_gap, rng) if gap else None,
    )


def _scaled(scores: Scores, baseline: Scores, random: Mapping[str, float]) -> Scores:
    """Scores on a scale on which the random player is 0 and the mean of the baseline is 1, in every world.

    The mean of the baseline is -1 where it is below the zero, so that a higher return is a higher score everywhere.
    """
    scaled = {}
    for world, runs in scores.items():
        zero = random.get(world, 0.0)
        span = abs(float(np.mean(baseline[world])) - zero)
        scaled[world] = [(score - zero) / (span if span > 1e-9 else 1.0) for score in runs]
    return scaled


def _below_zero(baseline: Scores, random: Mapping[str, float]) -> tuple[str, ...]:
    return tuple(world for world, runs in baseline.items() if float(np.mean(runs)) < random.get(world, 0.0))


def _profiles(scores: Mapping[str, Scores], rng: np.random.Generator) -> dict[str, Profile]:
    everything = [score for runs in scores.values() for values in runs.values() for score in values]
    if not everything:
        return {}
    thresholds = np.linspace(min(everything), max(everything), PROFILE_POINTS).tolist()
    return {
        method: Profile(tuple(thresholds), tuple(performance_profile(runs, thresholds, rng)))
        for method, runs in scores.items()
    }


def _efficiencies(results: Results, methods: list[str], experiment: Experiment) -> list[Efficiency]:
    """Frames and seconds to the threshold: that of the file, else half way from the worst point to the best final mean."""
    efficiencies = []
    for world in experiment.worlds:
        curves = {method: [run for run in results[world][method].values() if run.curve] for method in methods}
        points = [value for runs in curves.values() for run in runs for _, value in run.curve]
        if not points:
            continue
        best = max(float(np.mean([run.curve[-1][1] for run in runs])) for runs in curves.values() if runs)
        threshold = experiment.file.threshold
        if threshold is None:
            threshold = (min(points) + best) / 2
        for method, runs in curves.items():
            reached = [at for at in (_first_at(run, threshold) for run in runs) if at is not None]
            most = 2 * len(reached) > len(runs)  # then the median over all runs is one of those that have reached it
            missing = [float("inf")] * (len(runs) - len(reached))
            frames = float(np.median([at[0] for at in reached] + missing)) if most else None
            timed = most and all(at[1] is not None for at in reached)
            seconds = float(np.median([at[1] or 0.0 for at in reached] + missing)) if timed else None
            efficiencies.append(Efficiency(world, method, threshold, len(reached), len(runs), frames, seconds))
    return efficiencies


def _first_at(run: RunResult, threshold: float) -> tuple[float, float | None] | None:
    """Return frames and seconds of the first point of a curve at or above a return; None if there is none."""
    for index, (frames, value) in enumerate(run.curve):
        if value >= threshold:
            return frames, run.curve_seconds[index] if run.curve_seconds else None
    return None


def _recoveries(results: Results, methods: list[str]) -> dict[str, dict[str, float]]:
    """Effect of resets by method: change of the evaluation, recoveries, and updates until recovery."""
    recoveries = {}
    for method in methods:
        resets = [reset for world in results.values() for run in world[method].values() for reset in run.resets]
        ended = [reset for reset in resets if "recovered" in reset]
        around = [reset for reset in resets if "reset/before" in reset]
        if around:
            updates = [reset["recovery"] for reset in ended if reset["recovered"]]
            recoveries[method] = {
                "resets": len(around),
                "mean_change": float(np.mean([r["reset/after"] - r["reset/before"] for r in around])),
                "recovered": len(updates),
                "not_recovered": len(ended) - len(updates),
                "median_updates": float(np.median(updates)) if updates else float("nan"),
            }
    return recoveries


def _conclusion(
    scores: Mapping[str, Scores], results: Results, experiment: Experiment, rng: np.random.Generator
) -> str:
    """One sentence per claim: a method beats the baseline, the baseline beats it, or the runs show no difference."""
    baseline, claim = experiment.baseline, experiment.file.claim
    claims = [claim] if claim in experiment.methods else [m for m in experiment.methods if m != baseline]
    if baseline not in scores or not any(method in scores for method in claims):
        compared = " and ".join(experiment.label(method) for method in (*claims, baseline))
        return f"Not enough runs are finished to compare {compared}."
    return " ".join(_verdict(method, scores, results, experiment, rng) for method in claims if method in scores)


def _verdict(
    method: str, scores: Mapping[str, Scores], results: Results, experiment: Experiment, rng: np.random.Generator
) -> str:
    baseline, first, second = experiment.baseline, experiment.label(method), experiment.label(experiment.baseline)
    improvement = estimate_improvement(scores[method], scores[baseline], rng)
    p = permutation_test(scores[method], scores[baseline], rng)
    seeds = min(len(runs) for one in (baseline, method) for runs in scores[one].values())
    frames = {run.frames for world in results.values() for one in (baseline, method) for run in world[one].values()}
    over = plural(seeds, "seed") + (
        f" of {plural(len(experiment.worlds), 'world')}" if experiment.worlds != ("",) else ""
    )
    over += f" at {plural(max(frames), 'frame')}" if len(frames) == 1 else ""
    measured = f"probability of improvement {improvement.value:.2f}, permutation test p = {p:.2g}"
    if p < SIGNIFICANCE:
        winner, loser = (first, second) if improvement.value > 0.5 else (second, first)
        text = f"{_capital(winner)} beat {loser} over {over} ({measured})"
    else:
        text = f"Over {over} no difference between {first} and {second} can be shown ({measured})"
    others = []
    if experiment.file.claim == method:
        for other in scores:
            if other not in (method, baseline):
                against = estimate_improvement(scores[method], scores[other], rng).value
                p = permutation_test(scores[method], scores[other], rng)
                others.append(f"against {experiment.label(other)} the probability is {against:.2f} (p = {p:.2g})")
    return "; ".join([text, *others]) + "."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def cell(number: BootstrapEstimate, runs: int) -> str:
    """Format a number with its interval; a single run has none."""
    if runs == 1:
        return short_number(round(number.value, 4))
    return f"{_short(number.value)} [{_short(number.low)}, {_short(number.high)}]"


def _short(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 100 else f"{value:,.0f}"


def cells_of(row: MethodRow) -> list[str]:
    """Return a row of the table: method, runs, mean, interquartile mean, probability of improvement, p-value."""
    return [
        row.method,
        str(row.runs),
        cell(row.mean, row.runs),
        cell(row.iqm, row.runs),
        cell(row.improvement, row.runs) if row.improvement else "-",
        f"{row.p_value:.2g}" if row.p_value is not None else "-",
    ]


def header(answer: Answer) -> list[str]:
    return ["method", "runs", "mean", "IQM", f"P(> {answer.baseline})", "p"]


def title_of(world: str, answer: Answer) -> str:
    """Return the heading of a world's rows."""
    if world != ALL:
        return world or "results"
    zero = "random player 0, " if answer.random else ""
    below = f", -1 in {plural(len(answer.below_zero), 'world')}" if answer.below_zero else ""
    return f"{ALL} ({zero}mean of {answer.baseline} 1{below})"


def show(answer: Answer) -> list[str]:
    """Lines of text for a terminal or a document."""
    lines: list[str] = []
    for world in dict.fromkeys(row.world for row in answer.rows):
        rows = [row for row in answer.rows if row.world == world]
        body = [cells_of(row) for row in rows]
        if world in answer.random:
            body.append(["random player", "", f"{answer.random[world]:.2f}", "", "", ""])
        lines += [title_of(world, answer), *table(header(answer), body)]
        agents = [f"{row.method} {row.agents_mean:.2f}" for row in rows if row.agents_mean is not None]
        if agents:
            lines += sentence(f"mean of the agents before the last reset: {', '.join(agents)}")
        lines += show_efficiency([one for one in answer.efficiency if one.world == world])
        lines.append("")
    for method, recovery in answer.recovery.items():
        median = (
            "never"
            if np.isnan(recovery["median_updates"])
            else f"after {recovery['median_updates']:,.0f} updates (median)"
        )
        lines += sentence(
            f"{method}: {recovery['resets']:.0f} resets changed the evaluation by {recovery['mean_change']:+.2f} on average; "
            f"it recovered {recovery['recovered']:.0f} times, {median}, and {recovery['not_recovered']:.0f} times not "
            f"before the next reset.",
            0,
        )
    return [*lines, "", *sentence(answer.sentence, 0)]


def show_efficiency(efficiencies: list[Efficiency]) -> list[str]:
    """Return a sentence on when the curves of a world's methods reached the threshold."""
    if not efficiencies:
        return []
    parts = []
    for one in efficiencies:
        if one.frames is None:
            parts.append(f"{one.method} {one.reached} of {one.runs} runs")
        else:
            seconds = f", {one.seconds:,.0f} s" if one.seconds is not None else ""
            parts.append(f"{one.method} after {short_number(one.frames)} frames{seconds}")
    return sentence(f"reached {short_number(efficiencies[0].threshold)} (median over runs): {'; '.join(parts)}")
