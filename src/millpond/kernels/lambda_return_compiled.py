"""The compiled loop of `lambda_return_numba`; numba keeps it on disk."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def run(
    reward: Any,
    value: Any,
    next_value: Any,
    terminated: Any,
    truncated: Any,
    final_value: Any,
    lost: Any,
    gamma: Any,
    lam: Any,
    returns: Any,
) -> None:
    """The recursion of `lambda_return_reference` in float32, row after row as they lie in memory."""
    steps, envs = reward.shape
    rest = np.float32(1.0) - lam
    for t in range(steps - 1, -1, -1):
        for env in range(envs):
            if t == steps - 1:
                following = ahead = next_value[env]
            else:
                following, ahead = value[t + 1, env], returns[t + 1, env]
            if lost[t, env]:
                returns[t, env] = value[t, env]
            elif terminated[t, env]:
                returns[t, env] = reward[t, env]
            elif truncated[t, env]:
                returns[t, env] = reward[t, env] + gamma * final_value[t, env]
            else:
                returns[t, env] = reward[t, env] + gamma * (lam * ahead + rest * following)
