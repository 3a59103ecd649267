"""How runs are compared: means, interquartile means, and how often one method's run beats another's.

Few runs say little, so every number comes with a bootstrap interval in which runs are drawn anew within each game, as
recommended by Agarwal et al. (2021), "Deep Reinforcement Learning at the Edge of the Statistical Precipice".

G games   N runs of one method in one game
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
Scores = Mapping[str, Sequence[float]]  # by game, one number a run
RESAMPLES = 2_000
MOST_DEALINGS = 10_000
MOST_WAYS = 200_000


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
    """The mean of the middle half: of n sorted scores, n / 4 are left out on each side, in parts where n is odd.

    Four runs leave out the best and the worst; one run is its own mean.
    """
    ordered = np.sort(scores.reshape(-1))
    count = len(ordered)
    edges = np.arange(count + 1)
    # How much of each score lies between the first and the third quarter.
    inside = np.minimum(edges[1:], 0.75 * count) - np.maximum(edges[:-1], 0.25 * count)
    weight = np.clip(inside, 0.0, 1.0)
    return float((ordered * weight).sum() / weight.sum())


def probability_of_improvement(x: Array, y: Array) -> float:
    """The chance that a run of x beats a run of y, ties counted half: Mann and Whitney's U, divided by its maximum."""
    above = (x[:, None] > y[None, :]).mean()
    ties = (x[:, None] == y[None, :]).mean()
    return float(above + 0.5 * ties)


def estimate(scores: Scores, statistic: Callable[[Array], float], rng: np.random.Generator) -> BootstrapEstimate:
    """A statistic of all games' runs together, with an interval from runs drawn anew within each game."""
    games = [_array(game, values) for game, values in scores.items()]

    def pooled(samples: list[Array]) -> float:
        return statistic(np.concatenate(samples))

    return _interval(pooled(games), [pooled([_again(game, rng) for game in games]) for _ in range(RESAMPLES)])


def estimate_improvement(x: Scores, y: Scores, rng: np.random.Generator) -> BootstrapEstimate:
    """The chance that x beats y, averaged over the games."""
    if x.keys() != y.keys():
        raise MillpondError(f"two methods are compared on the same games, not on {sorted(x)} and {sorted(y)}")
    pairs = [(_array(game, x[game]), _array(game, y[game])) for game in x]

    def averaged(samples: list[tuple[Array, Array]]) -> float:
        return float(np.mean([probability_of_improvement(a, b) for a, b in samples]))

    drawn = [averaged([(_again(a, rng), _again(b, rng)) for a, b in pairs]) for _ in range(RESAMPLES)]
    return _interval(averaged(pairs), drawn)


def permutation_test(x: Scores, y: Scores, rng: np.random.Generator) -> float:
    """How likely a difference in wins at least this large would be, were the methods the same: two-sided.

    Within each game the runs are dealt out to the two methods anew: in all ways where these are few enough, else in
    many at random. Three runs against three in one game can never show less than 2 / 20.
    """
    if x.keys() != y.keys():
        raise MillpondError(f"two methods are compared on the same games, not on {sorted(x)} and {sorted(y)}")
    pairs = [(_array(game, x[game]), _array(game, y[game])) for game in x]
    seen = sum(probability_of_improvement(a, b) - 0.5 for a, b in pairs)
    dealt = [_dealings(a, b, rng) for a, b in pairs]
    ways = math.prod(len(each) for each in dealt)
    if ways <= MOST_WAYS:
        sums = np.zeros(1)
        for each in dealt:
            sums = (sums[:, None] + each[None, :]).reshape(-1)
    else:
        sums = np.sum([rng.choice(each, MOST_WAYS) for each in dealt], axis=0)
    return float((np.abs(sums) >= abs(seen) - 1e-12).mean())


def _dealings(a: Array, b: Array, rng: np.random.Generator) -> Array:
    """The chance that x beats y, less a half, for ways to deal out one game's runs."""
    runs, count = np.concatenate([a, b]), len(a)
    everyone = np.arange(len(runs))
    if math.comb(len(runs), count) <= MOST_DEALINGS:
        chosen = [list(pick) for pick in combinations(range(len(runs)), count)]
    else:
        chosen = [rng.permutation(len(runs))[:count].tolist() for _ in range(MOST_DEALINGS)]
    return np.array(
        [probability_of_improvement(runs[pick], runs[np.setdiff1d(everyone, pick)]) - 0.5 for pick in chosen]
    )


def _array(game: str, values: Sequence[float]) -> Array:
    if not len(values):
        raise MillpondError(f"{game} has no runs to compare")
    return np.asarray(values, np.float64)


def _again(scores: Array, rng: np.random.Generator) -> Array:
    return scores[rng.integers(0, len(scores), len(scores))]


def _interval(value: float, drawn: list[float]) -> BootstrapEstimate:
    low, high = np.quantile(drawn, [0.025, 0.975])
    return BootstrapEstimate(value, float(low), float(high))
