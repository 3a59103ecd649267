"""A world whose episodes are longer than a row and pay at the end only, and what solves it.

    python benchmarks/learning/late_reward.py [--seeds 1 2] [--length 128] [--iterations 40]

trains with Millpond's rows, with PufferLib's, and with one part of each (`late_reward.yaml`), and prints the share of
right choices.

One of eight cues asks for one of two actions at the first step. A lamp of that cue then shows if that was right, and goes out
shortly before the middle of the episode; from there on observations are zeros. The last step gives 1 if the first was right.

    step          0      1 .. length/2 - dark - 1    length/2 - dark .. length - 2    length - 1
    observation   cue    lamp                        zeros                            zeros
    reward        0      0                           0                                1 if right; terminated

With rows of length/2 steps the row of the choice has no reward. It learns of it only through the value of the observation
that begins the next row, and that value knows of the choice only by its recurrent state.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from millpond.config import load
from millpond.trainers.common.session import start_run
from millpond.trainers.ppo.trainer import PPOTrainer

RECIPE = Path(__file__).with_suffix(".yaml")
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo.style=millpond": {},
    "ppo.row_state=zero": {"ppo.row_state": "zero"},
    "ppo.row_end=zero": {"ppo.row_end": "zero"},
    "ppo.style=puffer": {"ppo.style": "puffer", "ppo.optimizer": "adam"},  # and the learning rate of the recipe
}

Step = tuple[np.ndarray[Any, Any], float, bool, bool, dict[str, Any]]


class LateReward(gymnasium.Env[np.ndarray[Any, Any], int]):
    """Cues, two actions, one reward at the end. Half of the cues ask for action 0, the other half for action 1."""

    def __init__(self, length: int, dark: int, cues: int) -> None:
        self.cues, self.length, self.lamp_until = cues, length, length // 2 - dark
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (3 * cues,), np.float32)  # cue; lamp if right, if wrong
        self.action_space = gymnasium.spaces.Discrete(2)
        self.time, self.cue, self.right = 0, 0, False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.time, self.cue = 0, int(self.np_random.integers(self.cues))
        return self._show(self.cue), {}

    def step(self, action: int) -> Step:
        if self.time == 0:
            self.right = int(action) == self.cue % 2
        self.time += 1
        ended = self.time == self.length
        observation = self._show(self._lamp if self.time < self.lamp_until else None)
        return observation, float(ended and self.right), ended, False, {}

    @property
    def _lamp(self) -> int:
        return self.cue + (1 if self.right else 2) * self.cues

    def _show(self, number: int | None) -> np.ndarray[Any, Any]:
        observation = np.zeros(3 * self.cues, np.float32)
        if number is not None:
            observation[number] = 1.0
        return observation


def make_env(length: int = 128, dark: int = 4, cues: int = 8) -> LateReward:
    """Return one env, for `env.id`."""
    return LateReward(length, dark, cues)


def share_right(setting: str, seed: int, length: int, iterations: int, folder: str | Path) -> float:
    """Train, and return the share of right choices in 500 episodes. Rows are half as long as an episode."""
    envs = 64
    sizes = {
        "env.options.length": length,
        "trainer.num_envs": envs,
        "trainer.bptt_horizon": length // 2,
        "trainer.batch_size": envs * length,
        "trainer.minibatch_size": envs * length // 4,
        "trainer.total_timesteps": envs * length * iterations,
    }
    loaded = load(RECIPE, {**sizes, **SETTINGS[setting], "seed": seed, "run_dir": str(folder)})
    trainer = PPOTrainer(loaded, start_run(loaded, f"{setting.replace('=', '-')}-{seed}"))
    try:
        trainer.train()
    finally:
        trainer.close()
    assert trainer.final_evaluation is not None
    return trainer.final_evaluation.mean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--length", type=int, default=128, help="steps of an episode")
    parser.add_argument("--iterations", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for setting in SETTINGS:
            shares = [share_right(setting, seed, options.length, options.iterations, folder) for seed in options.seeds]
            print(f"{setting:<20} {' '.join(f'{share:.2f}' for share in shares)}", flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))  # the recipe names this file as a module of the repository
    main()
