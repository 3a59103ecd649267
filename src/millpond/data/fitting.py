"""Objectives that recorded episodes can serve (only rewards and success are read), and episodes held out for judging."""

from __future__ import annotations

from typing import Any

import numpy as np

from millpond.data.episodes import Episodes
from millpond.data.source import Array, DataError

Integers = np.ndarray[Any, np.dtype[np.int64]]
OBJECTIVES = ("lrd", "rrd", "progress", "success")
CONSTANT = 1e-6  # spread of the returns, relative to the largest, below which they are all the same


def are_constant(returns: Array) -> bool:
    """True if all returns are the same, up to rounding."""
    return bool(np.ptp(returns) <= CONSTANT * max(1.0, float(np.abs(returns).max())))


def unfit(data: Episodes) -> dict[str, str]:
    """Return the objectives that these episodes cannot serve, and why."""
    if data.returns is not None and not np.isfinite(data.returns).all():
        broken = data.names[int(np.argmin(np.isfinite(data.returns)))]
        reason = f"the rewards of {broken} have NaN or infinity; leave such episodes out, or fix the file"
        return dict.fromkeys(OBJECTIVES, reason)
    reasons: dict[str, str] = {}
    decomposition = _why_not_decomposition(data)
    if decomposition:
        reasons |= {"lrd": decomposition, "rrd": decomposition}
    if int(data.lengths.max()) < 2:
        reasons["progress"] = "no episode is longer than one step, so there is no order in time"
    if data.success is not None and not data.success.any():
        reasons["progress"] = "no episode succeeded, and progress is learned from successes"
    if data.success is None:
        reasons["success"] = "the data does not say which episodes succeeded"
    elif data.success.all() or not data.success.any():
        which = "every episode succeeded" if data.success.all() else "no episode succeeded"
        reasons["success"] = f"{which}, so a classifier sees one class only"
    return reasons


def refusal(data: Episodes, objective: str) -> str | None:
    """Say why an objective can learn nothing from these episodes, and which one can; None where it can."""
    reasons = unfit(data)
    if objective not in reasons:
        return None
    others = [f"reward.objective={other}" for other in ("lrd", "progress", "success") if other not in reasons]
    advice = f"use {' or '.join(others)}" if others else "no objective fits these episodes"
    return f"{data.path} with reward.objective={objective}: {reasons[objective]}; {advice}"


def refuse_unfit(data: Episodes, objective: str) -> None:
    """Raise an error where an objective can learn nothing from these episodes."""
    reason = refusal(data, objective)
    if reason is not None:
        raise DataError(reason)


def split_episodes(
    data: Episodes, objective: str, holdout: float, held_out: tuple[int, ...], seed: int
) -> tuple[Integers, Integers]:
    """Return the numbers of the episodes to train on and of those held out.

    Held out are those named, or a share drawn by a generator of the split's own. Progress trains on successes alone:
    a failure makes no progress towards the end.
    """
    count = len(data)
    if held_out:
        beyond = [number for number in held_out if number >= count]
        if beyond:
            raise DataError(f"data.held_out names episode {beyond[0]}; there are {count:,}, counted from 0")
        judged = np.unique(np.array(held_out, np.int64))
    else:
        judged = np.sort(np.random.default_rng([seed, 0xE915]).permutation(count)[: round(count * holdout)])
    training = np.setdiff1d(np.arange(count), judged)
    if objective == "progress" and data.success is not None:
        training = training[data.success[training]]
    if not len(training):
        raise DataError(
            f"{data.path}: no episode is left to train on ({count:,} in all, {len(judged):,} held out); "
            + (f"name fewer in data.held_out={list(held_out)}" if held_out else f"lower data.holdout={holdout}")
            + ", or bring more episodes"
        )
    return training, judged


def _why_not_decomposition(data: Episodes) -> str | None:
    if data.action is None:
        return f"{data.without_actions} is missing, and a reward r(s, a, s') needs the actions"
    if data.returns is None:
        return "there are no rewards, so there are no returns to take apart"
    if len(data) == 1:
        return "there is a single episode, and one return says nothing about its steps"
    if are_constant(data.returns):
        return (
            f"every one of the {len(data):,} episodes has the return {data.returns[0]:g}, so returns say nothing about "
            f"steps"
        )
    return None
