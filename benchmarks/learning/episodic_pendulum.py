"""Compare SAC on rewards learned by `lrd` with SAC on the return, on Pendulum with its return only at the end.

    python benchmarks/learning/episodic_pendulum.py [--seeds 5] [--env-steps 20000] [--episodes 10] [--at-once 2]

Same env, learner, updates and env steps; `agent.learn_from` is the only difference. Each seed's score is the mean of its
last three test rollouts. Bootstrap intervals over seeds must not overlap. Pendulum's returns range from about -1,600 (hanging)
over -1,208 (random, 100 episodes) to -150 (solved).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch

from millpond.config import load
from millpond.trainers.common.session import start_run
from millpond.trainers.reward.trainer import RewardTrainer

CYCLE = 20  # iterations of 50 env steps
LAST = 3  # cycles that a seed's score is the mean of
RESAMPLES = 10_000


def processes(count: int) -> ProcessPoolExecutor:
    """Return a pool of fresh processes, each with one thread of torch."""
    return ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), torch.set_num_threads, (1,))


def play(folder: str, learn_from: str, seed: int, env_steps: int, episodes: int) -> list[tuple[float, float]]:
    """Train once; return env steps and test return after every cycle."""
    settings = {
        "seed": seed,
        "run_dir": folder,
        "agent.learn_from": learn_from,
        "agent.test_episodes": episodes,
        "reward.epochs": 1,
        "reward.cycles": max(1, env_steps // (CYCLE * 50)),
        "reward.iterations": CYCLE,
        "reward.train_batches": 50,
        "log.tensorboard": False,
    }
    loaded = load("reward-online", settings)
    trainer = RewardTrainer(loaded, start_run(loaded, f"{learn_from}-{seed}"))
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            trainer.train()
    finally:
        trainer.close()
    records = [json.loads(line) for line in Path(trainer.run.metrics_path).read_text().splitlines()]
    return [(record["env_steps"], record["eval/episode_return"]) for record in records]


def interval(scores: list[float]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the mean over seeds."""
    picks = np.random.default_rng(0).integers(0, len(scores), size=(RESAMPLES, len(scores)))
    low, high = np.quantile(np.array(scores)[picks].mean(1), [0.025, 0.975])
    return float(low), float(high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--env-steps", type=int, default=20_000)
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--at-once", type=int, default=os.cpu_count(), help="runs side by side, one thread each")
    arguments = parser.parse_args()
    scores: dict[str, list[float]] = {"predicted": [], "world": []}
    runs = [(seed, learn_from) for seed in range(1, arguments.seeds + 1) for learn_from in scores]
    with tempfile.TemporaryDirectory() as folder, processes(arguments.at_once) as pool:
        curves = [pool.submit(play, folder, name, seed, arguments.env_steps, arguments.episodes) for seed, name in runs]
        for (seed, learn_from), curve in zip(runs, curves, strict=True):
            values = [value for _, value in curve.result()]
            scores[learn_from].append(float(np.mean(values[-LAST:])))
            shown = " ".join(f"{value:.0f}" for value in values)
            print(f"seed {seed} {learn_from:<9} {scores[learn_from][-1]:8.1f}  {shown}", flush=True)
    intervals = {name: interval(values) for name, values in scores.items()}
    for name, label in (("predicted", "SAC with lrd"), ("world", "SAC on the return")):
        low, high = intervals[name]
        print(f"{label:<18} {np.mean(scores[name]):8.1f}  95% interval over seeds {low:.1f} to {high:.1f}")
    print(f"apart: {'yes' if intervals['predicted'][0] > intervals['world'][1] else 'NO'}")


if __name__ == "__main__":
    main()
