"""What scripted players reach in an environment that has some: the marks that a learned return is measured against."""

from __future__ import annotations

import json
from functools import cache

from millpond.config.env import EnvConfig
from millpond.config.env_facts import env_options

EPISODES = 64


def yardsticks(env: EnvConfig) -> dict[str, float]:
    """Mean returns by player, `random` and `greedy`; none where the environment has no players."""
    if env.id != "grid":
        return {}
    _, options = env_options(env.model_copy(update={"stagger": False}))
    return dict(_played(json.dumps(options, sort_keys=True)))


def share(learned: float, marks: dict[str, float]) -> float | None:
    """(learned - random) / (greedy - random): 0 is chance, 1 is the greedy player."""
    if not {"random", "greedy"} <= marks.keys() or marks["greedy"] == marks["random"]:
        return None
    return (learned - marks["random"]) / (marks["greedy"] - marks["random"])


@cache
def _played(options: str) -> tuple[tuple[str, float], ...]:
    from millpond.envs.grid.players import yardstick

    settings = json.loads(options)
    return tuple(
        (player, float(yardstick(player, settings, num_envs=EPISODES)["episode_return"]))
        for player in ("random", "greedy")
    )
