"""What a learned reward has to beat. Each gives rewards [T] and values [T] from less than the network sees."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

Numbers = np.ndarray[Any, np.dtype[np.float64]]
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
