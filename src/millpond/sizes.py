"""Arithmetic of batches and of images: pure functions on integers, shared by rules, plans, policies and trainers."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

LARGE_IMAGE = 36  # pixels per side from which the three convolutions of Mnih et al. (2015) fit


def envs_per_group(target: int, num_agents: int, num_workers: int) -> int:
    """Envs whose agents fill one forward pass: `target // agents`, rounded down to a multiple of the workers.

    4,096 agents // 3 per env = 1,365 envs, rounded down to a multiple of 16 workers = 1,360.
    """
    return target // num_agents // num_workers * num_workers


def trainer_envs(trainer_share: float, envs_per_group: int) -> int:
    """Envs of each group that the trainer steps itself: its share, rounded, and at least one unless the share is 0.

    0.1 of 32 envs is 3.
    """
    return max(1, int(trainer_share * envs_per_group + 0.5)) if trainer_share else 0


def rows_per_round(num_envs: int, num_agents: int, batch_unit: str) -> int:
    """Rows filled by one round of `bptt_horizon` steps of every env: one per env, or one per agent."""
    return num_envs if batch_unit == "env_steps" else num_envs * num_agents


@lru_cache(maxsize=256)
def divisors(number: int) -> tuple[int, ...]:
    """Return all divisors in ascending order."""
    products, rest, factor = [1], number, 2
    while factor * factor <= rest:
        times = 0
        while rest % factor == 0:
            rest //= factor
            times += 1
        if times:
            products = [d * power for d in products for power in (factor**k for k in range(times + 1))]
        factor += 1 if factor == 2 else 2
    if rest > 1:
        products += [d * rest for d in products]
    return tuple(sorted(products))


def nearest_multiples(value: int, unit: int) -> list[int]:
    """Return the positive multiples of `unit` below and above `value`, nearest first; only `value` if it is one."""
    if value > 0 and value % unit == 0:
        return [value]
    low = max(value, 0) // unit * unit
    around = [m for m in (low, low + unit) if m > 0]
    return sorted(around, key=lambda m: abs(m - value))


def nearest_divisors(value: int, of: int, unit: int = 1) -> list[int]:
    """Return the divisors of `of` that are multiples of `unit`, below and above `value`, nearest first.

    `of` must itself be a multiple of `unit`, so there is always at least one: `unit`.
    """
    choices = [unit * d for d in divisors(of // unit)]
    below = [c for c in choices if c <= value][-1:]
    above = [c for c in choices if c >= value][:1]
    return sorted(set(below + above), key=lambda c: abs(c - value))


class Convolution(NamedTuple):
    """A layer without padding, and the size of its output."""

    channels: int  # of its input
    filters: int
    side: int  # of a filter, in pixels
    stride: int
    height: int
    width: int

    @property
    def outputs(self) -> int:
        return self.filters * self.height * self.width


def convolutions(image: tuple[int, ...]) -> list[Convolution]:
    """Return the layers for images (channels, height, width) or (height, width).

    From 36 pixels per side they are those of Mnih et al. (2015); below that one of 16 filters of 3x3, as for MinAtar (Young
    and Tian, 2019).
    """
    channels, height, width = image if len(image) == 3 else (1, *image)
    large = min(height, width) >= LARGE_IMAGE
    layers = []
    for filters, side, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)) if large else ((16, 3, 1),):
        height, width = (height - side) // stride + 1, (width - side) // stride + 1
        layers.append(Convolution(channels, filters, side, stride, height, width))
        channels = filters
    return layers
