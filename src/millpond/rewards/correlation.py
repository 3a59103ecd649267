"""How well two lists of numbers agree. `nan` where one of them never changes, since nothing can be said then."""

from __future__ import annotations

from typing import Any

import numpy as np

Numbers = np.ndarray[Any, np.dtype[np.float64]]


def pearson(one: Any, other: Any) -> float:
    """Linear correlation: cov(x, y) / (std(x) std(y))."""
    x, y = np.asarray(one, np.float64), np.asarray(other, np.float64)
    if len(x) < 2:
        return float("nan")
    x, y = x - x.mean(), y - y.mean()
    scale = np.sqrt((x @ x) * (y @ y))
    flat = np.sqrt(x @ x) < 1e-12 * (1 + np.abs(one).max()) or np.sqrt(y @ y) < 1e-12 * (1 + np.abs(other).max())
    return float("nan") if flat or scale == 0 else float(np.clip(x @ y / scale, -1, 1))


def ranks(values: Any) -> Numbers:
    """Ranks from 1; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(np.asarray(values, np.float64), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean_rank: Numbers = (last - (counts - 1) / 2)[inverse]
    return mean_rank


def spearman(one: Any, other: Any) -> float:
    """Correlation of ranks."""
    return pearson(ranks(one), ranks(other))


def value_order(values: Any) -> float:
    """Value-order correlation (VOC): the rank correlation of an episode's values with time.

    1 where every step is worth more than the one before. A clock has it, too: look at spoiled episodes beside it.
    """
    return spearman(values, np.arange(len(values)))


def area_under_curve(score: Any, positive: Any) -> float:
    """The chance that a positive has a higher score than a negative (ties count half): the area under the ROC curve."""
    truth = np.asarray(positive, bool)
    positives, negatives = int(truth.sum()), int((~truth).sum())
    if not positives or not negatives:
        return float("nan")
    wins = ranks(score)[truth].sum() - positives * (positives + 1) / 2
    return float(wins / (positives * negatives))
