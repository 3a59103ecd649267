"""Which objectives recorded episodes can serve. Only rewards and success are looked at, so this is quick."""

from __future__ import annotations

import numpy as np

from millpond.data.episodes import Episodes
from millpond.data.errors import DataError
from millpond.data.source import Array

OBJECTIVES = ("lrd", "rrd", "progress", "success")
CONSTANT = 1e-6  # spread of the returns, relative to the largest, below which they are all the same


def are_constant(returns: Array) -> bool:
    """Whether all returns are the same, up to rounding."""
    return bool(np.ptp(returns) <= CONSTANT * max(1.0, float(np.abs(returns).max())))


def unfit(data: Episodes) -> dict[str, str]:
    """The objectives that these episodes cannot serve, and why."""
    reasons: dict[str, str] = {}
    decomposition = _why_not_decomposition(data)
    if decomposition:
        reasons |= {"lrd": decomposition, "rrd": decomposition}
    if int(data.lengths.max()) < 2:
        reasons["progress"] = "no episode is longer than one step, so there is no order in time"
    if data.success is None:
        reasons["success"] = "the data does not say which episodes succeeded"
    elif data.success.all() or not data.success.any():
        which = "every episode succeeded" if data.success.all() else "no episode succeeded"
        reasons["success"] = f"{which}, so a classifier sees one class only"
    return reasons


def refuse_unfit(data: Episodes, objective: str) -> None:
    """An error where an objective can learn nothing from these episodes, with one that can."""
    reasons = unfit(data)
    if objective in reasons:
        others = [f"reward.objective={other}" for other in ("lrd", "progress", "success") if other not in reasons]
        advice = f"use {' or '.join(others)}" if others else "no objective fits; record other episodes"
        raise DataError(f"{data.path} with reward.objective={objective}: {reasons[objective]}; {advice}")


def _why_not_decomposition(data: Episodes) -> str | None:
    if data.returns is None:
        return "there are no rewards, so there are no returns to take apart"
    if not np.isfinite(data.returns).all():
        return "some returns are not finite"
    if are_constant(data.returns):
        return (
            f"every one of the {len(data):,} episodes has the return {data.returns[0]:g}, so returns say nothing about "
            f"steps"
        )
    return None
