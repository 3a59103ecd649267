"""How good a learned reward is on episodes that it was not trained on, beside baselines."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from millpond.rewards.baselines import BASELINES, Numbers, baseline_reward, baseline_value
from millpond.rewards.correlation import area_under_curve, pearson, spearman, value_order

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
class Judged:
    """An episode and what was said of it. `value` is None for rewards of transitions."""

    reward: Numbers  # [T]
    value: Numbers | None  # [T], of the states in their true order
    value_reversed: Numbers | None  # [T], when the episode is shown backwards
    truth: Numbers | None  # [T]
    success: bool | None = None


def baselines_of(judged: Sequence[Judged], mean_reward: float, mean_length: float) -> dict[str, list[Judged]]:
    """The same episodes as each baseline would judge them."""
    found: dict[str, list[Judged]] = {}
    for baseline in BASELINES:
        found[baseline] = []
        for episode in judged:
            length = len(episode.reward)
            total = None if episode.truth is None else float(episode.truth.sum())
            value = None if episode.value is None else baseline_value(baseline, length, mean_length)
            reward = baseline_reward(baseline, length, total, mean_reward)
            found[baseline].append(Judged(reward, value, value, episode.truth, episode.success))
    return found


def measure(judged: Sequence[Judged], others: Sequence[Numbers] = ()) -> dict[str, float]:
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


def _values(judged: Sequence[Judged]) -> dict[str, float]:
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
