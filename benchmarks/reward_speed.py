"""Batches a second of reward learning, against a bare PyTorch loop of the same network and batch, in one run.

    python benchmarks/reward_speed.py [--blocks 30] [--batches 200] [--memory 0]

The two take turns, block by block, so that what else the machine does falls on both. The bare loop trains one fixed batch
over and over: no sampler, no records, no console, no hooks; its loss and its optimiser are the same. The limit is 0.90.
`--memory N` then trains N more batches and prints the resident memory along the way, which must stay flat.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from millpond.config import load
from millpond.rewards.objectives import lrd_loss
from millpond.store import training
from millpond.store.host import host_facts
from millpond.trainers.reward import RewardTrainer
from millpond.trainers.session import start_run

LIMIT = 0.90


def bare_loop(trainer: RewardTrainer) -> Callable[[int], None]:
    """The same layers, batch, loss and optimiser, and nothing else."""
    reward = trainer.recipe.reward
    episodes, steps = trainer.batches.draw(trainer.sampler)
    features, _ = trainer.batches.steps(trainer.batches.episodes[episodes], steps)
    target = trainer.batches._returns[torch.from_numpy(episodes)]
    length = trainer.batches._length[torch.from_numpy(episodes)]
    hidden = reward.hidden_size
    network = nn.Sequential(
        nn.Linear(features.shape[1], hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=reward.learning_rate, fused=True)

    def run(batches: int) -> None:
        for _ in range(batches):
            loss = lrd_loss(network(features).view(steps.shape), target, length)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return run


def seconds(action: Callable[[], None], clock: Callable[[], float] = time.perf_counter) -> float:
    began = clock()
    action()
    return clock() - began


def resident() -> int:
    """Megabytes that are resident now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=30)
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--memory", type=int, default=0)
    parser.add_argument("--cpu-time", action="store_true", help="count CPU time: fairer where others use the machine")
    arguments = parser.parse_args()
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    with tempfile.TemporaryDirectory() as folder:
        loaded = load("reward", {"run_dir": folder, "reward.epochs": 10**6, "reward.cycles": 10**3})
        trainer = RewardTrainer(loaded, start_run(loaded, "speed"))
        bare = bare_loop(trainer)
        quiet = contextlib.redirect_stdout(io.StringIO())
        ratios, rates = [], []
        with training(trainer.run, trainer.loop, trainer.recorder):
            with quiet:
                trainer.play(arguments.batches)
            bare(arguments.batches)
            for _ in range(arguments.blocks):
                with quiet:
                    ours = seconds(lambda: trainer.play(trainer.loop.count + arguments.batches), clock)
                theirs = seconds(lambda: bare(arguments.batches), clock)
                ratios.append(theirs / ours)
                rates.append((arguments.batches / ours, arguments.batches / theirs))
            drawn = seconds(lambda: draw(trainer, arguments.batches), clock) / arguments.batches
            memory = [resident()]
            for tenth in range(10 if arguments.memory else 0):
                with quiet:
                    trainer.play(trainer.loop.count + arguments.memory // 10)
                memory.append(resident())
                print(
                    f"  after {(tenth + 1) * arguments.memory // 10:,} batches {memory[-1]:,} MB resident", flush=True
                )
            trainer.loop.stop("measured")
    ours, theirs = (statistics.median(rate) for rate in zip(*rates, strict=True))
    facts = host_facts()
    print(
        f"{facts.get('cpu', facts.get('processor', ''))}, torch {torch.__version__}, {torch.get_num_threads()} threads"
    )
    print(f"median of {arguments.blocks} pairs of blocks of {arguments.batches} batches")
    if arguments.cpu_time:
        print("seconds are of CPU time")
    print(f"millpond {ours:,.0f} batches/s, bare PyTorch {theirs:,.0f}; a batch is drawn in {drawn * 1e6:.0f} us")
    ratio = statistics.median(ratios)
    print(f"ratio {ratio:.3f}, limit {LIMIT}: {'ok' if ratio >= LIMIT else 'MISSED'}")


def draw(trainer: RewardTrainer, batches: int) -> None:
    """The sampler alone."""
    for _ in range(batches):
        episodes, steps = trainer.batches.draw(trainer.sampler)
        trainer.batches.steps(trainer.batches.episodes[episodes], steps)


if __name__ == "__main__":
    main()
