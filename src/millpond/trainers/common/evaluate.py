"""Evaluation: whole episodes, on seeds that training does not use."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from millpond.errors import MillpondError
from millpond.rollout.collector import PlayablePolicy, put_actions
from millpond.vector import Vector

RESAMPLES = 1_000
WARN_STEPS, MAX_STEPS = 10_000, 200_000  # length of an episode that gives a warning, and that is an error


class EndlessEpisodeError(MillpondError):
    """An episode of an environment does not end."""


@dataclass(frozen=True)
class Evaluation:
    """Results of episodes, in the order of their seeds."""

    returns: tuple[tuple[float, ...], ...]  # [episode][agent]
    lengths: tuple[int, ...]
    infos: tuple[dict[str, float], ...]

    @property
    def episode_returns(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Mean return of the agents of each episode."""
        return np.array([np.mean(agents) for agents in self.returns])

    @property
    def mean(self) -> float:
        return float(self.episode_returns.mean())

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return the bootstrap interval of the mean; its generator is fixed, so that it is reproducible."""
        rng = np.random.default_rng(0)
        picks = rng.integers(0, len(self.returns), size=(RESAMPLES, len(self.returns)))
        means = self.episode_returns[picks].mean(axis=1)
        low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
        return float(low), float(high)

    def metrics(self) -> dict[str, float]:
        """Return the results as metrics of a record."""
        low, high = self.interval()
        names = {name for info in self.infos for name in info}
        return {
            "eval/episode_return": self.mean,
            "eval/episode_return_low": low,
            "eval/episode_return_high": high,
            "eval/episode_length": float(np.mean(self.lengths)),
            **{
                f"eval/env/{name}": float(np.mean([i[name] for i in self.infos if name in i])) for name in sorted(names)
            },
        }

    def to_json(self) -> dict[str, Any]:
        low, high = self.interval()
        return {
            "episodes": len(self.lengths),
            "mean": self.mean,
            "interval_95": [low, high],
            "returns": [list(agents) for agents in self.returns],
            "lengths": list(self.lengths),
            "infos": list(self.infos),
        }


def evaluate(
    policy: PlayablePolicy,
    vector: Vector,
    *,
    episodes: int,
    seed: int,
    device: torch.device,
    deterministic: bool = False,
    before_step: Callable[[], None] | None = None,
    max_steps: int = MAX_STEPS,
) -> Evaluation:
    """Play the first episode of each env of a vector with at least `episodes` envs, from new seeds.

    Only first episodes count: taking the episodes that end first would favour short ones. `before_step()` is called
    before every step, for rendering: after the last step of an episode, its env already shows the next episode.
    Raises `EndlessEpisodeError` if an episode is longer than `max_steps`.
    """
    agents = vector.spec.num_agents
    vector.reset(seed)
    state = policy.initial_state(vector.num_envs * agents, device)
    state = state.view(vector.num_envs, agents, *state.shape[1:])
    generator = torch.Generator(device).manual_seed(seed)
    finished: dict[int, tuple[tuple[float, ...], int, dict[str, float]]] = {}
    expected = set(range(episodes))
    with torch.inference_mode():
        for steps in itertools.count():
            if not expected - finished.keys():
                break
            if steps == WARN_STEPS:
                warnings.warn(
                    f"evaluation: episodes are longer than {steps:,} steps; env.max_steps=N ends them", stacklevel=2
                )
            if steps == max_steps:
                raise EndlessEpisodeError(
                    f"evaluation: an episode is longer than {steps:,} steps, so it may never end; set env.max_steps, "
                    "such as env.max_steps=1000"
                )
            if before_step is not None:
                before_step()
            for _ in range(len(vector)):
                batch = vector.recv()
                for episode in batch.episodes:
                    finished.setdefault(episode.env, (episode.returns, episode.length, episode.info))
                group_state = state[batch.first : batch.last]
                group_state[torch.from_numpy(batch.terminated | batch.truncated).to(device)] = 0.0
                mask = (
                    torch.from_numpy(batch.action_mask).to(device).flatten(0, 1)
                    if batch.action_mask.shape[-1]
                    else None
                )
                chosen = policy.act(
                    torch.from_numpy(np.ascontiguousarray(batch.observation)).to(device).flatten(0, 1),
                    group_state.flatten(0, 1),
                    action_mask=mask,
                    generator=generator,
                    deterministic=deterministic,
                )
                group_state.copy_(chosen.state.view(group_state.shape))
                action = chosen.action.cpu().numpy()
                put_actions(vector.spec.action, action.reshape(*batch.reward.shape, *action.shape[1:]), batch.action)
                vector.send()
    ordered = [finished[env] for env in range(episodes)]
    return Evaluation(
        tuple(returns for returns, _, _ in ordered),
        tuple(length for _, length, _ in ordered),
        tuple(info for _, _, info in ordered),
    )
