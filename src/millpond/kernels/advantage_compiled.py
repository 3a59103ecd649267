"""The compiled loop of `advantage_numba`; numba keeps it on disk."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np


@numba.njit(cache=True, nogil=True, parallel=True)  # type: ignore[untyped-decorator]
def run(
    reward: Any,
    value: Any,
    next_value: Any,
    terminated: Any,
    truncated: Any,
    final_value: Any,
    alive: Any,
    ratio: Any,
    use_ratio: Any,
    gamma: Any,
    lam: Any,
    rho_clip: Any,
    c_clip: Any,
    advantage: Any,
) -> None:
    """The recursion of `advantage_reference` in float32, rows in parallel."""
    rows, horizon, agents = reward.shape
    for row in numba.prange(rows):
        for agent in range(agents):
            following, ahead = next_value[row, agent], np.float32(0.0)
            for t in range(horizon - 1, -1, -1):
                if not alive[row, t, agent]:
                    advantage[row, t, agent] = 0.0
                    following, ahead = np.float32(0.0), np.float32(0.0)
                    continue
                weight = ratio[row, t, agent] if use_ratio else np.float32(1.0)
                rho, c = min(weight, rho_clip), min(weight, c_clip)
                if terminated[row, t, agent]:
                    future, carry = np.float32(0.0), np.float32(0.0)
                elif truncated[row, t, agent]:
                    future, carry = final_value[row, t, agent], np.float32(0.0)
                else:
                    future, carry = following, gamma * lam * c
                ahead = rho * (reward[row, t, agent] + gamma * future - value[row, t, agent]) + carry * ahead
                advantage[row, t, agent] = ahead
                following = value[row, t, agent]
