"""Small PPO runs: their settings, training to the end, and their records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from millpond.config import load
from millpond.trainers.common.session import start_run
from millpond.trainers.ppo.trainer import PPOTrainer

# Settings of the algorithm that tests assume, whatever the recipe `grid` is tuned to.
PLAIN = {
    "policy.normalize_observations": False,
    "ppo.normalize_values": False,
    "ppo.vf_clip_coef": 0.2,
    "ppo.learning_rate": 1e-3,
    "ppo.lr_schedule": "constant",
    "ppo.ent_schedule": "constant",
}
SMALL = {
    **PLAIN,
    "trainer.num_workers": 1,
    "trainer.num_envs": 6,
    "trainer.async_factor": 2,
    "trainer.bptt_horizon": 8,
    "trainer.batch_size": 8 * 16,
    "trainer.minibatch_size": 8 * 8,
    "trainer.update_epochs": 2,
    "trainer.total_iterations": 4,
    "policy.hidden_size": 16,
    "env.max_steps": 20,
    "env.grid.width": 12,
    "env.grid.height": 12,
    "env.grid.walls": 6,
    "env.grid.mines": 6,
    "env.grid.generators": 4,
    "env.grid.altars": 4,
    "eval.episodes": 2,
    "eval.interval": 2,
    "checkpoint.interval": 1,
    "log.tensorboard": False,
}


def train_small(root: Path, name: str, **changes: Any) -> PPOTrainer:
    settings = {**SMALL, "run_dir": str(root), **changes}
    if "env.id" in changes:
        settings = {key: value for key, value in settings.items() if not key.startswith("env.grid.")}
    loaded = load("grid", settings)
    trainer = PPOTrainer(loaded, start_run(loaded, name))
    try:
        trainer.train()
    finally:
        trainer.close()
    return trainer


RECIPES = Path(__file__).parents[2] / "benchmarks" / "learning"


SHORT_RECALL = {
    "env.recall.min_delay": 3,
    "env.recall.max_delay": 7,
    "trainer.num_envs": 128,
    "trainer.bptt_horizon": 16,
    "trainer.batch_size": 2_048,
    "trainer.minibatch_size": 512,
    "trainer.update_epochs": 4,
    "trainer.total_timesteps": 51_200,
    "policy.hidden_size": 32,
    "ppo.learning_rate": 5e-3,
    "eval.episodes": 500,
    "eval.interval": None,
}


def train_recipe(recipe: str, root: Path, **changes: Any) -> PPOTrainer:
    loaded = load(RECIPES / f"{recipe}.yaml", {"run_dir": str(root), "log.tensorboard": False, **changes})
    trainer = PPOTrainer(loaded, start_run(loaded, "pond"))
    try:
        trainer.train()
    finally:
        trainer.close()
    return trainer
