"""Compare compiled updates of DQN and SAC with the plain ones, in milliseconds per update.

    python benchmarks/learning/compiled_learners.py [--repeats 7]

Both run alternately in one process, on the networks of the recipes `mixture` and `reward-online`; the fastest and the median
of the repeats are printed. MinAtar is not needed: images are drawn, with as many ones as Breakout has.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch

from millpond import fast
from millpond.config.mixture import DQNConfig
from millpond.envs.spec import ActionSpec, ObservationSpec
from millpond.learners import DQN, SAC, build_q_network
from millpond.processor import cpu_name

UPDATES = 32


def image_batches(count: int, size: int) -> list[Any]:
    rng = torch.Generator().manual_seed(0)

    def frames() -> torch.Tensor:
        return (torch.rand(size, 4, 10, 10, generator=rng) < 0.08).to(torch.uint8)

    return [batch(size, frames(), frames(), torch.randint(3, (size,), generator=rng), rng) for _ in range(count)]


def vector_batches(count: int, size: int) -> list[Any]:
    rng = torch.Generator().manual_seed(0)

    def numbers(width: int) -> torch.Tensor:
        return torch.randn(size, width, generator=rng)

    return [batch(size, numbers(3), numbers(3), numbers(1).tanh(), rng) for _ in range(count)]


def batch(size: int, now: torch.Tensor, then: torch.Tensor, action: torch.Tensor, rng: torch.Generator) -> Any:
    reward, discount = torch.rand(size, generator=rng), torch.full((size,), 0.99)
    return SimpleNamespace(
        observation=now, next_observation=then, action=action, reward=reward, discount=discount, next_action_mask=None
    )


def dqn(compiled: bool) -> DQN:
    observation = ObservationSpec.single((4, 10, 10), "uint8", "pixels", high=1.0)
    generator = torch.Generator().manual_seed(0)
    network = build_q_network(observation, ActionSpec.discrete(3), hidden_size=128, generator=generator)
    return DQN(network, DQNConfig(batch_size=128), compiled=fast.dqn_updates if compiled else None)


def sac(compiled: bool) -> SAC:
    observation, action = ObservationSpec.single((3,), "float32", "vector"), ActionSpec.continuous((-2.0,), (2.0,))
    return SAC(observation, action, seed=0, compiled=fast.sac_updates if compiled else None)


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def compare(name: str, plain: Any, quick: Any, batches: list[Any], repeats: int) -> None:
    times: dict[str, list[float]] = {"plain": [], "compiled": []}
    for learner in (plain, quick):
        learner.update_all(batches[:2])
    for _ in range(repeats):
        times["plain"].append(seconds(lambda: plain.update_all(batches)) / len(batches))
        times["compiled"].append(seconds(lambda: quick.update_all(batches)) / len(batches))
    for kind, spent in times.items():
        print(f"{name:22} {kind:9} best {min(spent) * 1e3:6.2f} ms   median {median(spent) * 1e3:6.2f} ms")
    ratios = [slow / quick for slow, quick in zip(times["plain"], times["compiled"], strict=True)]
    print(f"{name:22} ratio     {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    print(f"{cpu_name()}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    compare("DQN, MinAtar, 128", dqn(False), dqn(True), image_batches(UPDATES, 128), repeats)
    compare("SAC, Pendulum, 256", sac(False), sac(True), vector_batches(UPDATES, 256), repeats)


if __name__ == "__main__":
    main()
