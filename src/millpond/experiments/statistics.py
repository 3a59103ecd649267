"""Comparison of runs: means, interquartile means, and the probability that one method's run beats another's.

Few runs say little, so every number has a bootstrap interval with runs resampled within each game, as recommended by
 Agarwal et al. (2021), "Deep Reinforcement Learning at the Edge of the Statistical Precipice".

# G games   N runs of one method in one game
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from millpond.errors import MillpondError

Array = np.ndarray[Any, np.dtype[np.float64]]
Scores = Mapping[str, Sequence[float]]  # by game, one number per run
RESAMPLES = 2_000
MAX_SPLITS_PER_GAME = 10_000
MAX_SPLITS = 200_000


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
    """Mean of the middle half: of n sorted scores, n / 4 are left out on each side, fractionally if 4 does not divide n.

    With four runs the best and the worst are left out; with one run it is that run.
    """
    ordered = np.sort(scores.reshape(-1))
    count = len(ordered)
    edges = np.arange(count + 1)
    # The part of each score between the first and the third quartile.
    inside = np.minimum(edges[1:], 0.75 * count) - np.maximum(edges[:-1], 0.25 * count)
    weight = np.clip(inside, 0.0, 1.0)
    return float((ordered * weight).sum() / weight.sum())


def probability_of_improvement(x: Array, y: Array) -> float:
    """Probability that a run of x beats a run of y, ties counted half: the Mann-Whitney U, divided by its maximum."""
    above = (x[:, None] > y[None, :]).mean()
    ties = (x[:, None] == y[None, :]).mean()
    return float(above + 0.5 * ties)


def estimate(scores: Scores, statistic: Callable[[Array], float], rng: np.random.Generator) -> BootstrapEstimate:
    """A statistic of the runs of all games, with an interval from runs resampled within each game."""
    games = [_array(game, values) for game, values in scores.items()]

    def pooled(samples: list[Array]) -> float:
        return statistic(np.concatenate(samples))

    return _interval(pooled(games), [pooled([_resample(game, rng) for game in games]) for _ in range(RESAMPLES)])


def estimate_improvement(x: Scores, y: Scores, rng: np.random.Generator) -> BootstrapEstimate:
    """Probability that x beats y, averaged over the games."""
    if x.keys() != y.keys():
        raise MillpondError(f"two methods must be compared on the same games, not on {sorted(x)} and {sorted(y)}")
    pairs = [(_array(game, x[game]), _array(game, y[game])) for game in x]

    def averaged(samples: list[tuple[Array, Array]]) -> float:
        return float(np.mean([probability_of_improvement(a, b) for a, b in samples]))

    resampled = [averaged([(_resample(a, rng), _resample(b, rng)) for a, b in pairs]) for _ in range(RESAMPLES)]
    return _interval(averaged(pairs), resampled)


def permutation_test(x: Scores, y: Scores, rng: np.random.Generator) -> float:
    """Two-sided p-value: the probability of a difference at least this large if the methods were equal.

    Within each game the runs are split among the two methods again: in all ways if these are few enough, else in many
    random ways. Three runs against three in one game can never give less than 2 / 20.
    """
    if x.keys() != y.keys():
        raise MillpondError(f"two methods must be compared on the same games, not on {sorted(x)} and {sorted(y)}")
    pairs = [(_array(game, x[game]), _array(game, y[game])) for game in x]
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


def _split_differences(a: Array, b: Array, rng: np.random.Generator) -> Array:
    """Probability that x beats y, minus one half, for ways to split the runs of one game."""
    runs, count = np.concatenate([a, b]), len(a)
    indices = np.arange(len(runs))
    if math.comb(len(runs), count) <= MAX_SPLITS_PER_GAME:
        picks = [list(pick) for pick in combinations(range(len(runs)), count)]
    else:
        picks = [rng.permutation(len(runs))[:count].tolist() for _ in range(MAX_SPLITS_PER_GAME)]
    return np.array([probability_of_improvement(runs[pick], runs[np.setdiff1d(indices, pick)]) - 0.5 for pick in picks])


def _array(game: str, values: Sequence[float]) -> Array:
    if not len(values):
        raise MillpondError(f"{game} has no runs to compare")
    return np.asarray(values, np.float64)


def _resample(scores: Array, rng: np.random.Generator) -> Array:
    return scores[rng.integers(0, len(scores), len(scores))]


def _interval(value: float, resampled: list[float]) -> BootstrapEstimate:
    low, high = np.quantile(resampled, [0.025, 0.975])
    return BootstrapEstimate(value, float(low), float(high))
