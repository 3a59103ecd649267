"""RL-Zoo's settings of PPO, as numbers; they are passed to SB3's PPO as they stand.

Source: DLR-RM/rl-baselines3-zoo, hyperparams/ppo.yml, at the commit in SOURCE. There LunarLander is v2, and MuJoCo's envs are
v4. `lin_X` decreases linearly from X to 0 over the training. `normalize`: observations and rewards are normalised by
VecNormalize; returns are measured before that.
"""

from __future__ import annotations

from typing import Any

SOURCE = "https://github.com/DLR-RM/rl-baselines3-zoo/blob/208b6fdf3a9aa24de44b2e068c6e5f6a07d97fcc/hyperparams/ppo.yml"
WIDE_NETWORK = {"log_std_init": -2, "ortho_init": False, "activation": "relu", "layers": 256}
TUNED: dict[str, dict[str, Any]] = {
    "cartpole": {
        "n_envs": 8, "n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20, "ent_coef": 0.0,
        "learning_rate": "lin_0.001", "clip_range": "lin_0.2",
    },
    "pendulum": {
        "n_envs": 4, "n_steps": 1024, "gae_lambda": 0.95, "gamma": 0.9, "n_epochs": 10, "ent_coef": 0.0,
        "learning_rate": 1e-3, "clip_range": 0.2, "use_sde": True, "sde_sample_freq": 4,
    },
    "lunarlander": {
        "n_envs": 16, "n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999, "n_epochs": 4, "ent_coef": 0.01,
    },
    "halfcheetah": {
        "normalize": True, "n_envs": 1, "batch_size": 64, "n_steps": 512, "gamma": 0.98, "learning_rate": 2.0633e-05,
        "ent_coef": 0.000401762, "clip_range": 0.1, "n_epochs": 20, "gae_lambda": 0.92, "max_grad_norm": 0.8,
        "vf_coef": 0.58096, "network": WIDE_NETWORK,
    },
    "hopper": {
        "normalize": True, "n_envs": 1, "batch_size": 32, "n_steps": 512, "gamma": 0.999, "learning_rate": 9.80828e-05,
        "ent_coef": 0.00229519, "clip_range": 0.2, "n_epochs": 5, "gae_lambda": 0.99, "max_grad_norm": 0.7,
        "vf_coef": 0.835671, "network": WIDE_NETWORK,
    },
}  # fmt: skip
