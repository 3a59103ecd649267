"""Results of the runs of an experiment: scores, curves and recoveries, cached in the run folders; the random player."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from millpond.config import MixtureRecipe, load
from millpond.durable import replace_json
from millpond.experiments.mixture_vs_single import EVALUATION_SEED, ExperimentSettings, run_folder
from millpond.record import read_records
from millpond.store import read_status
from millpond.store.run import is_run
from millpond.trainers.common.envs import evaluation_vector
from millpond.trainers.common.evaluate import Evaluation, evaluate
from millpond.trainers.common.play import evaluate_run

RESULT_FILE = "experiment_result.json"


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


def result_of(folder: Path, episodes: int) -> RunResult:
    """Result of a finished run; its evaluation is played once and cached in the run folder."""
    path = folder / RESULT_FILE
    if path.exists():
        cached = json.loads(path.read_text())
        if cached.pop("episodes") == episodes:
            return RunResult(**cached)
    evaluation, policy = evaluate_run(str(folder), episodes=episodes, seed=EVALUATION_SEED)
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


def collect_results(folder: Path, settings: ExperimentSettings) -> Results:
    """Results of all finished runs."""
    results: Results = {}
    for game in settings.games:
        for method in settings.methods:
            for seed in range(1, settings.seeds + 1):
                path = run_folder(folder, game, method, seed)
                if is_run(path) and read_status(path).state == "finished":
                    results.setdefault(game, {}).setdefault(method, {})[seed] = result_of(path, settings.episodes)
    return results


def random_scores(folder: Path, settings: ExperimentSettings) -> dict[str, float]:
    """Mean return of a random player in each game, played once and cached."""
    path = folder / "random.json"
    cached: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for game in settings.games:
        key = f"{game} x {settings.episodes}"
        if key not in cached:
            recipe = load(settings.recipe, (*settings.overrides, f"env.id={game}")).recipe
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
        action = torch.randint(self.actions, (len(observation),), generator=generator, device=observation.device)
        return SimpleNamespace(action=action.int(), state=state)


def evaluate_random_player(recipe: MixtureRecipe, *, episodes: int, seed: int) -> Evaluation:
    """Play episodes of the recipe's environment with random actions."""
    with evaluation_vector(recipe.env, recipe.vector, episodes) as vector:
        player = RandomPlayer(vector.spec.action.sizes[0])
        return evaluate(player, vector, episodes=episodes, seed=seed, device=torch.device("cpu"))
