"""Compare float32, bfloat16 and compiled policies at a recipe's sizes, to choose the recipe's precision.

    python benchmarks/precision.py grid metta puffer-metta

Times whole iterations of the real trainer, after a warm-up of each setting; the settings alternate, so that other load hits all
of them. Times are those of the fastest iteration, in seconds, and the ratio is to float32. The last column is the relative
difference of one gradient from that of float32 on the same rows.
"""

from __future__ import annotations

import argparse
import copy
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from hardware import processor
from millpond.config import load
from millpond.processor import claims_bfloat16, cpu_flags, prepare_bfloat16
from millpond.trainers.common.session import start_run
from millpond.trainers.ppo.build import make_updater
from millpond.trainers.ppo.trainer import PPOTrainer
from millpond.trainers.ppo.update import train_minibatch

SETTINGS: dict[str, dict[str, Any]] = {
    "float32": {"trainer.precision": "float32", "trainer.compile": False},
    "bfloat16": {"trainer.precision": "bfloat16", "trainer.compile": False},
    "float32 compiled": {"trainer.precision": "float32", "trainer.compile": True},
    "bfloat16 compiled": {"trainer.precision": "bfloat16", "trainer.compile": True},
}
PHASES = ("collect", "train")


def iterate(trainer: PPOTrainer) -> dict[str, float]:
    """Run one iteration, without records and checkpoints; return seconds by phase."""
    trainer.timer.take()
    trainer._collect()
    advantages = trainer._estimate()
    for _ in range(trainer.plan.update_epochs):
        for draw in trainer._draws(advantages):
            with trainer.timer("train"):
                update(trainer, trainer.updater, trainer.optimizer, advantages, draw)
    trainer.collector.finish()
    times = trainer.timer.take()
    return {phase: times[f"time/{phase}"] for phase in PHASES}


def update(trainer: PPOTrainer, updater: Any, optimizer: Any, advantages: Any, draw: Any) -> dict[str, Any]:
    return train_minibatch(
        updater,
        optimizer,
        trainer.rows,
        advantages,
        draw,
        trainer._coefficients(),
        micro_batch_rows=trainer.plan.minibatch_segments // trainer.plan.accumulated_parts,
        device=trainer.device,
    ).metrics


def gradient(trainer: PPOTrainer, source: PPOTrainer) -> torch.Tensor:
    """Return the gradient of the source's policy on the source's rows, in the precision of the other trainer."""
    policy = copy.deepcopy(source.policy)
    updater = make_updater(policy, trainer.recipe.trainer, trainer.device)
    parameters = list(policy.parameters())
    rows, trainer.rows = trainer.rows, source.rows
    advantages = source._estimate()
    draw = next(source._draws(advantages))
    update(trainer, updater, torch.optim.SGD(parameters, lr=0.0), advantages, draw)
    trainer.rows = rows
    return torch.cat([parameter.grad.flatten() for parameter in parameters if parameter.grad is not None])


def measure(recipe: str, folder: Path, overrides: list[str], rounds: int) -> None:
    trainers = {}
    for name, settings in SETTINGS.items():
        texts = [*overrides, f"run_dir={folder}", *(f"{key}={value}".lower() for key, value in settings.items())]
        loaded = load(recipe, texts)
        trainers[name] = PPOTrainer(loaded, start_run(loaded, f"{recipe}-{name.replace(' ', '-')}"))
    try:
        for trainer in trainers.values():
            iterate(trainer)
        best: dict[str, dict[str, float]] = {}
        for _ in range(rounds):
            for name, trainer in trainers.items():
                times = iterate(trainer)
                if name not in best or sum(times.values()) < sum(best[name].values()):
                    best[name] = times
        state = trainers["float32"].sampler.bit_generator.state
        gradients = {}
        for name, trainer in trainers.items():
            trainers["float32"].sampler.bit_generator.state = state  # the same rows for all
            gradients[name] = gradient(trainer, trainers["float32"])
    finally:
        for trainer in trainers.values():
            trainer.close()
    plan = trainers["float32"].plan
    print(f"\n{recipe}: {plan.agent_steps:,} agent steps and {plan.gradient_updates} updates per iteration")
    print(f"{'':<20}{'collect':>9}{'train':>9}{'agent steps/s':>15}{'ratio':>8}{'gradient off by':>17}")
    plain = sum(best["float32"].values())
    for name, times in best.items():
        total = sum(times.values())
        off = float((gradients[name] - gradients["float32"]).norm() / gradients["float32"].norm())
        print(
            f"{name:<20}{times['collect']:>9.2f}{times['train']:>9.2f}{plan.agent_steps / total:>15,.0f}"
            f"{plain / total:>8.2f}{off:>17.1e}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipes", nargs="*", default=["grid"])
    parser.add_argument("--rounds", type=int, default=3, help="iterations of each setting that are timed")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", dest="overrides")
    options = parser.parse_args()
    prepare_bfloat16()
    print(f"{processor()}, torch {torch.__version__}, {torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}, "
          f"bfloat16 in the processor: {'yes' if claims_bfloat16(cpu_flags()) else 'no'}")  # fmt: skip
    for recipe in options.recipes:
        with tempfile.TemporaryDirectory() as folder:
            measure(recipe, Path(folder), options.overrides, options.rounds)


if __name__ == "__main__":
    main()
