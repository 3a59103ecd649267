"""Results of an experiment: scores and curves of its runs, the table with intervals, and the conclusion.

Scores, curves and recoveries are cached in the run folders. The conclusion is one sentence that claims no more than the
runs show. The random player is the zero of the common scale.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from millpond.config import MixtureRecipe, load
from millpond.durable import replace_json
from millpond.experiments.mixture_vs_single import EVALUATION_SEED, ExperimentSettings, overrides_of_game, run_folder
from millpond.experiments.statistics import (
    BootstrapEstimate,
    Scores,
    estimate,
    estimate_improvement,
    interquartile_mean,
    mean,
    permutation_test,
)
from millpond.formatting import plural, sentence, table
from millpond.record import read_records
from millpond.store import read_status
from millpond.store.folder import is_run
from millpond.trainers.common.envs import evaluation_vector
from millpond.trainers.common.play import Evaluation, evaluate, evaluate_run

RESULT_FILE = "experiment_result.json"
B, A = "mixture", "single"
ALL = "all games"
SIGNIFICANCE = 0.05  # largest p-value that counts as a difference
CONTROLS = {"single-resets": "one agent with the same resets", "no-resets": "the mixture without resets"}


@dataclass(frozen=True)
class RunResult:
    """Result of one run. `curve` is (frames, return) of the evaluated agent; `agents_curve` that of the agents' mean."""

    score: float
    updates: int
    frames: int
    seconds: float
    agents_score: float | None
    curve: list[list[float]] = field(default_factory=list)
    agents_curve: list[list[float]] = field(default_factory=list)
    resets: list[dict[str, float]] = field(default_factory=list)
    diversity: float | None = None


Results = dict[str, dict[str, dict[int, RunResult]]]  # game, method, seed


def result_of(folder: Path, episodes: int, *, trust: bool | None = None) -> RunResult:
    """Result of a finished run; its evaluation is played once and cached in the run folder.

    `trust` is for code that the run names: see `millpond.trust.require_trust`.
    """
    path = folder / RESULT_FILE
    if path.exists():
        cached = json.loads(path.read_text())
        if cached.pop("episodes") == episodes:
            return RunResult(**cached)
    evaluation, policy = evaluate_run(str(folder), episodes=episodes, seed=EVALUATION_SEED, trust=trust)
    records = list(read_records(folder / "metrics.jsonl"))
    agents = [[r["frames"], r["agents/eval/episode_return"]] for r in records if "agents/eval/episode_return" in r]
    names = ("reset/before", "reset/after", "recovery", "recovered")
    result = RunResult(
        score=evaluation.mean,
        updates=policy.updates,
        frames=int(records[-1]["frames"]),
        seconds=float(records[-1]["seconds"]),
        agents_score=agents[-1][1] if agents and "big/updates" in records[-1] else None,
        curve=[[r["frames"], r["eval/episode_return"]] for r in records if "eval/episode_return" in r],
        agents_curve=agents,
        resets=[
            {"frames": r["frames"], **{name: r[name] for name in names if name in r}}
            for r in records
            if any(name in r for name in names)
        ],
        diversity=max((r["diversity"] for r in records), default=None),
    )
    replace_json(path, {"episodes": episodes, **asdict(result)})
    return result


def collect_results(folder: Path, settings: ExperimentSettings, *, trust: bool | None = None) -> Results:
    """Results of all finished runs; `trust` is as in `result_of`."""
    results: Results = {}
    for game in settings.games:
        for method in settings.methods:
            for seed in range(1, settings.seeds + 1):
                path = run_folder(folder, game, method, seed)
                if is_run(path) and read_status(path).state == "finished":
                    result = result_of(path, settings.episodes, trust=trust)
                    results.setdefault(game, {}).setdefault(method, {})[seed] = result
    return results


def random_scores(folder: Path, settings: ExperimentSettings) -> dict[str, float]:
    """Mean return of a random player in each game, played once and cached."""
    path = folder / "random.json"
    cached: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for game in settings.games:
        key = f"{game} x {settings.episodes}"
        if key not in cached:
            recipe = load(settings.recipe, overrides_of_game(settings, game)).recipe
            assert isinstance(recipe, MixtureRecipe)
            cached[key] = evaluate_random_player(recipe, episodes=settings.episodes, seed=EVALUATION_SEED).mean
            replace_json(path, cached)
    return {game: cached[f"{game} x {settings.episodes}"] for game in settings.games}


class RandomPlayer:
    """Selects actions uniformly at random."""

    def __init__(self, actions: int) -> None:
        self.actions = actions

    def initial_state(self, batch: int, device: torch.device) -> Tensor:
        return torch.zeros(batch, 0, 0, device=device)

    def value(self, observation: Tensor, state: Tensor) -> Tensor:
        return torch.zeros(len(observation), device=observation.device)

    def act(
        self,
        observation: Tensor,
        state: Tensor,
        *,
        action_mask: Tensor | None = None,
        generator: torch.Generator | None = None,
        deterministic: bool = False,
    ) -> Any:
        if action_mask is None:
            action = torch.randint(self.actions, (len(observation),), generator=generator, device=observation.device)
        else:
            action = torch.multinomial(action_mask.float(), 1, generator=generator).squeeze(-1)
        return SimpleNamespace(action=action.int(), state=state)


def evaluate_random_player(recipe: MixtureRecipe, *, episodes: int, seed: int) -> Evaluation:
    """Play episodes of the recipe's environment with random actions."""
    with evaluation_vector(recipe.env, recipe.vector, episodes) as vector:
        player = RandomPlayer(vector.spec.action.sizes[0])
        return evaluate(player, vector, episodes=episodes, seed=seed, device=torch.device("cpu"))


@dataclass(frozen=True)
class MethodRow:
    """One method in one game, or in all of them on the common scale. `improvement` is the probability that it beats A."""

    game: str
    method: str
    runs: int
    mean: BootstrapEstimate
    iqm: BootstrapEstimate
    improvement: BootstrapEstimate | None
    agents_mean: float | None

    def to_json(self) -> dict[str, Any]:
        return {
            "game": self.game,
            "method": self.method,
            "runs": self.runs,
            "mean": self.mean.to_json(),
            "iqm": self.iqm.to_json(),
            "probability_of_improvement_over_single": self.improvement.to_json() if self.improvement else None,
            "agents_mean": self.agents_mean,
        }


@dataclass(frozen=True)
class Answer:
    """Table and conclusion. `random` are the random player's returns, the zero of the common scale."""

    rows: tuple[MethodRow, ...]
    random: Mapping[str, float]
    sentence: str
    recovery: Mapping[str, Mapping[str, float]]

    def to_json(self) -> dict[str, Any]:
        return {
            "rows": [row.to_json() for row in self.rows],
            "random": dict(self.random),
            "recovery": {method: dict(values) for method, values in self.recovery.items()},
            "sentence": self.sentence,
        }


def analyse(results: Results, random: Mapping[str, float], settings: ExperimentSettings) -> Answer:
    """Rows of every game, then of all games if there are several; intervals are deterministic."""
    rng = np.random.default_rng(0)
    methods = [m for m in settings.methods if all(m in results.get(game, {}) for game in settings.games)]
    scores: dict[str, Scores] = {
        method: {game: [r.score for r in results[game][method].values()] for game in settings.games}
        for method in methods
    }
    rows = []
    for game in settings.games:
        for method in methods:
            agents = [r.agents_score for r in results[game][method].values() if r.agents_score is not None]
            rows.append(
                _row(game, method, {game: scores[method][game]}, _single_game(scores.get(A), game), agents, rng)
            )
    if len(settings.games) > 1 and A in methods:
        scaled = {method: _scaled(scores[method], scores[A], random) for method in methods}
        rows += [_row(ALL, method, scaled[method], scaled[A], [], rng) for method in methods]
    return Answer(tuple(rows), random, _conclusion(scores, settings, rng), _recoveries(results, methods))


def _single_game(scores: Scores | None, game: str) -> Scores | None:
    return None if scores is None else {game: scores[game]}


def _row(
    game: str, method: str, own: Scores, single: Scores | None, agents: list[float], rng: np.random.Generator
) -> MethodRow:
    improvement = None if single is None or method == A else estimate_improvement(own, single, rng)
    return MethodRow(
        game,
        method,
        sum(len(runs) for runs in own.values()),
        estimate(own, mean, rng),
        estimate(own, interquartile_mean, rng),
        improvement,
        float(np.mean(agents)) if agents else None,
    )


def _scaled(scores: Scores, single: Scores, random: Mapping[str, float]) -> Scores:
    """Scores on a scale on which the random player is 0 and the mean of A is 1, in every game."""
    scaled = {}
    for game, runs in scores.items():
        span = float(np.mean(single[game])) - random[game]
        scaled[game] = [(score - random[game]) / (span if abs(span) > 1e-9 else 1.0) for score in runs]
    return scaled


def _recoveries(results: Results, methods: list[str]) -> dict[str, dict[str, float]]:
    """Effect of resets by method: change of the evaluation, recoveries, and updates until recovery."""
    recoveries = {}
    for method in methods:
        resets = [reset for game in results.values() for run in game[method].values() for reset in run.resets]
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


def _conclusion(scores: Mapping[str, Scores], settings: ExperimentSettings, rng: np.random.Generator) -> str:
    """One sentence: B beats A, A beats B, or the runs show no difference."""
    if B not in scores or A not in scores:
        return "Not enough runs are finished to compare the mixture with the single agent."
    improvement, p = estimate_improvement(scores[B], scores[A], rng), permutation_test(scores[B], scores[A], rng)
    seeds = min(len(runs) for method in (A, B) for runs in scores[method].values())
    over = f"{plural(seeds, 'seed')} of {plural(len(settings.games), 'game')} at {plural(settings.frames, 'frame')}"
    measured = f"probability of improvement {improvement.value:.2f}, permutation test p = {p:.2g}"
    if p < SIGNIFICANCE and improvement.value > 0.5:
        text = f"The mixture beat the single agent over {over} ({measured})"
    elif p < SIGNIFICANCE:
        text = f"The single agent beat the mixture over {over} ({measured})"
    else:
        text = f"Over {over} no difference between the mixture and the single agent can be shown ({measured})"
    controls = []
    for method, description in CONTROLS.items():
        if method in scores:
            against = estimate_improvement(scores[B], scores[method], rng).value
            p = permutation_test(scores[B], scores[method], rng)
            controls.append(f"against {description} the probability is {against:.2f} (p = {p:.2g})")
    return "; ".join([text, *controls]) + "."


def show(answer: Answer) -> list[str]:
    """Lines of text for a terminal or a document."""

    def cell(number: BootstrapEstimate, row: MethodRow) -> str:
        single_run = row.runs == 1  # has no interval
        return f"{number.value:.2f}" if single_run else f"{number.value:.2f} [{number.low:.2f}, {number.high:.2f}]"

    lines: list[str] = []
    for game in dict.fromkeys(row.game for row in answer.rows):
        rows = [row for row in answer.rows if row.game == game]
        title = f"{game} (random player 0, mean of single 1)" if game == ALL else game
        body = [
            [
                row.method,
                str(row.runs),
                cell(row.mean, row),
                cell(row.iqm, row),
                cell(row.improvement, row) if row.improvement else "-",
            ]
            for row in rows
        ]
        if game in answer.random:
            body.append(["random player", "", f"{answer.random[game]:.2f}", "", ""])
        lines += [title, *table(["method", "runs", "mean", "IQM", "P(> single)"], body)]
        agents = [f"{row.method} {row.agents_mean:.2f}" for row in rows if row.agents_mean is not None]
        if agents:
            lines += sentence(f"mean of the agents before the last reset: {', '.join(agents)}")
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
