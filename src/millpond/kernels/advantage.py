"""Advantages: GAE and V-trace in one recursion, as a reference, in numba and in torch.

    R rows   T horizon   A agents

    delta_t = rho_t (r_t + gamma V_{t+1} - V_t)
    A_t     = delta_t + gamma lambda c_t A_{t+1}

with rho_t = min(rho_clip, ratio_t) and c_t = min(c_clip, ratio_t). With `rho_on_reward`, as in PufferLib 4,
delta_t = rho_t r_t + gamma V_{t+1} - V_t. A ratio of one everywhere is generalised advantage
estimation (Schulman et al., 2016); with lambda = 1, V_t + A_t is the target v_t of V-trace (Espeholt et al., 2018).

A terminated step has no future. A truncated step bootstraps from `final_value`, the value of the true final observation, and
ends the trace. The last column bootstraps from `next_value`; without `bootstrap_row_end` its advantage is 0, and the trace
begins before it. A step at which the agent was not alive has advantage 0.

A trace ends with its row, or goes on in the row `following[row]` in which the same agent continued (-1: there is none).
Rows are filled in the order of time, so that a following row has a higher number.

PufferLib's advantage is this recursion with newest ratios and values, without `bootstrap_row_end`, and with no step truncated:
what follows a truncated step is then the value of the next episode's first observation.
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
Numbers = npt.NDArray[np.int64]
MIN_PARALLEL_STEPS = 65_536


def advantage_reference(
    reward: Floats,  # [R, T, A]
    value: Floats,  # [R, T, A]
    next_value: Floats,  # [R, A]
    terminated: Flags,  # [R, T, A]
    truncated: Flags,  # [R, T, A]
    final_value: Floats,  # [R, T, A]; read only where truncated
    alive: Flags,  # [R, T, A]
    ratio: Floats | None = None,  # [R, T, A]; None is one everywhere
    following: Numbers | None = None,  # [R]; None: every trace ends with its row
    *,
    gamma: float,
    lam: float,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
    bootstrap_row_end: bool = True,
    rho_on_reward: bool = False,
) -> Floats:
    """Compute the recursion as written above, one agent of one row at a time."""
    rows, horizon, agents = reward.shape
    advantage = np.zeros_like(reward)
    for row in reversed(range(rows)):
        for agent in range(agents):
            next_row = -1 if following is None else following[row]
            next_v, trace = float(next_value[row, agent]), 0.0 if next_row < 0 else float(advantage[next_row, 0, agent])
            for t in reversed(range(horizon)):
                at = (row, t, agent)
                if not alive[at]:
                    next_v, trace = 0.0, 0.0
                    continue
                if t == horizon - 1 and not bootstrap_row_end:
                    next_v, trace = float(value[at]), 0.0
                    continue
                ended = terminated[at] or truncated[at]
                future = 0.0 if terminated[at] else float(final_value[at]) if truncated[at] else next_v
                weight = 1.0 if ratio is None else float(ratio[at])
                rho, change = min(rho_clip, weight), gamma * future - float(value[at])
                delta = rho * float(reward[at]) + (change if rho_on_reward else rho * change)
                trace = delta + (0.0 if ended else gamma * lam * min(c_clip, weight) * trace)
                advantage[at], next_v = trace, float(value[at])
    return advantage


def advantage_numba(
    reward: Floats,
    value: Floats,
    next_value: Floats,
    terminated: Flags,
    truncated: Flags,
    final_value: Floats,
    alive: Flags,
    ratio: Floats | None = None,
    following: Numbers | None = None,
    *,
    gamma: float,
    lam: float,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
    bootstrap_row_end: bool = True,
    rho_on_reward: bool = False,
    out: Floats | None = None,
) -> Floats:
    """Compute the same on the CPU, in place: rows in parallel, if there are enough steps to wake other threads for."""
    advantage = np.empty_like(reward) if out is None else out
    numbers = (np.float32(number) for number in (gamma, lam, rho_clip, c_clip))
    weights = reward if ratio is None else ratio  # never read if there is no ratio
    links = np.full(len(reward), -1) if following is None else following
    arrays = (
        reward, value, next_value, terminated, truncated, final_value, alive, weights, ratio is not None, links, *numbers,
        bootstrap_row_end, rho_on_reward, advantage,
    )  # fmt: skip
    if reward.size < MIN_PARALLEL_STEPS:
        _advantage(*arrays)
    else:
        for rows in rows_by_depth(links):
            _advantage_in_parallel(rows, *arrays)
    return advantage


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _advantage_of_row(
    row: Any,
    reward: Any,
    value: Any,
    next_value: Any,
    terminated: Any,
    truncated: Any,
    final_value: Any,
    alive: Any,
    ratio: Any,
    use_ratio: Any,
    following: Any,
    gamma: Any,
    lam: Any,
    rho_clip: Any,
    c_clip: Any,
    bootstrap_row_end: Any,
    rho_on_reward: Any,
    advantage: Any,
) -> None:
    """Compute the recursion of `advantage_reference` in float32 for one row."""
    _, horizon, agents = reward.shape
    for agent in range(agents):
        next_row = following[row]
        next_v = next_value[row, agent]
        trace = advantage[next_row, 0, agent] if next_row >= 0 else np.float32(0.0)
        for t in range(horizon - 1, -1, -1):
            if not alive[row, t, agent]:
                advantage[row, t, agent] = 0.0
                next_v, trace = np.float32(0.0), np.float32(0.0)
                continue
            if t == horizon - 1 and not bootstrap_row_end:
                advantage[row, t, agent] = 0.0
                next_v, trace = value[row, t, agent], np.float32(0.0)
                continue
            weight = ratio[row, t, agent] if use_ratio else np.float32(1.0)
            rho, c = min(weight, rho_clip), min(weight, c_clip)
            if terminated[row, t, agent]:
                future, carry = np.float32(0.0), np.float32(0.0)
            elif truncated[row, t, agent]:
                future, carry = final_value[row, t, agent], np.float32(0.0)
            else:
                future, carry = next_v, gamma * lam * c
            change = gamma * future - value[row, t, agent]
            trace = rho * reward[row, t, agent] + (change if rho_on_reward else rho * change) + carry * trace
            advantage[row, t, agent] = trace
            next_v = value[row, t, agent]


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def _advantage(
    reward: Any,
    value: Any,
    next_value: Any,
    terminated: Any,
    truncated: Any,
    final_value: Any,
    alive: Any,
    ratio: Any,
    use_ratio: Any,
    following: Any,
    gamma: Any,
    lam: Any,
    rho_clip: Any,
    c_clip: Any,
    bootstrap_row_end: Any,
    rho_on_reward: Any,
    advantage: Any,
) -> None:
    """Compute all rows, one after another, the last first."""
    for row in range(len(reward) - 1, -1, -1):
        _advantage_of_row(
            row, reward, value, next_value, terminated, truncated, final_value, alive, ratio,
            use_ratio, following, gamma, lam, rho_clip, c_clip, bootstrap_row_end, rho_on_reward, advantage,
        )  # fmt: skip


@numba.njit(cache=True, nogil=True, parallel=True)  # type: ignore[untyped-decorator]
def _advantage_in_parallel(
    rows: Any,
    reward: Any,
    value: Any,
    next_value: Any,
    terminated: Any,
    truncated: Any,
    final_value: Any,
    alive: Any,
    ratio: Any,
    use_ratio: Any,
    following: Any,
    gamma: Any,
    lam: Any,
    rho_clip: Any,
    c_clip: Any,
    bootstrap_row_end: Any,
    rho_on_reward: Any,
    advantage: Any,
) -> None:
    """Compute these rows in parallel."""
    for i in numba.prange(len(rows)):
        _advantage_of_row(
            rows[i], reward, value, next_value, terminated, truncated, final_value, alive, ratio,
            use_ratio, following, gamma, lam, rho_clip, c_clip, bootstrap_row_end, rho_on_reward, advantage,
        )  # fmt: skip


def rows_by_depth(following: Numbers) -> list[Numbers]:
    """Return the rows that no row follows, then those that one row follows, and so on."""
    depth = np.zeros_like(following)
    for row in np.flatnonzero(following >= 0)[::-1]:
        depth[row] = depth[following[row]] + 1
    return [np.flatnonzero(depth == k) for k in range(depth.max(initial=0) + 1)]


def advantage_torch(
    reward: torch.Tensor,
    value: torch.Tensor,
    next_value: torch.Tensor,
    terminated: torch.Tensor,
    truncated: torch.Tensor,
    final_value: torch.Tensor,
    alive: torch.Tensor,
    ratio: torch.Tensor | None = None,
    following: Numbers | None = None,
    *,
    gamma: float,
    lam: float,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
    bootstrap_row_end: bool = True,
    rho_on_reward: bool = False,
) -> torch.Tensor:
    """Compute the same on any device: a loop over time of operations on whole columns, without a sync."""
    import torch

    # V_{t+1}; a column in which the agent was not alive counts as 0, as in the reference
    next_v = torch.cat([torch.where(alive[:, 1:], value[:, 1:], 0.0), next_value.unsqueeze(1)], dim=1)
    future = torch.where(truncated, final_value, next_v)
    future = torch.where(terminated, torch.zeros_like(future), future)
    weight = torch.ones_like(reward) if ratio is None else ratio
    rho, change = weight.clamp(max=rho_clip), gamma * future - value
    delta = rho * reward + (change if rho_on_reward else rho * change)
    carry = gamma * lam * weight.clamp(max=c_clip)
    carry = torch.where(terminated | truncated | ~alive, torch.zeros_like(carry), carry)
    delta = torch.where(alive, delta, torch.zeros_like(delta))
    if not bootstrap_row_end:
        delta[:, -1], carry[:, -1] = 0.0, 0.0
    advantage = torch.empty_like(reward)
    if following is None:
        trace = torch.zeros_like(next_value)
        for t in reversed(range(reward.shape[1])):
            trace = torch.addcmul(delta[:, t], carry[:, t], trace)
            advantage[:, t] = trace
        return advantage
    for numbers in rows_by_depth(following):
        rows = torch.from_numpy(numbers).to(reward.device)
        after = torch.from_numpy(following[numbers]).to(reward.device)
        trace = torch.where(after[:, None] >= 0, advantage[after.clamp(min=0), 0], 0.0)
        for t in reversed(range(reward.shape[1])):
            trace = torch.addcmul(delta[rows, t], carry[rows, t], trace)
            advantage[rows, t] = trace
    return advantage
