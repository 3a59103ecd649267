"""Inputs and outputs of PufferLib's own compiled advantage function, stored for tests. Runs in a separate virtual environment.

    ~/.cache/millpond/peers/puffer/bin/python benchmarks/peers/puffer_advantage.py tests/data/puffer_advantage.npz

Inputs are random: rewards, values, ends of episodes and probability ratios on both sides of the clips. The test
`tests/kernels/test_advantage.py` compares Millpond's kernels with the stored outputs to 1e-5, without PufferLib.
"""

from __future__ import annotations

import sys
from importlib.metadata import version

import numpy as np
import torch
from pufferlib.pufferl import compute_puff_advantage

CASES = [  # rows, horizon, gamma, lambda, clip of rho, clip of c
    (24, 64, 0.977, 0.916, 1.0, 1.0),
    (16, 32, 0.995, 0.9, 1.3, 0.8),
    (8, 2, 0.9, 1.0, 3.0, 2.0),
    (8, 1, 0.9, 0.95, 1.0, 1.0),
]


def main() -> None:
    rng, stored = np.random.default_rng(0), {}
    for case, (rows, horizon, *numbers) in enumerate(CASES):
        shape = (rows, horizon)
        inputs = {
            "value": rng.normal(size=shape),
            "reward": rng.normal(size=shape).clip(-1, 1),
            "done": rng.random(shape) < 0.1,
            "ratio": np.exp(0.5 * rng.normal(size=shape)),
        }
        arrays = {name: array.astype(np.float32) for name, array in inputs.items()}
        tensors = [torch.from_numpy(arrays[name]) for name in ("value", "reward", "done", "ratio")]
        advantage = compute_puff_advantage(*tensors, torch.zeros(shape), *numbers)
        arrays |= {"advantage": advantage.numpy(), "numbers": np.array(numbers)}
        stored |= {f"{case}/{name}": array for name, array in arrays.items()}
    np.savez_compressed(sys.argv[1], version=version("pufferlib-core"), **stored)


if __name__ == "__main__":
    main()
