"""One training of a reference. Runs in the virtual environment of SB3; prints JSON.

    references.py TASK PARTY SEED STEPS [SECONDS]

PARTY is sb3 (PPO with the defaults of SB3), tuned (with RL-Zoo's settings), recurrent (RecurrentPPO with its defaults) or
single-file. Training ends after STEPS env steps, rounded up to whole rollouts, or after SECONDS of CPU time.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from importlib.metadata import version
from pathlib import Path

import gymnasium
from recall_env import Recall
from tasks import RECURRENT, SINGLE_FILE, TASKS
from tasks import TUNED as TUNED_PARTY
from tuned import TUNED

sys.path.append(str(Path(__file__).parents[1] / "peers"))

from minatar_env import MinAtar
from sb3_contrib import RecurrentPPO
from sb3_watch import Watch
from single_file_cartpole import ENVS, STEPS
from single_file_cartpole import train as train_single_file
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize
from torch import nn

NAMES = ("stable-baselines3", "sb3-contrib", "torch", "gymnasium", "numpy")


class TimeLimit(BaseCallback):
    """Stop the training when the process has spent a number of CPU seconds; never if there is none."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def _on_step(self):
        return self.seconds is None or time.process_time() < self.seconds


def make_env(task):
    """Make the task's env with the rules that Millpond's recipe has. MinAtar's planes are one vector."""
    family, _, name = task.recipe.partition(":")
    if family == "recall":
        return Recall()
    if family == "minatar":
        return gymnasium.wrappers.FlattenObservation(MinAtar(name))
    return gymnasium.make(name)


def make_pong():
    import ale_py

    gymnasium.register_envs(ale_py)
    return gymnasium.make("PongNoFrameskip-v4", repeat_action_probability=0.25)  # sticky actions, as in the recipe


def make_envs(task, count, seed):
    if task.recipe == "atari:pong":
        return VecFrameStack(make_atari_env(make_pong, n_envs=count, seed=seed), n_stack=4)
    return make_vec_env(functools.partial(make_env, task), n_envs=count, seed=seed)


def number(value):
    """Return a number, or for `lin_X` a function of the share of the training that remains."""
    if not isinstance(value, str):
        return value
    start = float(value.removeprefix("lin_"))
    return lambda remaining: remaining * start


def network(layers, activation, **rest):
    assert activation == "relu"
    return rest | {"activation_fn": nn.ReLU, "net_arch": {"pi": [layers, layers], "vf": [layers, layers]}}


def make_model(task, party, seed):
    """Return a model and the settings that are not its defaults."""
    if party == RECURRENT:
        return RecurrentPPO("MlpLstmPolicy", make_envs(task, 1, seed), seed=seed, device="cpu"), {}
    settings = TUNED[task.name] if party == TUNED_PARTY else {}
    rest = dict(settings)
    envs = make_envs(task, rest.pop("n_envs", 1), seed)
    if rest.pop("normalize", False):
        envs = VecNormalize(envs, gamma=settings["gamma"])
    policy = "CnnPolicy" if task.recipe == "atari:pong" else "MlpPolicy"
    kwargs = network(**rest.pop("network")) if "network" in rest else None
    rest = {name: number(value) for name, value in rest.items()}
    return PPO(policy, envs, seed=seed, device="cpu", policy_kwargs=kwargs, **rest), settings


def train_sb3(task, party, seed, steps, seconds):
    """Return [env steps, episodes that ended, their mean return] of each rollout, seconds and settings."""
    model, settings = make_model(task, party, seed)
    watch = Watch(1)  # every rollout is an iteration
    model.learn(steps, callback=[watch, TimeLimit(seconds)])
    rollouts = list(zip(watch.env_steps, watch.episodes, watch.level, strict=True))
    return rollouts, sum(watch.collect) + sum(watch.train), settings


def main():
    task, party, seed, steps = TASKS[sys.argv[1]], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    seconds = float(sys.argv[5]) if len(sys.argv) > 5 else None
    if party == SINGLE_FILE:
        trained = train_single_file(functools.partial(make_env, task), -(-steps // (ENVS * STEPS)), seed)
        ends = range(ENVS * STEPS, ENVS * STEPS * (len(trained["episodes"]) + 1), ENVS * STEPS)
        rollouts = list(zip(ends, trained["episodes"], trained["returns"], strict=True))
        spent, settings = sum(trained["collect"]) + sum(trained["train"]), {"n_envs": ENVS, "n_steps": STEPS}
    else:
        rollouts, spent, settings = train_sb3(task, party, seed, steps, seconds)
    versions = {name: version(name) for name in NAMES}
    print(json.dumps({"iterations": rollouts, "seconds": spent, "versions": versions, "settings": settings}))


if __name__ == "__main__":
    main()
