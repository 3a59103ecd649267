"""Warnings of short trainings that are healthy and of the same ones with a planted fault, as a table by cause.

    python -m benchmarks.learning.warnings_check [NAME ...]

Exits with 1 if a healthy run warns, or if a fault is not named. Takes some minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

import millpond
from millpond.trainers.common.play import EndlessEpisodeError
from millpond.vector.finite import NonFiniteEnvError

RECIPES = Path(__file__).parent
CARTPOLE, PENDULUM, RECALL = (str(RECIPES / f"{name}.yaml") for name in ("cartpole", "pendulum", "recall"))
COMMON = {"vector.backend": "inline", "eval.interval": None, "eval.episodes": 2, "log.tensorboard": False}
SMALL_GRID = {
    "trainer.num_workers": 1,
    "trainer.num_envs": 64,
    "trainer.batch_size": 4_096,
    "trainer.minibatch_size": 1_024,
}
ENDLESS = {
    "trainer.num_envs": 8,
    "trainer.batch_size": 1_024,
    "trainer.minibatch_size": 256,
    "trainer.bptt_horizon": 128,
}


class Faulty(gymnasium.Wrapper[Any, Any, Any, Any]):
    """CartPole with a planted fault."""

    def __init__(self, fault: str) -> None:
        env = gymnasium.make("CartPole-v1")
        super().__init__(env.unwrapped if fault == "endless" else env)
        self.fault, self.steps = fault, 0
        if fault == "observation":
            self.observation_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
        if fault == "scale":
            self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)

    def _seen(self, observation: Any) -> Any:
        if self.fault == "observation":
            return np.zeros(4, np.float32)
        if self.fault == "nan" and self.steps > 100:
            return np.full(4, np.nan, np.float32)
        return observation * np.float32([1e5, 1, 1, 1]) if self.fault == "scale" else observation

    def reset(self, **settings: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**settings)
        return self._seen(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.steps += 1
        if self.fault == "endless" and terminated:
            observation, _ = self.env.reset()
            terminated = False
        return self._seen(observation), 0.0 if self.fault == "reward" else reward, terminated, truncated, info


def make_env(fault: str) -> gymnasium.Env[Any, Any]:
    """Make CartPole with a planted fault: reward, observation, scale, endless or nan."""
    return Faulty(fault)


@dataclass(frozen=True)
class Case:
    """A short training, and the causes one of which has to be warned about; none if it is healthy."""

    name: str
    recipe: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    causes: tuple[str, ...] = ()


def faulty(fault: str) -> dict[str, Any]:
    return {"env.id": "benchmarks.learning.warnings_check:make_env", "env.options": {"fault": fault}}


STOPPED = "stopped: not finite"  # an error that names env, step and part of the observation, instead of a warning
CASES = (
    Case("cartpole, healthy", CARTPOLE, {"trainer.total_iterations": 40}),
    Case("pendulum, healthy", PENDULUM, {"trainer.total_iterations": 60}),
    Case("recall, healthy", RECALL, {"trainer.total_iterations": 50}),
    Case("grid, healthy", "grid", {**SMALL_GRID, "trainer.total_iterations": 60}),
    Case("cartpole, learning rate x 100", CARTPOLE, {"ppo.learning_rate": 0.1, "trainer.total_iterations": 20}, ("ratios",)),
    Case("pendulum, learning rate x 100", PENDULUM, {"ppo.learning_rate": 0.1, "trainer.total_iterations": 20}, ("ratios",)),
    Case("recall, learning rate x 100", RECALL, {"ppo.learning_rate": 0.2, "trainer.total_iterations": 12}, ("ratios",)),
    Case("grid, learning rate x 100", "grid",
         {**SMALL_GRID, "ppo.learning_rate": 0.1, "trainer.total_iterations": 20}, ("ratios",)),
    Case("cartpole, env.reward_scale=1000", CARTPOLE, {"env.reward_scale": 1e3, "trainer.total_iterations": 56},
         ("value gradient",)),
    Case("pendulum, env.reward_scale=1000", PENDULUM, {"env.reward_scale": 1e3, "trainer.total_iterations": 56},
         ("value gradient",)),
    Case("cartpole, rewards 0", CARTPOLE, {**faulty("reward"), "trainer.total_iterations": 20}, ("reward",)),
    Case("grid, rewards 0", "grid",
         {**SMALL_GRID, "env.grid.reward_ore": 0, "env.grid.reward_battery": 0, "env.grid.reward_heart": 0,
          "trainer.total_iterations": 20}, ("reward",)),
    Case("cartpole, observations 0", CARTPOLE, {**faulty("observation"), "trainer.total_iterations": 20}, ("observations",)),
    Case("cartpole, first number x 100,000", CARTPOLE, {**faulty("scale"), "trainer.total_iterations": 20},
         ("observation scale",)),
    Case("cartpole, episodes never end", CARTPOLE,
         {**faulty("endless"), **ENDLESS, "trainer.total_iterations": 45, "env.max_steps": None}, ("episodes",)),
    Case("cartpole, observations NaN", CARTPOLE, {**faulty("nan"), "trainer.total_iterations": 20}, (STOPPED,)),
    Case("gym: CartPole, healthy", "gymnasium:CartPole-v1", {"trainer.total_iterations": 60}),
    Case("gym: Acrobot, healthy", "gymnasium:Acrobot-v1", {"trainer.total_iterations": 40}),
    Case("gym: CartPole, learning rate x 100", "gymnasium:CartPole-v1",
         {"ppo.learning_rate": 0.1, "trainer.total_iterations": 20}, ("ratios",)),
)  # fmt: skip


def train(case: Case, folder: Path) -> tuple[list[dict[str, Any]], Mapping[str, float]]:
    """Train a case; return its warnings and its last record."""
    settings = {**COMMON, **case.settings, "run_dir": str(folder), "log.console_seconds": 1e6}
    name = "".join(letter if letter.isalnum() else "-" for letter in case.name)
    stopped: list[dict[str, Any]] = []
    try:
        millpond.train(case.recipe, overrides=settings, run=name, trust=True)
    except EndlessEpisodeError:
        pass  # of the evaluation at the end, in envs whose episodes never do
    except NonFiniteEnvError as error:
        stopped.append({"cause": STOPPED, "updates": 0, "text": str(error)})
    warnings, metrics = (_lines(folder / name / file) for file in ("warnings.jsonl", "metrics.jsonl"))
    return [*warnings, *stopped], metrics[-1] if metrics else {"updates": 0}


def _lines(path: Path) -> list[dict[str, Any]]:
    """Return the records of a file; none if it does not exist."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of the names of cases; default: all")
    names = parser.parse_args().names
    torch.set_num_threads(1)
    rows, wrong = [], []
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            if names and not any(name in case.name for name in names):
                continue
            found, last = train(case, Path(folder))
            causes = dict.fromkeys(warning["cause"] for warning in found)
            if (not case.causes and causes) or (case.causes and not set(case.causes) & causes.keys()):
                wrong.append(case.name)
            shown = ", ".join(
                f"`{cause}` ({next(one['updates'] for one in found if one['cause'] == cause):,})" for cause in causes
            )
            rows.append(f"| {case.name} | {last['updates']:,.0f} | {shown or 'none'} |")
            for warning in found:
                print(f"{case.name}: {warning['cause']}: {warning['text']}", file=sys.stderr)
    print("| training | updates | warnings (after updates) |\n|---|---|---|", *rows, sep="\n")
    print(f"not as expected: {', '.join(wrong)}" if wrong else "all as expected")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
