"""Tiny runs of reward learning from recorded episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from millpond.config import load
from millpond.trainers.common.session import require_trainer, start_run
from millpond.trainers.reward.trainer import RewardTrainer

TINY_REWARD = {
    "reward.epochs": 1,
    "reward.cycles": 1,
    "reward.iterations": 2,
    "reward.train_batches": 2,
    "reward.hidden_size": 16,
    "reward.episodes_per_batch": 2,
    "reward.steps_per_episode": 4,
    "log.tensorboard": False,
}


def train_tiny_reward(root: Path, name: str, **changes: Any) -> RewardTrainer:
    loaded = load("reward", {**TINY_REWARD, "run_dir": str(root), **changes})
    require_trainer(loaded)
    trainer = RewardTrainer(loaded, start_run(loaded, name))
    trainer.train()
    return trainer
