"""Compare batches per second of reward learning with bare PyTorch loops of the same network and batch.

    python benchmarks/reward_speed.py [--pairs 100] [--batches 50] [--threads N] [--cpu-time]
    python benchmarks/reward_speed.py --memory 1000000

The bare loop is what one would write without a framework: all steps' features in one tensor, computed beforehand; a
batch of 4 episodes sampled by `torch.randint` and 64 steps of each, without replacement, by `torch.rand` and `topk`; the
same layers, loss and optimiser. It has no records, console, hooks or target network, and cannot be resumed. The limit
is 0.90 of its speed. A second one always trains on the same batch, for comparison: nothing is sampled at all.

They alternate in short blocks, in changing order, so that other load hits all of them. The figure is the median over the
blocks; the ratio of the sums is shown too, because the end of a cycle, with its table and record, is in one block of ten.

`--memory N` trains N batches of a small network instead, with all cycles' records, epochs' evaluations and checkpoints,
and prints the resident memory at every tenth. It must stay flat.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
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
from millpond.store import host_facts, training
from millpond.trainers.common.session import start_run
from millpond.trainers.reward.trainer import RewardTrainer

LIMIT = 0.90
SMALL = {
    "reward.hidden_size": 16,
    "reward.episodes_per_batch": 2,
    "reward.steps_per_episode": 8,
    "reward.cycles": 20,  # 10,000 batches per epoch
}


def bare_loop(trainer: RewardTrainer, *, samples: bool) -> Callable[[int], None]:
    """Return a loop with the same layers, batch, loss and optimiser only. Without `samples`, it always uses the first batch."""
    reward, recorded = trainer.recipe.reward, trainer.recorded
    data, training_episodes = recorded.data, torch.from_numpy(recorded.training)
    lengths = torch.from_numpy(data.lengths)
    first, shortest = lengths.cumsum(0) - lengths, int(lengths.min())
    table = trainer.batches.features._table.clone()
    mean_returns = trainer.batches._mean_return.clone()
    hidden, shape = reward.hidden_size, (reward.episodes_per_batch, reward.steps_per_episode)
    network = nn.Sequential(
        nn.Linear(table.shape[1], hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=reward.learning_rate, fused=True)

    def sample() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        indices = torch.randint(len(training_episodes), shape[:1])
        episodes = training_episodes[indices]
        steps = torch.rand(shape[0], shortest).topk(shape[1]).indices
        features = table[(first[episodes][:, None] + steps).flatten()]
        return features, mean_returns[indices], lengths[episodes]

    features, mean_return, length = sample()

    def run(batches: int) -> None:
        nonlocal features, mean_return, length
        for _ in range(batches):
            if samples:
                features, mean_return, length = sample()
            loss = lrd_loss(network(features).view(shape), mean_return, length)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return run


def play(trainer: RewardTrainer, batches: int) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.play(trainer.loop.count + batches)


def measure(folder: str, pairs: int, batches: int, clock: Callable[[], float]) -> dict[str, list[float]]:
    """Return seconds per batch of each loop, by turn."""
    loaded = load("reward", {"run_dir": folder, "reward.epochs": 10**6, "reward.cycles": 10**3})
    trainer = RewardTrainer(loaded, start_run(loaded, "speed"))
    loops = {
        "millpond": lambda count: play(trainer, count),
        "bare": bare_loop(trainer, samples=True),
        "bare, one batch": bare_loop(trainer, samples=False),
    }
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    order = list(loops)
    with training(trainer.run, trainer.loop, trainer.recorder):
        for run in loops.values():
            run(batches)
        for _ in range(pairs):
            random.shuffle(order)
            for name in order:
                began = clock()
                loops[name](batches)
                seconds[name].append((clock() - began) / batches)
        trainer.loop.stop("measured")
    return seconds


def show_speed(seconds: dict[str, list[float]]) -> None:
    for name, taken in seconds.items():
        print(f"  {name:<16} {1 / statistics.median(taken):>8,.0f} batches/s")
    ours = seconds["millpond"]
    for name in ("bare", "bare, one batch"):
        ratio = statistics.median(theirs / own for theirs, own in zip(seconds[name], ours, strict=True))
        verdict = "" if name != "bare" else f", limit {LIMIT}: {'ok' if ratio >= LIMIT else 'MISSED'}"
        print(f"against {name}: {ratio:.3f}, by the sums {sum(seconds[name]) / sum(ours):.3f}{verdict}")


def resident() -> int:
    """Return the resident memory in kilobytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 2**10


def watch_memory(folder: str, batches: int) -> None:
    loaded = load("reward", {"run_dir": folder, "reward.epochs": 10**6, **SMALL})
    trainer = RewardTrainer(loaded, start_run(loaded, "memory"))
    with training(trainer.run, trainer.loop, trainer.recorder):
        print(f"  before the first batch {resident():>9,} kB resident")
        for tenth in range(1, 11):
            began = time.perf_counter()
            play(trainer, batches * tenth // 10 - trainer.loop.count)
            rate = batches / 10 / (time.perf_counter() - began)
            print(f"  after {trainer.loop.count:>9,} batches {resident():>9,} kB resident, {rate:,.0f}/s", flush=True)
        trainer.loop.stop("measured")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=100, help="turns of every loop")
    parser.add_argument("--batches", type=int, default=50, help="batches in a turn")
    parser.add_argument("--threads", type=int, help="threads of torch; 1 is steadier if others use the machine")
    parser.add_argument("--memory", type=int, default=0, metavar="BATCHES")
    parser.add_argument("--cpu-time", action="store_true", help="count CPU time: fairer if others use the machine")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    facts = host_facts()
    cpu, threads = facts.get("cpu", facts.get("processor", "")), torch.get_num_threads()
    print(f"{cpu}, torch {torch.__version__}, {threads} thread{'s' if threads > 1 else ''}")
    with tempfile.TemporaryDirectory() as folder:
        if arguments.memory:
            watch_memory(folder, arguments.memory)
            return
        clock = time.process_time if arguments.cpu_time else time.perf_counter
        seconds = measure(folder, arguments.pairs, arguments.batches, clock)
    print(f"{arguments.pairs} turns of {arguments.batches} batches{', CPU time' if arguments.cpu_time else ''}")
    show_speed(seconds)
    if arguments.json:
        ours, bare = seconds["millpond"], seconds["bare"]
        ratios = [theirs / own for theirs, own in zip(bare, ours, strict=True)]
        print(json.dumps({"ours": 1 / statistics.median(ours), "bare": 1 / statistics.median(bare), "ratios": ratios}))


if __name__ == "__main__":
    main()
