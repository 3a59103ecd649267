"""Stable-Baselines3's SAC and DQN. Runs in a separate virtual environment; prints JSON.

    sb3_off_policy.py sac-pendulum|dqn-minatar ITERATIONS SEED [--without-norms]

DQN has Millpond's network, with its LayerNorms; `--without-norms` leaves them out, which is less work than Millpond does.
"""

from __future__ import annotations

import argparse

from minatar_env import MinAtar
from sb3_watch import Watch
from settings import DQN as DQN_TASK
from settings import SAC as SAC_TASK
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of each place of an image [N, C, height, width]."""

    def forward(self, image):
        return super().forward(image.movedim(1, -1)).movedim(-1, 1)


class Encoder(BaseFeaturesExtractor):
    """One convolution of 3x3 and one layer, with ReLU."""

    def __init__(self, space, filters, hidden, norms):
        super().__init__(space, hidden)
        channels, height, width = space.shape
        self.layers = nn.Sequential(
            nn.Conv2d(channels, filters, 3),
            ChannelNorm(filters) if norms else nn.Identity(),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(filters * (height - 2) * (width - 2), hidden),
            nn.LayerNorm(hidden) if norms else nn.Identity(),
            nn.ReLU(),
        )

    def forward(self, image):
        return self.layers(image)


def make_sac(seed):
    task = SAC_TASK
    return SAC(
        "MlpPolicy",
        make_vec_env(task.env, n_envs=1, seed=seed),
        learning_rate=task.learning_rate,
        buffer_size=task.replay,
        learning_starts=task.warm_up,
        batch_size=task.batch,
        tau=task.tau,
        gamma=task.gamma,
        train_freq=(task.collect, "step"),
        gradient_steps=task.collect,
        ent_coef="auto",
        target_entropy="auto",
        policy_kwargs={"net_arch": [task.hidden, task.hidden]},
        device="cpu",
        seed=seed,
    )


def make_dqn(seed, total, norms):
    task = DQN_TASK
    return DQN(
        "CnnPolicy",
        make_vec_env(lambda: MinAtar(task.game), n_envs=task.envs, seed=seed),
        learning_rate=task.learning_rate,
        buffer_size=task.replay,
        learning_starts=task.warm_up,
        batch_size=task.batch,
        tau=1.0,
        gamma=task.gamma,
        train_freq=(task.collect, "step"),
        gradient_steps=task.updates,
        target_update_interval=task.target_updates * task.phase // task.updates,  # in env steps
        exploration_fraction=task.epsilon_over / total,
        exploration_initial_eps=1.0,
        exploration_final_eps=task.epsilon_end,
        max_grad_norm=task.max_norm,
        policy_kwargs={
            "features_extractor_class": Encoder,
            "features_extractor_kwargs": {"filters": task.filters, "hidden": task.hidden, "norms": norms},
            "net_arch": [],
            "normalize_images": False,
        },
        device="cpu",
        seed=seed,
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=("sac-pendulum", "dqn-minatar"))
    parser.add_argument("iterations", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("--without-norms", action="store_true")
    options = parser.parse_args()
    is_sac = options.task == "sac-pendulum"
    steps = (SAC_TASK if is_sac else DQN_TASK).iteration
    total = steps * options.iterations
    model = make_sac(options.seed) if is_sac else make_dqn(options.seed, total, not options.without_norms)
    watch = Watch(steps)
    model.learn(total, callback=watch)
    party = "SB3 SAC" if is_sac else "SB3 DQN without norms" if options.without_norms else "SB3 DQN"
    watch.print(party, vector="DummyVecEnv", seed=options.seed)


if __name__ == "__main__":
    main()
