"""One random stream per env: splitmix64 (Steele, Lea and Flood, 2014), eight bytes of state.

    state <- state + 0x9E3779B97F4A7C15 mod 2^64;   output = mix(state)

The state is a counter, so a stream is saved as one integer, and the numbers that an env draws depend on its own seed
alone: not on its index in the batch, nor on the number of other envs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

GAMMA = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)
SHIFT_1, SHIFT_2, SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)


def draw(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Advance each stream of `state` in place and return one output per stream."""
    with np.errstate(over="ignore"):
        state += GAMMA
        mixed = (state ^ (state >> SHIFT_1)) * MIX_1
        mixed = (mixed ^ (mixed >> SHIFT_2)) * MIX_2
        return np.asarray(mixed ^ (mixed >> SHIFT_3), np.uint64)


def draw_below(state: npt.NDArray[np.uint64], bound: int) -> npt.NDArray[np.int64]:
    """Draw one integer in 0..bound-1 per stream, from the upper 32 bits: floor(u * bound / 2^32)."""
    return np.asarray(((draw(state) >> np.uint64(32)) * np.uint64(bound)) >> np.uint64(32), np.int64)


def spawn_seeds(seed: int, num_envs: int) -> npt.NDArray[np.uint64]:
    """Derive the seeds of a batch from one number. The seeds of a smaller batch are a prefix of a larger one's."""
    return np.random.SeedSequence(seed).generate_state(num_envs, np.uint64).astype(np.uint64)


def check_seeds(seeds: npt.NDArray[Any], num_envs: int) -> npt.NDArray[np.uint64]:
    """Return a copy of the seeds of a batch as uint64 [num_envs]."""
    array = np.array(seeds)
    if array.shape != (num_envs,) or array.dtype.kind not in "ui" or (array.dtype.kind == "i" and (array < 0).any()):
        raise ValueError(
            f"seeds must be {num_envs} non-negative integers, one per env; got {array.dtype} {array.shape}"
        )
    return array.astype(np.uint64)
