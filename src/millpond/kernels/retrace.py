"""Returns of Retrace (Munos et al., 2016), for actions that another policy chose, as a reference, in numba and in torch.

    T steps   E sequences

    G_t = r_t + gamma [ M_{t+1} + c_{t+1} (G_{t+1} - Q_{t+1}) ]        M_t = value of s_t under the target policy

Q_t = Q(s_t, a_t) of the action that was taken, and c_t = lambda min(1, pi(a_t | s_t) / mu(a_t | s_t)). With the greedy policy
as target, c_t is lambda for greedy actions and 0 for others: an action that the target policy would not take ends the trace.
Flags, `final_value` and the end of a sequence are as in `lambda_return`; so is a `lost` step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba
import numpy as np

from millpond.kernels.lambda_return import Flags, Floats

if TYPE_CHECKING:
    import torch


def retrace_reference(
    reward: Floats,  # [T, E]
    value: Floats,  # [T, E]; M_t
    next_value: Floats,  # [E]; M after the last step
    terminated: Flags,  # [T, E]
    truncated: Flags,  # [T, E]
    final_value: Floats,  # [T, E]; read only where truncated
    lost: Flags,  # [T, E]
    q_taken: Floats,  # [T, E]; Q_t
    trace: Floats,  # [T, E]; c_t
    *,
    gamma: float,
) -> Floats:
    """Compute the recursion as written above, one sequence at a time."""
    steps, count = reward.shape
    returns = np.zeros_like(reward)
    for one in range(count):
        future = float(next_value[one])  # M_{t+1} + c_{t+1} (G_{t+1} - Q_{t+1})
        for t in reversed(range(steps)):
            at = (t, one)
            if lost[at]:
                returns[at] = future = float(value[at])
                continue
            if terminated[at]:
                future = 0.0
            elif truncated[at]:
                future = float(final_value[at])
            returns[at] = float(reward[at]) + gamma * future
            future = float(value[at]) + float(trace[at]) * (float(returns[at]) - float(q_taken[at]))
    return returns


def retrace_numba(
    reward: Floats,
    value: Floats,
    next_value: Floats,
    terminated: Flags,
    truncated: Flags,
    final_value: Floats,
    lost: Flags,
    q_taken: Floats,
    trace: Floats,
    *,
    gamma: float,
) -> Floats:
    """Compute the same on the CPU, in one pass over memory."""
    returns = np.empty_like(reward)
    arrays = (reward, value, next_value, terminated, truncated, final_value, lost, q_taken, trace)
    _retrace(*(np.ascontiguousarray(array) for array in arrays), np.float32(gamma), returns)
    return returns


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _retrace(
    reward: Any,
    value: Any,
    next_value: Any,
    terminated: Any,
    truncated: Any,
    final_value: Any,
    lost: Any,
    q_taken: Any,
    trace: Any,
    gamma: Any,
    returns: Any,
) -> None:
    """Compute the recursion of `retrace_reference` in float32, row by row in memory order."""
    steps, count = reward.shape
    future = next_value.copy()
    for t in range(steps - 1, -1, -1):
        for one in range(count):
            if lost[t, one]:
                returns[t, one] = future[one] = value[t, one]
                continue
            after = future[one]
            if terminated[t, one]:
                after = np.float32(0.0)
            elif truncated[t, one]:
                after = final_value[t, one]
            returns[t, one] = reward[t, one] + gamma * after
            future[one] = value[t, one] + trace[t, one] * (returns[t, one] - q_taken[t, one])


def retrace_torch(
    reward: torch.Tensor,
    value: torch.Tensor,
    next_value: torch.Tensor,
    terminated: torch.Tensor,
    truncated: torch.Tensor,
    final_value: torch.Tensor,
    lost: torch.Tensor,
    q_taken: torch.Tensor,
    trace: torch.Tensor,
    *,
    gamma: float,
) -> torch.Tensor:
    """Compute the same on any device: a loop over time of operations on whole rows, without a sync."""
    import torch

    # G_t = known_t + carry_t future_{t+1}
    known = torch.where(lost, value, torch.where(truncated & ~terminated, reward + gamma * final_value, reward))
    carry = torch.where(terminated | truncated | lost, 0.0, gamma).to(reward.dtype)
    returns, future = torch.empty_like(reward), next_value
    for t in reversed(range(reward.shape[0])):
        returns[t] = torch.addcmul(known[t], carry[t], future)
        after = torch.addcmul(value[t], trace[t], returns[t] - q_taken[t])
        future = torch.where(lost[t], value[t], after)
    return returns
