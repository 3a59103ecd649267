"""Metrics of a learned reward on held-out episodes: correlations, baselines to beat, and scores. Pure functions.

# T steps of an episode
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Numbers = np.ndarray[Any, np.dtype[np.float64]]
Baseline = Literal["even", "constant", "time"]
BASELINES: tuple[Baseline, ...] = ("even", "constant", "time")
STEP_PAIRS = 1_000  # sampled from an episode for the accuracy of preferences

# Metric -> title, in the order of the table.
METRICS = {
    "step_pearson": "step Pearson",
    "step_spearman": "step Spearman",
    "return_pearson": "return Pearson",
    "voc": "VOC",
    "voc_truncated": "VOC, cut at half",
    "voc_reversed": "VOC, reversed",
    "end_value": "value at the end",
    "cut_value": "value at the cut",
    "other_task_value": "value, other task",
    "preference_accuracy": "preferences right",
    "success_auc": "success AUC",
}


@dataclass(frozen=True)
class JudgedEpisode:
    """An episode with its predicted rewards and values. `value` is None for rewards of transitions."""

    reward: Numbers  # [T]
    value: Numbers | None  # [T], of the states in their true order
    value_reversed: Numbers | None  # [T], of the states in reverse order
    truth: Numbers | None  # [T]
    success: bool | None = None


def measure(judged: Sequence[JudgedEpisode], others: Sequence[Numbers] = ()) -> dict[str, float]:
    """All metrics that are defined for these episodes (the correlation with a constant is not).

    `others` are values of episodes of another task.
    """
    metrics: dict[str, float] = {}
    if all(episode.truth is not None for episode in judged):
        truths: list[Any] = [episode.truth for episode in judged]
        rewards = [episode.reward for episode in judged]
        if _is_dense(truths):
            metrics["step_pearson"] = pearson(np.concatenate(rewards), np.concatenate(truths))
            metrics["step_spearman"] = spearman(np.concatenate(rewards), np.concatenate(truths))
        learned, true = [float(r.sum()) for r in rewards], [float(t.sum()) for t in truths]
        metrics["return_pearson"] = pearson(learned, true)
        if judged[0].value is None:
            metrics["preference_accuracy"] = _return_order_accuracy(learned, true)
    if all(episode.value is not None for episode in judged):
        metrics |= _value_metrics(judged)
        if len(others):
            metrics["other_task_value"] = float(np.mean([value[-1] for value in others]))
    return {name: metrics[name] for name in METRICS if name in metrics and math.isfinite(metrics[name])}


def _is_dense(truths: Sequence[Any]) -> bool:
    """True if rewards before the last step differ: only then do single steps have a true reward."""
    return any(np.ptp(truth[:-1]) > 0 for truth in truths if len(truth) > 1)


def _value_metrics(judged: Sequence[JudgedEpisode]) -> dict[str, float]:
    values: list[Any] = [episode.value for episode in judged]

    def mean(metric: Callable[[Any], float]) -> float:
        return float(np.mean([metric(value) for value in values]))

    metrics = {
        "voc": mean(value_order),
        "voc_truncated": mean(lambda value: value_order(value[: truncated_length(len(value))])),
        "voc_reversed": float(np.mean([value_order(episode.value_reversed) for episode in judged])),
        "end_value": mean(lambda value: float(value[-1])),
        "cut_value": mean(lambda value: float(value[truncated_length(len(value)) - 1])),
        "preference_accuracy": mean(_step_order_accuracy),
    }
    if all(episode.success is not None for episode in judged):
        ends = [float(value[-1]) for value in values]
        metrics["success_auc"] = area_under_curve(ends, [episode.success for episode in judged])
    return metrics


def truncated_length(length: int) -> int:
    """Steps of an episode that is truncated at half."""
    return max(2, length // 2)


def _return_order_accuracy(learned: Sequence[float], true: Sequence[float]) -> float:
    """Fraction of the pairs of episodes with different returns that are ranked correctly."""
    one, other = np.triu_indices(len(true), 1)
    truth, prediction = np.sign(np.subtract.outer(true, true)), np.sign(np.subtract.outer(learned, learned))
    differ = truth[one, other] != 0
    return _sign_accuracy(truth[one, other][differ], prediction[one, other][differ])


def _step_order_accuracy(value: Numbers) -> float:
    """Fraction of random pairs of steps of an episode in which the later has the higher value; always the same pairs."""
    pairs = np.random.default_rng(0).integers(0, len(value), size=(STEP_PAIRS, 2))
    one, other = pairs[pairs[:, 0] != pairs[:, 1]].T
    return _sign_accuracy(np.sign(one - other).astype(np.float64), np.sign(value[one] - value[other]))


def _sign_accuracy(truth: Numbers, prediction: Numbers) -> float:
    """Fraction of equal signs; a tie counts half."""
    return float(np.mean(np.where(prediction == 0, 0.5, truth == prediction))) if len(truth) else math.nan


# Baselines: rewards [T] and values [T] from less information than the network has.


def judge_by_baselines(
    judged: Sequence[JudgedEpisode], mean_reward: float, mean_length: float
) -> dict[str, list[JudgedEpisode]]:
    """The same episodes with the rewards and values of each baseline."""
    by_baseline: dict[str, list[JudgedEpisode]] = {}
    for baseline in BASELINES:
        by_baseline[baseline] = []
        for episode in judged:
            length = len(episode.reward)
            total = None if episode.truth is None else float(episode.truth.sum())
            value = None if episode.value is None else baseline_value(baseline, length, mean_length)
            reward = baseline_reward(baseline, length, total, mean_reward)
            by_baseline[baseline].append(JudgedEpisode(reward, value, value, episode.truth, episode.success))
    return by_baseline


def baseline_reward(baseline: Baseline, length: int, episode_return: float | None, mean_reward: float) -> Numbers:
    """even: the episode's own return over its length. constant: the training data's mean. time: t / (T - 1)."""
    if baseline == "even":
        return np.full(length, np.nan if episode_return is None else episode_return / length)
    if baseline == "constant":
        return np.full(length, mean_reward)
    return np.arange(length) / max(length - 1, 1)


def baseline_value(baseline: Baseline, length: int, mean_length: float) -> Numbers:
    """Values that ignore the state: the step index over the mean length (even, time), or a constant.

    The cumulative sum of evenly distributed rewards is a clock, too.
    """
    if baseline == "constant":
        return np.full(length, 0.5)
    return np.arange(length) / mean_length


# Correlations: `nan` if one of the lists is constant.


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
    """Ranks from 1; equal values share their mean rank."""
    _, inverse, counts = np.unique(np.asarray(values, np.float64), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean_rank: Numbers = (last - (counts - 1) / 2)[inverse]
    return mean_rank


def spearman(one: Any, other: Any) -> float:
    """Rank correlation."""
    return pearson(ranks(one), ranks(other))


def value_order(values: Any) -> float:
    """Value-order correlation (VOC): the rank correlation of an episode's values with time.

    1 if every step has a higher value than the one before. A clock has it, too: compare with reversed episodes.
    """
    return spearman(values, np.arange(len(values)))


def area_under_curve(score: Any, positive: Any) -> float:
    """Probability that a positive has a higher score than a negative (ties count half): the area under the ROC curve."""
    truth = np.asarray(positive, bool)
    positives, negatives = int(truth.sum()), int((~truth).sum())
    if not positives or not negatives:
        return float("nan")
    wins = ranks(score)[truth].sum() - positives * (positives + 1) / 2
    return float(wins / (positives * negatives))
