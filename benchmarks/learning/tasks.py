"""The tasks: recipe, score and target of each."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from millpond.config import PPORecipe, load
from millpond.report.summary import baseline_returns
from millpond.store import Checkpoints, Run
from millpond.trainers.common.policy import load_policy

HERE = Path(__file__).parent
Curve = list[tuple[int, float]]  # (agent steps, score at that time)


@dataclass(frozen=True)
class Task:
    """One line of the table: a recipe with overrides, run with several seeds."""

    name: str
    recipe: str
    score: Callable[[Run], float]
    curve: Callable[[Run], Curve]
    target: str  # in words
    low: float = float("-inf")
    high: float = float("inf")
    overrides: dict[str, Any] = field(default_factory=dict)
    unit: str = "return"

    def passes(self, score: float) -> bool:
        return self.low <= score <= self.high


def records(run: Run) -> list[dict[str, float]]:
    return [json.loads(line) for line in run.metrics_path.read_text().splitlines()]


def evaluated(run: Run) -> float:
    """Return the mean return of the evaluation at the end: episodes on separate seeds, actions sampled as in training."""
    return records(run)[-1]["eval/episode_return"]


def returns(run: Run) -> Curve:
    """Return the mean return of the episodes that ended in each iteration of training."""
    points = [(int(r["agent_steps"]), r["episode_return"]) for r in records(run) if "episode_return" in r]
    every = -(-len(points) // 100)
    return points[every - 1 :: every]


def grid_share(run: Run) -> float:
    """(return - random) / (greedy - random)."""
    return _share(run, evaluated(run))


def grid_shares(run: Run) -> Curve:
    points = [(int(r["agent_steps"]), r["eval/episode_return"]) for r in records(run) if "eval/episode_return" in r]
    return [(steps, _share(run, value)) for steps, value in points]


def _share(run: Run, value: float) -> float:
    recipe = load(run.config_path).recipe
    assert isinstance(recipe, PPORecipe)
    marks = baseline_returns(recipe.env)
    return (value - marks["random"]) / (marks["greedy"] - marks["random"])


def value_errors(run: Run) -> Curve:
    """Return the relative error of the value of the only state, 1 / (1 - gamma), at every checkpoint."""
    loaded, checkpoints = load_policy(str(run.folder)), Checkpoints(run.checkpoints_path)
    truth = 1 / (1 - loaded.recipe.ppo.gamma)
    steps = {int(record["updates"]): int(record["agent_steps"]) for record in records(run)}
    points = []
    for updates in checkpoints.updates():
        loaded.network.load_state_dict(checkpoints.load(updates).weights["policy"])
        value = float(loaded.network.value(torch.ones(1, 1), loaded.network.initial_state(1)))
        points.append((steps[updates], abs(value - truth) / truth))
    return points


def value_error(run: Run) -> float:
    return value_errors(run)[-1][1]


def recall(core: str, target: str, low: float, high: float = float("inf")) -> Task:
    return Task(
        f"recall-{core}", str(HERE / "recall.yaml"), evaluated, returns, target, low, high,
        {"policy.core": core}, "share right",
    )  # fmt: skip


TASKS = [
    Task("cartpole", str(HERE / "cartpole.yaml"), evaluated, returns, "at least 475", low=475),
    Task("pendulum", str(HERE / "pendulum.yaml"), evaluated, returns, "better than -300", low=-300),
    Task("breakout", str(HERE / "breakout.yaml"), evaluated, returns, "at least 3.0 at 1M steps", low=3.0),
    recall("lstm", "at least 95 % right", 0.95),
    recall("gru", "at least 95 % right", 0.95),
    recall("none", "chance: 25 % right, give or take 5", 0.20, 0.30),
    Task("truncation", str(HERE / "truncation.yaml"), value_error, value_errors, "under 2 % off", high=0.02,
         unit="error of the value"),
    Task("truncation-cut", str(HERE / "truncation.yaml"), value_error, value_errors, "over 20 % off", low=0.2,
         overrides={"ppo.bootstrap_truncation": False}, unit="error of the value"),
    Task("grid", "grid", grid_share, grid_shares, "at least 0.6", low=0.6, unit="(return - random) / (greedy - random)"),
]  # fmt: skip
