"""Stable-Baselines3's RecurrentPPO on CartPole. Runs in a separate virtual environment; prints JSON.

    recurrent_ppo_cartpole.py ITERATIONS SEED

One LSTM of 64 for actor and critic, and linear heads without hidden layers: the least work that it can
do. Envs are stepped in its own process, which is its default and its fastest for an environment as fast as this.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version

import numpy as np
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

ENVS, STEPS, HIDDEN = 32, 128, 64


class Watch(BaseCallback):
    """Record when each rollout started and ended, and the mean return of recent episodes."""

    def __init__(self):
        super().__init__()
        self.began, self.ended, self.level = [], [], []

    def _on_rollout_start(self):
        self.began.append(time.perf_counter())

    def _on_rollout_end(self):
        self.ended.append(time.perf_counter())
        episodes = [episode["r"] for episode in self.model.ep_info_buffer]
        self.level.append(float(np.mean(episodes)) if episodes else None)

    def _on_training_end(self):
        self.began.append(time.perf_counter())

    def _on_step(self):
        return True


def main():
    iterations, seed = map(int, sys.argv[1:3])
    model = RecurrentPPO(
        "MlpLstmPolicy",
        make_vec_env("CartPole-v1", n_envs=ENVS, seed=seed),
        n_steps=STEPS,
        batch_size=ENVS * STEPS // 4,
        n_epochs=4,
        learning_rate=1e-3,
        gamma=0.99,
        gae_lambda=0.95,
        clip_range=0.2,
        ent_coef=0.01,
        vf_coef=0.5,
        max_grad_norm=0.5,
        policy_kwargs={
            "lstm_hidden_size": HIDDEN,
            "n_lstm_layers": 1,
            "shared_lstm": True,
            "enable_critic_lstm": False,
            "net_arch": [],
        },
        device="cpu",
        seed=seed,
    )
    watch = Watch()
    model.learn(ENVS * STEPS * iterations, callback=watch)
    collect = [ended - began for began, ended in zip(watch.began, watch.ended, strict=False)]
    train = [began - ended for ended, began in zip(watch.ended, watch.began[1:], strict=True)]
    names = ("stable-baselines3", "sb3-contrib", "torch", "gymnasium", "numpy")
    result = {
        "party": "SB3 RecurrentPPO",
        "versions": {name: version(name) for name in names},
        "settings": {"precision": "float32", "vector": "DummyVecEnv", "seed": seed},
        "steps": ENVS * STEPS,
        "collect": collect,
        "train": train,
        "level": watch.level,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
