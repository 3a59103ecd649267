"""Comparison of runs: means, interquartile means, and the probability that one method's run beats another's.

Few runs say little, so every number has a bootstrap interval with runs resampled within each world, as recommended by
Agarwal et al. (2021), "Deep Reinforcement Learning at the Edge of the Statistical Precipice".

# G worlds   N runs of one method in one world
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from millpond.errors import MillpondError
from millpond.formatting import plural

Array = np.ndarray[Any, np.dtype[np.float64]]
Scores = Mapping[str, Sequence[float]]  # by world, one number per run
RESAMPLES = 2_000
MAX_SPLITS_PER_WORLD = 10_000
MAX_SPLITS = 200_000
SIGNIFICANCE = 0.05  # largest p-value that counts as a difference
POWER = 0.8
SIMULATIONS = 2_000


@dataclass(frozen=True)
class BootstrapEstimate:
    """A number and its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        return {"value": self.value, "low": self.low, "high": self.high}


def mean(scores: Array) -> float:
    return float(scores.mean())


def interquartile_mean(scores: Array) -> float:
    """Mean of the middle half: of n sorted scores, the whole part of n / 4 is left out on each side.

    With four runs the best and the worst are left out; with three runs none, so it is their mean.
    """
    ordered = np.sort(scores.reshape(-1))
    out = len(ordered) // 4
    return float(ordered[out : len(ordered) - out].mean())


def optimality_gap(scores: Array, optimum: float = 1.0) -> float:
    """Mean shortfall of the runs below `optimum`; what is above it does not make up for what is below."""
    return float(optimum - np.minimum(scores, optimum).mean())


def probability_of_improvement(x: Array, y: Array) -> float:
    """Probability that a run of x beats a run of y, ties counted half: the Mann-Whitney U, divided by its maximum."""
    above = (x[:, None] > y[None, :]).mean()
    ties = (x[:, None] == y[None, :]).mean()
    return float(above + 0.5 * ties)


def performance_profile(
    scores: Scores, thresholds: Sequence[float], rng: np.random.Generator
) -> list[BootstrapEstimate]:
    """Fraction of runs with a score above each threshold, with intervals from runs resampled within each world."""
    worlds = [_array(world, values) for world, values in scores.items()]
    at = np.asarray(thresholds, np.float64)

    def fractions(samples: list[Array]) -> Array:
        return np.asarray((np.concatenate(samples)[:, None] > at).mean(axis=0), np.float64)

    resampled = np.array([fractions([_resample(world, rng) for world in worlds]) for _ in range(RESAMPLES)])
    return [
        _interval(float(value), column.tolist()) for value, column in zip(fractions(worlds), resampled.T, strict=True)
    ]


def estimate(scores: Scores, statistic: Callable[[Array], float], rng: np.random.Generator) -> BootstrapEstimate:
    """A statistic of the runs of all worlds, with an interval from runs resampled within each world."""
    worlds = [_array(world, values) for world, values in scores.items()]

    def pooled(samples: list[Array]) -> float:
        return statistic(np.concatenate(samples))

    return _interval(pooled(worlds), [pooled([_resample(world, rng) for world in worlds]) for _ in range(RESAMPLES)])


def estimate_improvement(x: Scores, y: Scores, rng: np.random.Generator) -> BootstrapEstimate:
    """Probability that x beats y, averaged over the worlds."""
    if x.keys() != y.keys():
        raise MillpondError(f"two methods must be compared on the same worlds, not on {sorted(x)} and {sorted(y)}")
    pairs = [(_array(world, x[world]), _array(world, y[world])) for world in x]

    def averaged(samples: list[tuple[Array, Array]]) -> float:
        return float(np.mean([probability_of_improvement(a, b) for a, b in samples]))

    resampled = [averaged([(_resample(a, rng), _resample(b, rng)) for a, b in pairs]) for _ in range(RESAMPLES)]
    return _interval(averaged(pairs), resampled)


def permutation_test(x: Scores, y: Scores, rng: np.random.Generator) -> float:
    """Two-sided p-value: the probability of a difference at least this large if the methods were equal.

    Within each world the runs are split among the two methods again: in all ways if these are few enough, else in many
    random ways. Three runs against three in one world can never give less than 2 / 20.
    """
    if x.keys() != y.keys():
        raise MillpondError(f"two methods must be compared on the same worlds, not on {sorted(x)} and {sorted(y)}")
    pairs = [(_array(world, x[world]), _array(world, y[world])) for world in x]
    observed = sum(probability_of_improvement(a, b) - 0.5 for a, b in pairs)
    splits = [_split_differences(a, b, rng) for a, b in pairs]
    count = math.prod(len(each) for each in splits)
    if count <= MAX_SPLITS:
        sums = np.zeros(1)
        for each in splits:
            sums = (sums[:, None] + each[None, :]).reshape(-1)
    else:
        sums = np.sum([rng.choice(each, MAX_SPLITS) for each in splits], axis=0)
    return float((np.abs(sums) >= abs(observed) - 1e-12).mean())


def detectable_difference(seeds: int, worlds: int) -> float | None:
    """Return the difference, in standard deviations of a run, that the permutation test finds with probability `POWER`.

    For normal scores, `seeds` runs of each method in each of `worlds` worlds, and the same difference in all of them.
    None if the test can never find any: three runs against three in one world are split in 20 ways, and 2 / 20 > 0.05.
    """
    critical = _critical_sum(seeds, worlds)
    if critical is None:
        return None
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, SIMULATIONS, worlds, seeds))

    def power(difference: float) -> float:
        above = (x[..., :, None] + difference > y[..., None, :]).mean(axis=(-2, -1)) - 0.5
        return float((np.abs(above.sum(axis=-1)) >= critical - 1e-12).mean())

    low, high = 0.0, 1.0
    while power(high) < POWER:
        low, high = high, 2 * high
    while high - low > 0.005:
        middle = (low + high) / 2
        low, high = (middle, high) if power(middle) < POWER else (low, middle)
    return high


def _critical_sum(seeds: int, worlds: int) -> float | None:
    """Return the smallest sum over worlds of |P(x beats y) - 1/2| with a p-value below `SIGNIFICANCE`."""
    # ways[u]: splits of 2 * seeds runs in which x beats y in u of seeds^2 pairs. A run of x at the k-th place from
    # below beats as many runs of y as there are below it.
    ways = np.zeros((seeds + 1, seeds * seeds + 1))  # by runs of x placed, and pairs won
    ways[0, 0] = 1.0
    for place in range(2 * seeds):
        after = np.zeros_like(ways)
        for placed in range(min(place, seeds) + 1):
            others = place - placed
            if others > seeds:
                continue
            if others < seeds:
                after[placed] += ways[placed]
            if placed < seeds:
                won = others
                after[placed + 1, won:] += ways[placed, : ways.shape[1] - won]
        ways = after
    one = ways[seeds] / ways[seeds].sum()
    total = one
    for _ in range(worlds - 1):
        total = np.convolve(total, one)
    distance = np.abs(np.arange(len(total)) / seeds**2 - worlds / 2)
    for value in np.unique(distance):
        if total[distance >= value - 1e-12].sum() < SIGNIFICANCE:
            return float(value)
    return None


def show_detectable(seeds: int, worlds: int) -> str:
    """Return a sentence on what so many runs can show."""
    where = plural(seeds, "seed") + (f" in each of {plural(worlds, 'world')}" if worlds > 1 else "")
    difference = detectable_difference(seeds, worlds)
    if difference is None:
        enough = next(n for n in range(seeds + 1, 100) if _critical_sum(n, worlds) is not None)
        return (
            f"{where} cannot show any difference: the permutation test never gives p < {SIGNIFICANCE:g} with so few runs; "
            f"take at least {plural(enough, 'seed')}"
        )
    return (
        f"{where} can show a difference of {difference:.1f} standard deviations of a run "
        f"(found with probability {POWER:.0%}, p < {SIGNIFICANCE:g}); smaller ones may be missed"
    )


def student_quantile(probability: float, freedom: int) -> float:
    """Return the quantile (of at least 1/2) of Student's t distribution with so many degrees of freedom."""
    log_factor = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(freedom * math.pi)

    def below(t: float) -> float:  # substitution x = tan(u) sqrt(freedom): a finite range, whatever t is
        u = np.linspace(0.0, math.atan(t / math.sqrt(freedom)), 4_001)
        return 0.5 + math.exp(log_factor) * math.sqrt(freedom) * float(np.trapezoid(np.cos(u) ** (freedom - 1), u))

    low, high = 0.0, 1.0
    while below(high) < probability:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) < probability else (low, middle)
    return high


def mean_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float] | None:
    """Return Student's interval of the mean; None for a single value. For few values it is wider than a bootstrap."""
    count = len(values)
    if count < 2:
        return None
    half = student_quantile((1 + level) / 2, count - 1) * float(np.std(values, ddof=1)) / math.sqrt(count)
    return float(np.mean(values)) - half, float(np.mean(values)) + half


def is_worse(x: Sequence[float], y: Sequence[float], level: float = 0.95) -> bool:
    """Return True if the mean of x is below that of y with this confidence (one-sided, Student's t, common variance)."""
    freedom = len(x) + len(y) - 2
    if len(x) < 2 or len(y) < 2:
        return False
    variance = ((len(x) - 1) * np.var(x, ddof=1) + (len(y) - 1) * np.var(y, ddof=1)) / freedom
    error = math.sqrt(float(variance) * (1 / len(x) + 1 / len(y)))
    return float(np.mean(y) - np.mean(x)) > student_quantile(level, freedom) * error


def _split_differences(a: Array, b: Array, rng: np.random.Generator) -> Array:
    """Probability that x beats y, minus one half, for ways to split the runs of one world."""
    runs, count = np.concatenate([a, b]), len(a)
    indices = np.arange(len(runs))
    if math.comb(len(runs), count) <= MAX_SPLITS_PER_WORLD:
        picks = [list(pick) for pick in combinations(range(len(runs)), count)]
    else:
        picks = [rng.permutation(len(runs))[:count].tolist() for _ in range(MAX_SPLITS_PER_WORLD)]
    return np.array([probability_of_improvement(runs[pick], runs[np.setdiff1d(indices, pick)]) - 0.5 for pick in picks])


def _array(world: str, values: Sequence[float]) -> Array:
    if not len(values):
        raise MillpondError(f"{world} has no runs to compare")
    return np.asarray(values, np.float64)


def _resample(scores: Array, rng: np.random.Generator) -> Array:
    return scores[rng.integers(0, len(scores), len(scores))]


def _interval(value: float, resampled: list[float]) -> BootstrapEstimate:
    low, high = np.quantile(resampled, [0.025, 0.975])
    return BootstrapEstimate(value, float(low), float(high))
