"""How well two lists of numbers agree. `nan` where one of them never changes, since nothing can be said then."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

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


# -- What a learned reward has to beat. Each gives rewards [T] and values [T] from less than the network sees.

Baseline = Literal["even", "constant", "time"]
BASELINES: tuple[Baseline, ...] = ("even", "constant", "time")


def baseline_reward(baseline: Baseline, length: int, episode_return: float | None, mean_reward: float) -> Numbers:
    """even: the episode's own return spread over its steps. constant: the training data's mean. time: t / (T - 1)."""
    if baseline == "even":
        return np.full(length, np.nan if episode_return is None else episode_return / length)
    if baseline == "constant":
        return np.full(length, mean_reward)
    return np.arange(length) / max(length - 1, 1)


def baseline_value(baseline: Baseline, length: int, mean_length: float) -> Numbers:
    """The value of the t-th state that is shown, whatever it is: a clock in units of a usual episode, or a constant.

    The sum of evenly spread rewards is a clock, too.
    """
    if baseline == "constant":
        return np.full(length, 0.5)
    return np.arange(length) / mean_length


# -- How good a learned reward is on episodes that it was not trained on, beside baselines.

PAIRS = 1_000  # of steps of an episode, for the accuracy of preferences

# What is said of a reward, in the order of the table.
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
    """An episode and what was said of it. `value` is None for rewards of transitions."""

    reward: Numbers  # [T]
    value: Numbers | None  # [T], of the states in their true order
    value_reversed: Numbers | None  # [T], when the episode is shown backwards
    truth: Numbers | None  # [T]
    success: bool | None = None


def baselines_of(
    judged: Sequence[JudgedEpisode], mean_reward: float, mean_length: float
) -> dict[str, list[JudgedEpisode]]:
    """The same episodes as each baseline would judge them."""
    found: dict[str, list[JudgedEpisode]] = {}
    for baseline in BASELINES:
        found[baseline] = []
        for episode in judged:
            length = len(episode.reward)
            total = None if episode.truth is None else float(episode.truth.sum())
            value = None if episode.value is None else baseline_value(baseline, length, mean_length)
            reward = baseline_reward(baseline, length, total, mean_reward)
            found[baseline].append(JudgedEpisode(reward, value, value, episode.truth, episode.success))
    return found


def measure(judged: Sequence[JudgedEpisode], others: Sequence[Numbers] = ()) -> dict[str, float]:
    """Everything that can be said of judged episodes; what cannot be (a constant has no correlation) is left out.

    `others` are values of episodes of another task.
    """
    found: dict[str, float] = {}
    if all(episode.truth is not None for episode in judged):
        truths: list[Any] = [episode.truth for episode in judged]
        rewards = [episode.reward for episode in judged]
        if _dense(truths):
            found["step_pearson"] = pearson(np.concatenate(rewards), np.concatenate(truths))
            found["step_spearman"] = spearman(np.concatenate(rewards), np.concatenate(truths))
        learned, true = [float(r.sum()) for r in rewards], [float(t.sum()) for t in truths]
        found["return_pearson"] = pearson(learned, true)
        if judged[0].value is None:
            found["preference_accuracy"] = _order_of_returns(learned, true)
    if all(episode.value is not None for episode in judged):
        found |= _values(judged)
        if len(others):
            found["other_task_value"] = float(np.mean([value[-1] for value in others]))
    return {name: found[name] for name in METRICS if name in found and math.isfinite(found[name])}


def _dense(truths: Sequence[Any]) -> bool:
    """Whether steps before the last have rewards that differ: only then is there a truth for single steps."""
    return any(np.ptp(truth[:-1]) > 0 for truth in truths if len(truth) > 1)


def _order_of_returns(learned: Sequence[float], true: Sequence[float]) -> float:
    """Of all pairs of episodes whose returns differ, the share that is put in the right order."""
    one, other = np.triu_indices(len(true), 1)
    truth, guess = np.sign(np.subtract.outer(true, true)), np.sign(np.subtract.outer(learned, learned))
    differ = truth[one, other] != 0
    return _share(truth[one, other][differ], guess[one, other][differ])


def _share(truth: Numbers, guess: Numbers) -> float:
    """The share of equal signs; a tie is half right."""
    return float(np.mean(np.where(guess == 0, 0.5, truth == guess))) if len(truth) else math.nan


def _values(judged: Sequence[JudgedEpisode]) -> dict[str, float]:
    values: list[Any] = [episode.value for episode in judged]

    def mean(of: Callable[[Any], float]) -> float:
        return float(np.mean([of(value) for value in values]))

    found = {
        "voc": mean(value_order),
        "voc_truncated": mean(lambda value: value_order(value[: cut_of(len(value))])),
        "voc_reversed": float(np.mean([value_order(episode.value_reversed) for episode in judged])),
        "end_value": mean(lambda value: float(value[-1])),
        "cut_value": mean(lambda value: float(value[cut_of(len(value)) - 1])),
        "preference_accuracy": mean(_order_of_steps),
    }
    if all(episode.success is not None for episode in judged):
        ends = [float(value[-1]) for value in values]
        found["success_auc"] = area_under_curve(ends, [episode.success for episode in judged])
    return found


def cut_of(length: int) -> int:
    """How many steps are left of an episode that is cut at half."""
    return max(2, length // 2)


def _order_of_steps(value: Numbers) -> float:
    """Of pairs of steps of an episode, the share in which the later is worth more; pairs of their own generator."""
    pairs = np.random.default_rng(0).integers(0, len(value), size=(PAIRS, 2))
    one, other = pairs[pairs[:, 0] != pairs[:, 1]].T
    return _share(np.sign(one - other).astype(np.float64), np.sign(value[one] - value[other]))
