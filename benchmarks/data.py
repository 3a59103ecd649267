"""Compare the cost of sampling recorded steps with a bare array index and with the update that uses them.

    python benchmarks/data.py
    python benchmarks/data.py --episodes 16 --steps 64 --seconds 5

Vectors: `pendulum`, in memory and from the file. Images: a file in LIBERO's shape (128 x 128 x 3), in memory, from the file,
and from a compressed file. The update is a reward network of two layers of 256, forward, backward and Adam, one thread.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import torch

from millpond.data import Episodes, open_episodes


def rate(work: Callable[[], object], seconds: float) -> float:
    """Return calls per second, after a warm-up call."""
    work()
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        work()
        count += 1
    return count / (time.perf_counter() - began)


def sampler(data: Episodes, episodes: int, steps: int) -> Callable[[], object]:
    """Return a function that samples as a trainer does: episodes, steps of each, and their transitions."""
    rng = np.random.default_rng(0)

    def work() -> object:
        sampled = rng.integers(0, len(data), episodes)
        return data.gather(sampled, (rng.random((episodes, steps)) * data.lengths[sampled][:, None]).astype(np.int64))

    return work


def update(width: int, steps: int) -> Callable[[], object]:
    network = torch.nn.Sequential(
        torch.nn.Linear(width, 256),
        torch.nn.ReLU(),
        torch.nn.Linear(256, 256),
        torch.nn.ReLU(),
        torch.nn.Linear(256, 1),
    )
    optimizer = torch.optim.Adam(network.parameters(), 3e-4)
    inputs = torch.randn(steps, width)

    def work() -> object:
        optimizer.zero_grad()
        network(inputs).square().mean().backward()
        return optimizer.step()

    return work


def write_images(path: Path, compression: str | None) -> None:
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for number in range(20):
            demo = file.create_group(f"data/demo_{number}")
            demo["actions"], demo["obs/joint_states"] = rng.normal(size=(100, 7)), rng.normal(size=(100, 7))
            image = np.repeat(rng.integers(0, 256, (100, 16, 16, 3), dtype=np.uint8), 8, axis=1).repeat(8, axis=2)
            chunks = (1, 128, 128, 3) if compression else None
            demo.create_dataset("obs/agentview_rgb", data=image, compression=compression, chunks=chunks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=4)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=3.0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    size = (arguments.episodes, arguments.steps)
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores; {size[0]} episodes x {size[1]} steps")
    table, indices = np.zeros((11_256, 3), np.float32), np.random.default_rng(0).integers(0, 11_256, size)
    bare = rate(lambda: (table[indices], table[indices], table[indices]), arguments.seconds)
    learned = rate(update(7, size[0] * size[1]), arguments.seconds)
    print(f"bare index, three times        {bare:>10,.0f} per second")
    print(f"update of the reward network   {learned:>10,.0f} per second")
    for name, memory in (("pendulum, in memory", 1 << 30), ("pendulum, from the file", 0)):
        speed = rate(sampler(open_episodes("pendulum", memory_bytes=memory), *size), arguments.seconds)
        print(f"{name:<30} {speed:>10,.0f} samples per second; a sample costs {learned / speed:.1%} of an update")
    with tempfile.TemporaryDirectory() as folder:
        for compression in (None, "gzip"):
            path = Path(folder) / f"{compression}.hdf5"
            write_images(path, compression)
            for where, memory in (("in memory", 1 << 30), ("from the file", 1 << 20)):
                speed = rate(sampler(open_episodes(path, images=True, memory_bytes=memory), *size), arguments.seconds)
                name = f"images{' (gzip)' if compression else ''}, {where}"
                print(f"{name:<30} {speed * size[0] * size[1]:>10,.0f} transitions per second")


if __name__ == "__main__":
    main()
