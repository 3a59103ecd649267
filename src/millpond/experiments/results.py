"""A player that knows nothing: the zero of every scale."""

from __future__ import annotations

import json
from collections.abc import Callable
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


class RandomPlayer:
    """Every action as likely as any other."""

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


def play_at_random(recipe: MixtureRecipe, *, episodes: int, seed: int) -> Evaluation:
    """Episodes of the recipe's environment, played at random."""
    with evaluation_vector(recipe.env, recipe.vector, episodes) as vector:
        player = RandomPlayer(vector.spec.action.sizes[0])
        return evaluate(player, vector, episodes=episodes, seed=seed, device=torch.device("cpu"))


# -- What the runs of an experiment came to: final scores, curves, recoveries. Read from the run folders, and kept.

FILE = "experiment_result.json"


@dataclass(frozen=True)
class RunResult:
    """One run. `curve` is (frames, return) of whom it is for; `agents_curve` that of the agents' mean."""

    score: float
    updates: int
    frames: int
    seconds: float
    agents_score: float | None
    curve: list[list[float]] = field(default_factory=list)
    agents_curve: list[list[float]] = field(default_factory=list)
    resets: list[dict[str, float]] = field(default_factory=list)
    diversity: float | None = None


def result_of(folder: Path, episodes: int) -> RunResult:
    """A finished run's result; its episodes are played once and kept beside it."""
    path = folder / FILE
    if path.exists():
        kept = json.loads(path.read_text())
        if kept.pop("episodes") == episodes:
            return RunResult(**kept)
    evaluation, policy = evaluate_run(str(folder), episodes=episodes, seed=EVALUATION_SEED)
    records = list(read_records(folder / "metrics.jsonl"))
    agents = [[r["frames"], r["agents/eval/episode_return"]] for r in records if "agents/eval/episode_return" in r]
    names = ("reset/before", "reset/after", "recovery", "recovered")
    found = RunResult(
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
    replace_json(path, {"episodes": episodes, **asdict(found)})
    return found


Results = dict[str, dict[str, dict[int, RunResult]]]  # game, method, seed


def collect_results(
    folder: Path, settings: ExperimentSettings, say: Callable[[str], None] = lambda line: None
) -> Results:
    """All runs that are finished."""
    results: Results = {}
    for game in settings.games:
        for method in settings.methods:
            for seed in range(1, settings.seeds + 1):
                path = run_folder(folder, game, method, seed)
                if is_run(path) and read_status(path).state == "finished":
                    results.setdefault(game, {}).setdefault(method, {})[seed] = result_of(path, settings.episodes)
    return results


def random_scores(folder: Path, settings: ExperimentSettings) -> dict[str, float]:
    """What a random player gets in each game, played once and kept."""
    path = folder / "random.json"
    kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for game in settings.games:
        key = f"{game} x {settings.episodes}"
        if key not in kept:
            recipe = load(settings.recipe, (*settings.overrides, f"env.id={game}")).recipe
            assert isinstance(recipe, MixtureRecipe)
            kept[key] = play_at_random(recipe, episodes=settings.episodes, seed=EVALUATION_SEED).mean
            replace_json(path, kept)
    return {game: kept[f"{game} x {settings.episodes}"] for game in settings.games}
