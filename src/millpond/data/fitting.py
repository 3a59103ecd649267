"""Objectives that recorded episodes can serve, and the split into training and held-out episodes.

Only rewards and success flags are read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from millpond.data.episodes import Episodes
from millpond.data.source import Array, DataError

Integers = np.ndarray[Any, np.dtype[np.int64]]
OBJECTIVES = ("lrd", "rrd", "progress", "success")
CONSTANT_SPREAD = 1e-6  # spread of the returns, relative to the largest, below which they count as equal


def are_constant(returns: Array) -> bool:
    """True if all returns are equal, up to rounding."""
    return bool(np.ptp(returns) <= CONSTANT_SPREAD * max(1.0, float(np.abs(returns).max())))


def unfit(data: Episodes) -> dict[str, str]:
    """Map each objective that these episodes cannot serve to the reason."""
    if data.returns is not None and not np.isfinite(data.returns).all():
        broken = data.names[int(np.argmin(np.isfinite(data.returns)))]
        reason = f"the rewards of {broken} have NaN or infinity; leave such episodes out, or fix the file"
        return dict.fromkeys(OBJECTIVES, reason)
    reasons: dict[str, str] = {}
    problem = _decomposition_problem(data)
    if problem:
        reasons |= {"lrd": problem, "rrd": problem}
    if int(data.lengths.max()) < 2:
        reasons["progress"] = "no episode is longer than one step, so steps have no order"
    if data.success is not None and not data.success.any():
        reasons["progress"] = "no episode succeeded, and progress is learned from successes"
    if data.success is None:
        reasons["success"] = "the data does not record which episodes succeeded"
    elif data.success.all() or not data.success.any():
        outcome = "every episode succeeded" if data.success.all() else "no episode succeeded"
        reasons["success"] = f"{outcome}, so a classifier sees only one class"
    return reasons


def refusal(data: Episodes, objective: str) -> str | None:
    """Reason why an objective can learn nothing from these episodes, with one that can; None if it can."""
    reasons = unfit(data)
    if objective not in reasons:
        return None
    others = [f"reward.objective={other}" for other in ("lrd", "progress", "success") if other not in reasons]
    advice = f"use {' or '.join(others)}" if others else "no objective fits these episodes"
    return f"{data.path} with reward.objective={objective}: {reasons[objective]}; {advice}"


def refuse_unfit(data: Episodes, objective: str) -> None:
    """Raise an error if an objective can learn nothing from these episodes."""
    reason = refusal(data, objective)
    if reason is not None:
        raise DataError(reason)


def split_episodes(
    data: Episodes, objective: str, holdout: float, held_out: tuple[int, ...], seed: int
) -> tuple[Integers, Integers]:
    """Indices of the training episodes and of the held-out ones.

    Held out are the episodes in `held_out`, or a random fraction drawn by a generator that serves only the split.
    Progress trains on successes alone: a failure makes no progress towards the end.
    """
    count = len(data)
    if held_out:
        out_of_range = [number for number in held_out if number >= count]
        if out_of_range:
            raise DataError(f"data.held_out names episode {out_of_range[0]}; there are {count:,}, counted from 0")
        held_out_episodes = np.unique(np.array(held_out, np.int64))
    else:
        held_out_episodes = np.sort(np.random.default_rng([seed, 0xE915]).permutation(count)[: round(count * holdout)])
    training = np.setdiff1d(np.arange(count), held_out_episodes)
    if objective == "progress" and data.success is not None:
        training = training[data.success[training]]
    if not len(training):
        raise DataError(
            f"{data.path}: no episode is left to train on ({count:,} in all, {len(held_out_episodes):,} held out); "
            + (f"name fewer in data.held_out={list(held_out)}" if held_out else f"lower data.holdout={holdout}")
            + ", or record more episodes"
        )
    return training, held_out_episodes


def _decomposition_problem(data: Episodes) -> str | None:
    if data.action is None:
        return f"{data.missing_actions} is missing, and a reward r(s, a, s') needs the actions"
    if data.returns is None:
        return "there are no rewards, so there are no returns to decompose"
    if len(data) == 1:
        return "there is only one episode, and a single return says nothing about its steps"
    if are_constant(data.returns):
        return (
            f"every one of the {len(data):,} episodes has the return {data.returns[0]:g}, so returns say nothing about "
            f"steps"
        )
    return None
