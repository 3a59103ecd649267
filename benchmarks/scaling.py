"""Measure how the cost of an agent step changes with the number of envs, and whether two workers help MettaGrid.

    python benchmarks/scaling.py                         a few minutes
    python benchmarks/scaling.py --envs 64 8192 --rounds 5 --json scaling.json

For each number of envs of `grid`, with the recipe's network: nanoseconds per agent step of a whole collection (environments,
acting, storing) and of training on it, in minibatches of the same size everywhere. MettaGrid collects without workers (envs
in the training process) and with two. All sizes alternate, round by round, so that other load hits
all; ratios are taken within a round, and their median counts, shown with minimum and maximum.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from hardware import processor
from millpond.config import load
from millpond.trainers.common.session import start_run
from millpond.trainers.ppo.trainer import PPOTrainer

ENVS = (64, 512, 2_048, 8_192)
HORIZON, MINIBATCH = 8, 512  # env steps; a minibatch is 64 rows, whatever the number of envs
QUIET = {"eval.interval": None, "eval.episodes": 1, "checkpoint.interval": None, "log.tensorboard": False}
METTAGRID = {
    "no": {"vector.backend": "inline", "trainer.num_workers": 1},
    "two": {"vector.backend": "processes", "trainer.num_workers": 2},
}


@dataclass
class Size:
    """One trainer, and nanoseconds per agent step of its collections and its training, by round."""

    trainer: PPOTrainer
    collections: int  # per round: the same number of agent steps for every size
    collect: list[float] = field(default_factory=list)
    train: list[float] = field(default_factory=list)

    def round(self, *, trains: bool) -> None:
        """Collect, and train once on everything collected."""
        trainer = self.trainer
        steps = trainer.share.agent_steps
        began = time.perf_counter()
        for _ in range(self.collections):
            trainer._collect()
        self.collect.append((time.perf_counter() - began) / (steps * self.collections) * 1e9)
        if not trains:
            return
        estimate = trainer._estimate()
        updates = [trainer._draws(estimate) for _ in range(self.collections)]
        began = time.perf_counter()
        for draws in updates:
            for draw in draws:
                train(trainer, draw, estimate)
        self.train.append((time.perf_counter() - began) / (steps * self.collections) * 1e9)


def train(trainer: PPOTrainer, draw: Any, estimate: Any) -> None:
    """Make one update outside of the trainer's loop."""
    from millpond.trainers.ppo.update import train_minibatch

    train_minibatch(
        trainer.updater,
        trainer.optimizer,
        trainer.rows,
        estimate,
        draw,
        trainer._coefficients(),
        micro_batch_rows=trainer.share.minibatch_segments,
        device=trainer.device,
    )


def make(folder: str, name: str, recipe: str, settings: dict[str, Any]) -> PPOTrainer:
    loaded = load(recipe, {**QUIET, "run_dir": folder, "trainer.total_iterations": 1, **settings})
    return PPOTrainer(loaded, start_run(loaded, name))


def grid_settings(envs: int) -> dict[str, Any]:
    return {
        "trainer.num_envs": envs,
        "trainer.bptt_horizon": HORIZON,
        "trainer.batch_size": envs * HORIZON,
        "trainer.minibatch_size": MINIBATCH,
        "trainer.update_epochs": 1,
    }


def mettagrid_settings(workers: str) -> dict[str, Any]:
    return {
        **METTAGRID[workers],
        "trainer.forward_pass_minibatch_target_size": None,
        "trainer.num_envs": 64,
        "trainer.batch_size": 64 * 64,
        "trainer.minibatch_size": 64 * 64,
    }


def measure(sizes: dict[str, Size], rounds: int, *, trains: bool) -> None:
    """Measure all sizes alternately; the first round does not count."""
    for number in range(rounds + 1):
        for name, size in sizes.items():
            print(f"  round {number} of {rounds}: {name}", file=sys.stderr, flush=True)
            size.round(trains=trains)
    for size in sizes.values():
        size.collect, size.train = size.collect[1:], size.train[1:]


def against(first: list[float], other: list[float]) -> dict[str, float]:
    """Return the ratio of costs to the first, within each round."""
    ratios = [b / a for a, b in zip(first, other, strict=True)]
    return {"median": median(ratios), "low": min(ratios), "high": max(ratios)}


def figures(sizes: dict[str, Size], what: str) -> dict[str, Any]:
    spent = {name: getattr(size, what) for name, size in sizes.items()}
    first = next(iter(spent.values()))
    return {name: {"nanoseconds": median(taken), "of_first": against(first, taken)} for name, taken in spent.items()}


def show(title: str, unit: str, figures_by_size: dict[str, Any]) -> None:
    print(f"\n{title:<34}{'ns per agent step':>18}{'ratio to the first':>20}  spread")
    for name, one in figures_by_size.items():
        ratio = one["of_first"]
        spread = f"{ratio['low']:.2f} to {ratio['high']:.2f}"
        print(f"  {name + ' ' + unit:<32}{one['nanoseconds']:>18,.0f}{ratio['median']:>20.2f}  {spread}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=int, nargs="+", default=list(ENVS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("grid", "mettagrid"))
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    print(f"{processor()}; median of {arguments.rounds} alternating rounds")
    results: dict[str, Any] = {"hardware": processor()}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as open_trainers:

        def size(name: str, recipe: str, settings: dict[str, Any], collections: int) -> Size:
            with contextlib.redirect_stdout(io.StringIO()):
                trainer = make(folder, name, recipe, settings)
            open_trainers.callback(trainer.close)
            return Size(trainer, collections)

        if arguments.only != "mettagrid":
            most = max(arguments.envs)
            sizes = {f"{n:,}": size(f"grid-{n}", "grid", grid_settings(n), most // n) for n in arguments.envs}
            measure(sizes, arguments.rounds, trains=True)
            for what, title in (("collect", "grid, a whole collection"), ("train", "grid, training")):
                results[title] = figures(sizes, what)
                show(title, "envs", results[title])
        if arguments.only != "grid":
            sizes = {n: size(f"mettagrid-{n}", "mettagrid", mettagrid_settings(n), 1) for n in METTAGRID}
            measure(sizes, arguments.rounds, trains=False)
            results["mettagrid, a whole collection"] = figures(sizes, "collect")
            show("mettagrid, a whole collection", "workers", results["mettagrid, a whole collection"])
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
