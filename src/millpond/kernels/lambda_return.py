"""Lambda returns of Q-learning, the targets of PQN (Gallici et al., 2024), as a reference, in numba and in torch.

    T steps   E envs

    G_t = r_t + gamma [ lambda G_{t+1} + (1 - lambda) M_{t+1} ]        M_t = max over a of Q(s_t, a)

and G at the end of a collection is M of the next observation. A terminated step has no future. A truncated step bootstraps
from `final_value`, the largest Q of the true final observation. A `lost` step was never taken (its env crashed and was
restarted): its return is M_t, so that the step before it bootstraps from there, and it is not trained on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]


def lambda_return_reference(
    reward: Floats,  # [T, E]
    value: Floats,  # [T, E]; M_t
    next_value: Floats,  # [E]; M after the last step
    terminated: Flags,  # [T, E]
    truncated: Flags,  # [T, E]
    final_value: Floats,  # [T, E]; read only where truncated
    lost: Flags,  # [T, E]
    *,
    gamma: float,
    lam: float,
) -> Floats:
    """Compute the recursion as written above, one env at a time."""
    steps, envs = reward.shape
    returns = np.zeros_like(reward)
    for env in range(envs):
        next_return = following = float(next_value[env])
        for t in reversed(range(steps)):
            at = (t, env)
            if lost[at]:
                next_return = float(value[at])
            elif terminated[at]:
                next_return = float(reward[at])
            elif truncated[at]:
                next_return = float(reward[at]) + gamma * float(final_value[at])
            else:
                next_return = float(reward[at]) + gamma * (lam * next_return + (1 - lam) * following)
            returns[at], following = next_return, float(value[at])
    return returns


def lambda_return_numba(
    reward: Floats,
    value: Floats,
    next_value: Floats,
    terminated: Flags,
    truncated: Flags,
    final_value: Floats,
    lost: Flags,
    *,
    gamma: float,
    lam: float,
) -> Floats:
    """Compute the same on the CPU, in one pass over memory."""
    returns = np.empty_like(reward)
    arrays = (reward, value, next_value, terminated, truncated, final_value, lost)
    _lambda_return(*(np.ascontiguousarray(array) for array in arrays), np.float32(gamma), np.float32(lam), returns)
    return returns


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _lambda_return(
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
    """Compute the recursion of `lambda_return_reference` in float32, row by row in memory order."""
    steps, envs = reward.shape
    rest = np.float32(1.0) - lam
    for t in range(steps - 1, -1, -1):
        for env in range(envs):
            if t == steps - 1:
                following = next_return = next_value[env]
            else:
                following, next_return = value[t + 1, env], returns[t + 1, env]
            if lost[t, env]:
                returns[t, env] = value[t, env]
            elif terminated[t, env]:
                returns[t, env] = reward[t, env]
            elif truncated[t, env]:
                returns[t, env] = reward[t, env] + gamma * final_value[t, env]
            else:
                returns[t, env] = reward[t, env] + gamma * (lam * next_return + rest * following)


def lambda_return_torch(
    reward: torch.Tensor,
    value: torch.Tensor,
    next_value: torch.Tensor,
    terminated: torch.Tensor,
    truncated: torch.Tensor,
    final_value: torch.Tensor,
    lost: torch.Tensor,
    *,
    gamma: float,
    lam: float,
) -> torch.Tensor:
    """Compute the same on any device: a loop over time of operations on whole rows, without a sync."""
    import torch

    following = torch.cat([value[1:], next_value.unsqueeze(0)])
    # G_t = known_t + carry_t G_{t+1}
    future = torch.where(truncated, final_value, (1 - lam) * following)
    future = torch.where(terminated, torch.zeros_like(future), future)
    known = torch.where(lost, value, reward + gamma * future)
    carry = torch.where(terminated | truncated | lost, 0.0, gamma * lam).to(reward.dtype)
    returns = torch.empty_like(reward)
    next_return = next_value
    for t in reversed(range(reward.shape[0])):
        next_return = torch.addcmul(known[t], carry[t], next_return)
        returns[t] = next_return
    return returns
