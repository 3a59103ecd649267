"""Results of runs: scores and curves, kept as small JSON files; and the random player, the zero of the common scale."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from millpond.config import Recipe
from millpond.durable import replace_json
from millpond.envs.spec import ActionSpec
from millpond.experiments.file import Experiment
from millpond.experiments.jobs import is_finished
from millpond.record import RETURNS, Record, read_records
from millpond.trainers.common.envs import evaluation_vector
from millpond.trainers.common.play import Evaluation, evaluate, evaluate_run
from millpond.trainers.common.session import load_to_run

EARLIER_FILE = "experiment_result.json"  # in the run folder, of Millpond 0.2
EVALUATION_SEED = 7_000_003  # differs from the seeds of the evaluations during a run
MAX_POINTS = 200  # of a curve


@dataclass(frozen=True)
class RunResult:
    """Result of one run. `curve` is (frames, return) of the evaluated agent; `agents_curve` that of the agents' mean.

    `curve_seconds` are the seconds of training at the points of the curve; results of Millpond 0.2 have none.
    """

    score: float
    updates: int
    frames: int
    seconds: float
    agents_score: float | None
    curve: list[list[float]] = field(default_factory=list)
    agents_curve: list[list[float]] = field(default_factory=list)
    resets: list[dict[str, float]] = field(default_factory=list)
    diversity: float | None = None
    curve_seconds: list[float] = field(default_factory=list)


Results = dict[str, dict[str, dict[int, RunResult]]]  # world, method, seed


def result_path(folder: Path, run: str) -> Path:
    return folder / "results" / f"{run}.json"


def read_result(folder: Path, run: str, episodes: int) -> RunResult | None:
    """Return the result of a run if it is there, with as many episodes. The run itself need not be."""
    for path in (result_path(folder, run), folder / "runs" / run / EARLIER_FILE):
        if path.exists():
            cached = json.loads(path.read_text())
            if cached.pop("episodes") == episodes:
                return RunResult(**cached)
    return None


def result_of(folder: Path, run: str, episodes: int, *, trust: bool | None = None) -> RunResult:
    """Return the result of a finished run; its evaluation is played once and cached in `folder`/results.

    `trust` is for code that the run names: see `millpond.trust.require_trust`.
    """
    cached = read_result(folder, run, episodes)
    if cached is not None:
        return cached
    run_folder = folder / "runs" / run
    evaluation, policy = evaluate_run(str(run_folder), episodes=episodes, seed=EVALUATION_SEED, trust=trust)
    records = list(read_records(run_folder / "metrics.jsonl"))
    agents = [[r["frames"], r["agents/eval/episode_return"]] for r in records if "agents/eval/episode_return" in r]
    names = ("reset/before", "reset/after", "recovery", "recovered")
    curve = curve_of(records)
    result = RunResult(
        score=evaluation.mean,
        updates=policy.updates,
        frames=int(records[-1]["frames"]),
        seconds=float(records[-1]["seconds"]),
        agents_score=agents[-1][1] if agents and "big/updates" in records[-1] else None,
        curve=[[frames, value] for frames, value, _ in curve],
        agents_curve=agents,
        resets=[
            {"frames": r["frames"], **{name: r[name] for name in names if name in r}}
            for r in records
            if any(name in r for name in names)
        ],
        diversity=max((r["diversity"] for r in records if "diversity" in r), default=None),
        curve_seconds=[seconds for _, _, seconds in curve],
    )
    path = result_path(folder, run)
    path.parent.mkdir(exist_ok=True)
    replace_json(path, {"episodes": episodes, **asdict(result)})
    return result


def curve_of(records: Sequence[Record]) -> list[tuple[float, float, float]]:
    """Return frames, return and seconds: of the evaluations if there are several, else of the training's episodes."""
    by_name = {name: [(r["frames"], r[name], r["seconds"]) for r in records if name in r] for name in RETURNS}
    points = next((points for points in by_name.values() if len(points) > 1), [])
    every = -(-len(points) // MAX_POINTS) or 1
    return points[::-1][::every][::-1]  # with the last point


def collect_results(folder: Path, experiment: Experiment, *, trust: bool | None = None) -> Results:
    """Results of all finished runs; `trust` is as in `result_of`."""
    results: Results = {}
    episodes = experiment.file.episodes
    for world in experiment.worlds:
        for method in experiment.methods:
            for seed in experiment.seeds:
                run = experiment.run_name(world, method, seed)
                cached = read_result(folder, run, episodes)
                if cached is None and is_finished(folder, run):
                    cached = result_of(folder, run, episodes, trust=trust)
                if cached is not None:
                    results.setdefault(world, {}).setdefault(method, {})[seed] = cached
    return results


def random_scores(folder: Path, experiment: Experiment) -> dict[str, float]:
    """Mean return of a random player in each world, played once and cached."""
    if not experiment.file.random_player:
        return {}
    path, episodes = folder / "random.json", experiment.file.episodes
    cached: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for world in experiment.worlds:
        key = f"{world} x {episodes}"
        if key not in cached:
            # The experiment's code was trusted before its runs started.
            recipe = load_to_run(experiment.file.recipe, experiment.world_overrides(world), trust=True).recipe
            cached[key] = evaluate_random_player(recipe, episodes=episodes, seed=EVALUATION_SEED).mean
            replace_json(path, cached)
    return {world: cached[f"{world} x {episodes}"] for world in experiment.worlds}


class RandomPlayer:
    """Selects actions uniformly at random; without bounds, numbers from the standard normal distribution."""

    def __init__(self, action: ActionSpec, seed: int) -> None:
        self._action, self._rng = action, np.random.default_rng(seed)

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
        batch, allowed = len(observation), None if action_mask is None else action_mask.cpu().numpy().astype(bool)
        choices, first = [], 0
        for size in self._action.sizes:
            weight = self._rng.random((batch, size))
            if allowed is not None:
                weight[~allowed[:, first : first + size]] = -1.0
            choices.append(weight.argmax(-1))
            first += size
        low, high = np.array(self._action.low), np.array(self._action.high)
        bounded = np.isfinite(low) & np.isfinite(high)
        numbers = self._rng.normal(size=(batch, len(low)))
        numbers[:, bounded] = self._rng.uniform(low[bounded], high[bounded], (batch, int(bounded.sum())))
        if allowed is not None:
            numbers[~allowed[:, first:]] = 0.0
        chosen = np.stack(choices, -1) if choices else np.zeros((batch, 0), np.int32)
        return SimpleNamespace(action=torch.from_numpy(self._action.join(chosen, numbers)), state=state)


def evaluate_random_player(recipe: Recipe, *, episodes: int, seed: int) -> Evaluation:
    """Play episodes of the recipe's environment with random actions."""
    with evaluation_vector(recipe.env, recipe.vector, episodes) as vector:
        player = RandomPlayer(vector.spec.action, seed)
        return evaluate(player, vector, episodes=episodes, seed=seed, device=torch.device("cpu"))
