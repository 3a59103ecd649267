"""A world whose first action is paid 127 steps later: credit has to pass the end of a row of 64 steps, and so has memory.

    step 0        one of two cues is shown, and the action has to name it
    1 to 59       a lamp shows whether it did
    60 to 67      it is dark, also where the second row begins
    68 to 127     another lamp shows it again
    127           reward 1 if the first action was right; the episode ends

The lamps are different inputs, so that a value learned for one says nothing of the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.envs.env_batch import Buffers, EpisodeStats
from millpond.envs.spec import ActionSpec, EnvSpec, ObservationSpec

LENGTH, ROW, DARK = 128, 64, (60, 68)
CUE, FIRST, NIGHT, SECOND, WIDTH = 0, 2, 4, 5, 7


class Relay:
    """A custom `EnvBatch`."""

    def __init__(self, num_envs: int, buffers: Buffers | None) -> None:
        observation = ObservationSpec.single((WIDTH,), "float32", "vector")
        self.spec = EnvSpec("relay", observation, ActionSpec.discrete(2), max_steps=LENGTH)
        self.num_envs = num_envs
        self.buffers = Buffers.allocate(self.spec, num_envs) if buffers is None else buffers
        self.clock, self.cue, self.right = (np.zeros(num_envs, np.int64) for _ in range(3))
        self.ended: list[EpisodeStats] = []

    def reset(self, seeds: npt.NDArray[np.uint64]) -> None:
        self.generators = [np.random.default_rng(int(seed)) for seed in seeds]
        self.buffers.terminated[:], self.buffers.truncated[:], self.buffers.alive[:] = False, False, True
        for env in range(self.num_envs):
            self._begin(env)

    def _begin(self, env: int) -> None:
        self.clock[env], self.cue[env] = 0, self.generators[env].integers(2)
        self.buffers.observation[env] = 0.0
        self.buffers.observation[env, 0, CUE + self.cue[env]] = 1.0

    def step(self, first: int, last: int) -> None:
        buffers = self.buffers
        for env in range(first, last):
            if self.clock[env] == 0:
                self.right[env] = buffers.action[env].item() == self.cue[env]
            self.clock[env] += 1
            over = self.clock[env] == LENGTH
            buffers.reward[env] = float(self.right[env]) if over else 0.0
            buffers.terminated[env] = over
            if over:
                buffers.final_observation[env] = buffers.observation[env]
                self.ended.append(EpisodeStats(env, (float(self.right[env]),), LENGTH))
                self._begin(env)
            else:
                self._show(env)

    def _show(self, env: int) -> None:
        clock, shown = self.clock[env], self.buffers.observation[env, 0]
        shown[:] = 0.0
        if DARK[0] <= clock < DARK[1]:
            shown[NIGHT] = 1.0
        else:
            shown[(FIRST if clock < ROW else SECOND) + self.right[env]] = 1.0

    def episodes(self) -> list[EpisodeStats]:
        ended, self.ended = self.ended, []
        return ended

    def close(self) -> None:
        """There is nothing to free but arrays."""


def make_env(num_envs: int, buffers: Buffers | None = None, **options: Any) -> Relay:
    """Return the world for `env.id=benchmarks.metta.relay:make_env`."""
    return Relay(num_envs, buffers)


SETTINGS: Mapping[str, Any] = {
    "kind": "ppo",
    "env.id": "benchmarks.metta.relay:make_env",
    "env.num_agents": 1,
    "trainer.num_workers": 1,
    "trainer.num_envs": 64,
    "trainer.bptt_horizon": ROW,
    "trainer.batch_size": 64 * LENGTH,
    "trainer.minibatch_size": 16 * LENGTH,
    "trainer.update_epochs": 2,
    "trainer.total_timesteps": 60 * 64 * LENGTH,
    "policy.core": "lstm",
    "policy.hidden_size": 32,
    "ppo.gamma": 1.0,
    "ppo.gae_lambda": 0.95,
    "ppo.clip_coef": 0.2,
    "ppo.vf_clip_coef": None,
    "ppo.vf_coef": 0.5,
    "ppo.ent_coef": 0.001,
    "ppo.learning_rate": 3e-3,
    "vector.backend": "inline",
}
WAYS = {
    "bootstrap": ("bootstrap and stored state", {}),
    "zero-end": ("no bootstrap at the end of a row", {"ppo.row_end": "zero"}),
    "zero-state": ("zero state at the start of a row", {"ppo.row_state": "zero"}),
    "puffer": ("`ppo.style: puffer`", {"ppo.style": "puffer"}),
    "long": ("rows of 128 steps, without a bootstrap", {"ppo.row_end": "zero", "trainer.bptt_horizon": LENGTH}),
}
