"""Play any environment with random actions, one generator per env, and record the trajectory."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.envs.env_batch import Buffers, EnvBatch, EpisodeStats
from millpond.envs.spec import ActionSpec

FILL_BYTE = 0xA5  # an array that consists of it after a step was not written to
MAX_OBSERVATION_BYTES = 64 * 1024**2  # recorded in full: images of 20 agents are megabytes per step
COMPARED = {  # arrays of a trajectory, and their names in the report of a difference
    "checksum": "observation",
    "reward": "reward",
    "terminated": "terminated",
    "truncated": "truncated",
    "alive": "alive",
    "final_checksum": "final_observation",
}
Watch = Callable[[int], None]  # called with the steps done
UNBOUNDED = 1.0  # a continuous action without bounds is drawn from -1..1


def sample_action(spec: ActionSpec, mask: npt.NDArray[np.bool_], random: np.random.Generator) -> npt.NDArray[Any]:
    """Draw a uniform action of one agent that its mask allows; an empty mask allows all."""
    low, high = np.array(spec.low), np.array(spec.high)
    low, high = np.where(np.isfinite(low), low, -UNBOUNDED), np.where(np.isfinite(high), high, UNBOUNDED)
    vector = random.uniform(low, high).astype(np.float32) if spec.low else np.zeros(0, np.float32)
    choices, start = [], 0
    for size in spec.sizes:
        allowed = np.flatnonzero(mask[start : start + size]) if mask.size else np.arange(size)
        choices.append(int(random.choice(allowed)) if len(allowed) else 0)
        start += size
    if mask.size:
        vector *= mask[start:]
    return spec.join(np.array(choices, np.int32), vector)


def sample_actions(spec: ActionSpec, buffers: Buffers, randoms: list[np.random.Generator]) -> None:
    """Write a random action for every agent, drawn from the env's own generator."""
    for env, random in enumerate(randoms):
        for agent in range(buffers.alive.shape[1]):
            buffers.action[env, agent] = sample_action(spec, buffers.action_mask[env, agent], random)


@dataclass(frozen=True)
class Trajectory:
    """T steps of N envs with A agents, time first; observations have one more entry, the first observation.

    Observations are recorded in full for as many steps as fit in `MAX_OBSERVATION_BYTES`, and as checksums for all.
    """

    observation: npt.NDArray[Any]  # [at most T + 1, N, A, ...]
    final_observation: npt.NDArray[Any]  # [ended, ...], of agents whose episode ended in those steps
    checksum: npt.NDArray[np.uint32]  # [T + 1, N, A], of observations
    final_checksum: npt.NDArray[np.uint32]  # [T, N, A], 0 where no episode ended
    final_written: npt.NDArray[np.bool_]  # [T, N, A], True where no episode ended
    reward: npt.NDArray[np.float32]  # [T, N, A]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    alive: npt.NDArray[np.bool_]  # [T + 1, N, A]
    episodes: list[EpisodeStats]

    @property
    def ended(self) -> npt.NDArray[np.bool_]:
        return np.asarray(self.terminated | self.truncated)

    def differs_from(self, other: Trajectory) -> str | None:
        """Describe the first difference of two trajectories; None if there is none."""
        for name, label in COMPARED.items():
            ours, theirs = getattr(self, name), getattr(other, name)
            same = (ours == theirs) | ((ours != ours) & (theirs != theirs))
            if not same.all():
                step, env = np.argwhere(~same)[0][:2]
                return f"{label} of env {env} differs first at step {step}"
        return None

    def env(self, index: int) -> Trajectory:
        """Return the trajectory of one env, without its episodes and final observations."""
        pick = slice(index, index + 1)
        return Trajectory(
            self.observation[:, pick],
            self.final_observation[:0],
            self.checksum[:, pick],
            self.final_checksum[:, pick],
            self.final_written[:, pick],
            self.reward[:, pick],
            self.terminated[:, pick],
            self.truncated[:, pick],
            self.alive[:, pick],
            [],
        )


def play(
    env_batch: EnvBatch,
    seeds: npt.NDArray[np.uint64],
    steps: int,
    cut: int | None = None,
    *,
    seconds: float | None = None,
    watch: Watch | None = None,
) -> Trajectory:
    """Reset an env batch and play it. With `cut`, each step is done in two slices, 0..cut-1 and cut..N-1."""
    env_batch.reset(seeds)
    randoms = [np.random.default_rng(int(seed)) for seed in seeds]
    return play_on(env_batch, randoms, steps, cut, seconds=seconds, watch=watch)


def play_on(
    env_batch: EnvBatch,
    randoms: list[np.random.Generator],
    steps: int,
    cut: int | None = None,
    *,
    seconds: float | None = None,
    watch: Watch | None = None,
) -> Trajectory:
    """Continue to play an env batch for `steps` steps, or those that start within `seconds`; report to `watch(done)`."""
    buffers, shape = env_batch.buffers, env_batch.buffers.alive.shape
    final_bytes = buffers.final_observation.reshape(*shape, -1).view(np.uint8)
    recorded_steps = max(2, MAX_OBSERVATION_BYTES // max(1, buffers.observation.nbytes))
    seen, checksums, alive = [buffers.observation.copy()], [_checksums(buffers.observation)], [buffers.alive.copy()]
    finals: list[npt.NDArray[Any]] = []
    final_checksums: list[npt.NDArray[np.uint32]] = []
    written: list[npt.NDArray[np.bool_]] = []
    rewards: list[npt.NDArray[np.float32]] = []
    terminated: list[npt.NDArray[np.bool_]] = []
    truncated: list[npt.NDArray[np.bool_]] = []
    episodes: list[EpisodeStats] = []
    started = time.monotonic()
    for step in range(steps):
        if step and seconds is not None and time.monotonic() - started > seconds:
            break
        sample_actions(env_batch.spec.action, buffers, randoms)
        final_bytes[...] = FILL_BYTE
        for first, last in ((0, env_batch.num_envs),) if cut is None else ((0, cut), (cut, env_batch.num_envs)):
            env_batch.step(first, last)
        ended = buffers.terminated | buffers.truncated
        written.append(~ended)
        written[-1][ended] = (final_bytes[ended] != FILL_BYTE).any(1)
        final_checksums.append(np.zeros(shape, np.uint32))
        final_checksums[-1][ended] = [zlib.crc32(final.tobytes()) for final in final_bytes[ended]]
        checksums.append(_checksums(buffers.observation))
        if len(seen) < recorded_steps:
            seen.append(buffers.observation.copy())
            finals.append(buffers.final_observation[ended])
        rewards.append(buffers.reward.copy())
        terminated.append(buffers.terminated.copy())
        truncated.append(buffers.truncated.copy())
        alive.append(buffers.alive.copy())
        episodes += env_batch.episodes()
        if watch is not None:
            watch(step + 1)
    return Trajectory(
        np.stack(seen),
        np.concatenate(finals),
        np.stack(checksums),
        np.stack(final_checksums),
        np.stack(written),
        np.stack(rewards),
        np.stack(terminated),
        np.stack(truncated),
        np.stack(alive),
        episodes,
    )


def _checksums(observation: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """Return the checksums [N, A] of observations [N, A, ...]."""
    return np.array([[zlib.crc32(agent.tobytes()) for agent in env] for env in observation], np.uint32)
