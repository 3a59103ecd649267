"""Random play of any world, each env from a generator of its own, and a record of what happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.envs.spec import ActionSpec
from millpond.envs.world import Buffers, Episode, World

UNLIKELY = 0xA5  # a byte that no env is likely to show throughout: who still has it was not written to
UNBOUNDED = 1.0  # a continuous action without bounds is drawn from -1..1


def sample_action(spec: ActionSpec, mask: npt.NDArray[np.bool_], random: np.random.Generator) -> npt.NDArray[Any]:
    """A uniform action of one agent that its mask allows; an empty mask allows all."""
    if spec.kind == "continuous":
        low, high = np.array(spec.low), np.array(spec.high)
        low, high = np.where(np.isfinite(low), low, -UNBOUNDED), np.where(np.isfinite(high), high, UNBOUNDED)
        return random.uniform(low, high).astype(np.float32)
    chosen, begin = [], 0
    for size in spec.sizes:
        allowed = np.flatnonzero(mask[begin : begin + size]) if mask.size else np.arange(size)
        chosen.append(int(random.choice(allowed)) if len(allowed) else 0)
        begin += size
    return np.array(chosen if spec.kind == "multidiscrete" else chosen[0], np.int32)


def sample_actions(spec: ActionSpec, buffers: Buffers, randoms: list[np.random.Generator]) -> None:
    """Write an action for every agent, each env drawing from its own generator."""
    for env, random in enumerate(randoms):
        for agent in range(buffers.alive.shape[1]):
            buffers.action[env, agent] = sample_action(spec, buffers.action_mask[env, agent], random)


@dataclass(frozen=True)
class Trajectory:
    """What a world showed: T steps, first axis time; observations have one more, the first."""

    observation: npt.NDArray[Any]  # [T + 1, N, A, ...]
    final_observation: npt.NDArray[Any]  # [T, N, A, ...], zero where no episode ended
    final_written: npt.NDArray[np.bool_]  # [T, N, A]
    reward: npt.NDArray[np.float32]  # [T, N, A]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    alive: npt.NDArray[np.bool_]  # [T + 1, N, A]
    episodes: list[Episode]

    @property
    def ended(self) -> npt.NDArray[np.bool_]:
        return np.asarray(self.terminated | self.truncated)

    def differs_from(self, other: Trajectory) -> str | None:
        """Where two trajectories first differ, in words, or None."""
        for name in ("observation", "reward", "terminated", "truncated", "alive", "final_observation"):
            ours, theirs = getattr(self, name), getattr(other, name)
            same = (ours == theirs) | ((ours != ours) & (theirs != theirs))
            if not same.all():
                step, env = np.argwhere(~same)[0][:2]
                return f"{name} of env {env} differs first at step {step}"
        return None

    def env(self, place: int) -> Trajectory:
        """One env's part; its episodes are left out."""
        pick = slice(place, place + 1)
        return Trajectory(
            self.observation[:, pick],
            self.final_observation[:, pick],
            self.final_written[:, pick],
            self.reward[:, pick],
            self.terminated[:, pick],
            self.truncated[:, pick],
            self.alive[:, pick],
            [],
        )


def play(world: World, seeds: npt.NDArray[np.uint64], steps: int, cut: int | None = None) -> Trajectory:
    """Reset a world and play it at random. With `cut`, each step goes in two parts, 0..cut-1 and cut..N-1."""
    world.reset(seeds)
    return play_on(world, [np.random.default_rng(int(seed)) for seed in seeds], steps, cut)


def play_on(world: World, randoms: list[np.random.Generator], steps: int, cut: int | None = None) -> Trajectory:
    """Play on from where a world is."""
    buffers, agents = world.buffers, world.buffers.alive.shape
    final_bytes = buffers.final_observation.reshape(*agents, -1).view(np.uint8)
    seen, alive = [buffers.observation.copy()], [buffers.alive.copy()]
    finals: list[npt.NDArray[Any]] = []
    written: list[npt.NDArray[np.bool_]] = []
    rewards: list[npt.NDArray[np.float32]] = []
    terminated: list[npt.NDArray[np.bool_]] = []
    truncated: list[npt.NDArray[np.bool_]] = []
    episodes: list[Episode] = []
    for _ in range(steps):
        sample_actions(world.spec.action, buffers, randoms)
        final_bytes[...] = UNLIKELY
        for first, last in ((0, world.num_envs),) if cut is None else ((0, cut), (cut, world.num_envs)):
            world.step(first, last)
        written.append((final_bytes != UNLIKELY).any(2))
        finals.append(buffers.final_observation.copy())
        finals[-1][~(buffers.terminated | buffers.truncated)] = 0
        rewards.append(buffers.reward.copy())
        terminated.append(buffers.terminated.copy())
        truncated.append(buffers.truncated.copy())
        seen.append(buffers.observation.copy())
        alive.append(buffers.alive.copy())
        episodes += world.episodes()
    return Trajectory(
        np.stack(seen),
        np.stack(finals),
        np.stack(written),
        np.stack(rewards),
        np.stack(terminated),
        np.stack(truncated),
        np.stack(alive),
        episodes,
    )
