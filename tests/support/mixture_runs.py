"""Small mixtures: their settings, training to the end, and comparing two runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from millpond.config import load
from millpond.loop import Address
from millpond.replay import Lake
from millpond.replay.tools import verify
from millpond.store import Checkpoints
from millpond.trainers.common.session import start_run
from millpond.trainers.mixture.trainer import MixtureTrainer
from tests.support.records import records

# 2 agents x 4 envs x 8 steps: 64 frames per collection of all; 8 collections in rounds of 3, 3 and 2.
SMALL: dict[str, Any] = {
    "mixture.agents": 2,
    "mixture.total_frames": 8 * 64,
    "mixture.collections_per_round": 3,
    "mixture.big_updates": 5,
    "dqn.replay_ratio": None,
    "mixture.pond_transitions": 128,
    "mixture.big_pond_transitions": 100,
    "pqn.num_envs": 4,
    "pqn.num_steps": 8,
    "pqn.num_minibatches": 2,
    "pqn.update_epochs": 2,
    "lake.acknowledge_every": 20,
    "dqn.batch_size": 8,
    "policy.hidden_size": 16,
    "env.max_steps": 30,
    "eval.episodes": 2,
    "log.tensorboard": False,
}


LIVE = {
    "mixture.mode": "live",
    "mixture.own_fraction": 0.2,
    "mixture.big_pond_transitions": 200,
    "mixture.total_frames": 8 * 80,
}


# Returns over blocks, recomputed every 2 updates; several passes over a BigPond of the newest two rounds.
BLOCKS: dict[str, Any] = {
    "dqn.target": "q_lambda",
    "dqn.block_steps": 6,
    "dqn.updates_per_target": 2,
    "dqn.replay_ratio": 0.3,
    "dqn.optimizer": "radam",
    "dqn.lr_schedule": "linear",
    "dqn.weight_decay": 0.1,
    "dqn.mean_decay": 0.9,
    "dqn.target_tau": 1.0,
    "mixture.big_updates": None,
    "mixture.big_pond_rounds": 2,
    "mixture.clone_optimizer": "keep",
}
BLOCKS_LIVE = {**BLOCKS, "dqn.target": "retrace", "dqn.replay_ratio": 1.0, "mixture.big_pond_rounds": None}

# What high replay ratios need: partial resets of the BigAgent, annealing after them, and augmentation.
ANNEALED: dict[str, Any] = {
    "dqn.n_step": 1,
    "dqn.n_step_from": 3,
    "dqn.gamma_from": 0.9,
    "dqn.anneal_over": 64,
    "dqn.reset_every": 4,
    "dqn.random_shift": 1,
}

# Prioritised replay: priorities are not saved, but computed when they are needed.
PRIORITIES: dict[str, Any] = {**BLOCKS, "dqn.priority_exponent": 0.6, "dqn.priority_pool": 2}

QUANTILES: dict[str, Any] = {**ANNEALED, "dqn.quantiles": 5}

# Agents with memory, whose BigAgent learns from blocks and their states.
MEMORY: dict[str, Any] = {
    **BLOCKS,
    "env.id": "recall",
    "env.max_steps": None,
    "env.recall.max_delay": 9,
    "policy.core": "gru",
    "dqn.burn_in": 2,
    "dqn.updates_per_target": 2,
    "mixture.big_pond_rounds": None,
}
MEMORY_LIVE = {**MEMORY, **LIVE, "policy.core": "lstm", "dqn.replay_ratio": 1.0}


def start(root: Path, name: str, changes: dict[str, Any]) -> MixtureTrainer:
    loaded = load("mixture", {**SMALL, "run_dir": str(root), **changes})
    return MixtureTrainer(loaded, start_run(loaded, name))


def finish(trainer: MixtureTrainer) -> MixtureTrainer:
    try:
        trainer.train()
    finally:
        trainer.close()
    return trainer


def weights(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    found = Checkpoints(folder / "checkpoints").find().checkpoint
    assert found is not None
    return {part: dict(tensors) for part, tensors in found.weights.items()}


def lake_contents(folder: Path) -> dict[str, list[bytes]]:
    """Return everything in the lake except the time of writing, in the order of sampling."""
    found = {}
    with Lake(folder / "lake") as lake:
        for number, name in enumerate(lake.streams):
            rows = np.arange(lake.view(name).num_records)[None]
            stream = np.full(1, number, np.int32)
            every, damaged = lake.assembler().records(stream, rows)
            frames, more = lake.assembler().frames(stream, rows)
            assert not damaged
            assert not more
            names = [n for n in every.dtype.names or () if n not in ("checksum", "time", "frame_end")]
            found[name] = [every[n].tobytes() for n in names] + [frame.tobytes() for frame in frames.values()]
    return found


def assert_same_run(one: Path, other: Path) -> None:
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    for part, tensors in first.items():
        for name, tensor in tensors.items():
            assert torch.equal(tensor, second[part][name]), (part, name)
    assert records(one) == records(other)
    if (one / "lake").exists():
        assert lake_contents(one) == lake_contents(other)
        assert verify(other / "lake").good


def watch(trainer: MixtureTrainer, see: Callable[[Address], None]) -> None:
    """Call `see` in every portion, when all of it but the reset is done."""
    evaluate = trainer._evaluate

    def seen(at: Address) -> None:
        evaluate(at)
        see(at)

    trainer._evaluate = seen  # type: ignore[method-assign]
