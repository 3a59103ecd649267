"""The recursion of advantages; the definition is in `millpond.kernels.scan`. R rows  T horizon  A agents  Q chains of rows"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 128


@triton.jit
def _advantage_scan(
    reward, value, next_value, terminated, truncated, final_value, alive, ratio, chains, advantage,
    reward_row, reward_time, value_row, value_time, terminated_row, terminated_time, truncated_row, truncated_time,
    final_row, final_time, alive_row, alive_time, ratio_row, ratio_time, advantage_row, advantage_time, next_row,
    gamma, lam, rho_clip, c_clip, lanes, agents, horizon, length,
    RATIO: tl.constexpr, CHAINS: tl.constexpr, ROW_END: tl.constexpr, ON_REWARD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    used = lane < lanes
    chain, agent = lane // agents, lane % agents
    trace = tl.zeros((BLOCK,), tl.float32)
    for k in range(length):
        row = chain.to(tl.int64)
        here = used
        if CHAINS:
            row = tl.load(chains + chain * length + k, mask=used, other=-1)
            here = row >= 0
        next_v = tl.load(next_value + row * next_row + agent, mask=here, other=0.0)
        for step in range(horizon):
            t = horizon - 1 - step
            v = tl.load(value + row * value_row + t * value_time + agent, mask=here, other=0.0)
            r = tl.load(reward + row * reward_row + t * reward_time + agent, mask=here, other=0.0)
            final = tl.load(final_value + row * final_row + t * final_time + agent, mask=here, other=0.0)
            ends = tl.load(terminated + row * terminated_row + t * terminated_time + agent, mask=here, other=0) != 0
            cut = tl.load(truncated + row * truncated_row + t * truncated_time + agent, mask=here, other=0) != 0
            lives = tl.load(alive + row * alive_row + t * alive_time + agent, mask=here, other=0) != 0
            rho, c = tl.zeros((BLOCK,), tl.float32) + 1.0, tl.zeros((BLOCK,), tl.float32) + 1.0
            if RATIO:
                rho = tl.load(ratio + row * ratio_row + t * ratio_time + agent, mask=here, other=1.0)
                c = rho
            rho, c = tl.minimum(rho, rho_clip), tl.minimum(c, c_clip)
            future = tl.where(ends, 0.0, tl.where(cut, final, next_v))
            carry = tl.where(ends | cut, 0.0, gamma * lam * c)
            change = gamma * future - v
            if ON_REWARD:
                delta = rho * r + change
            else:
                delta = rho * (r + change)
            trace = tl.where(lives, delta + carry * trace, 0.0)
            if not ROW_END:
                trace = tl.where(step == 0, 0.0, trace)
            next_v = tl.where(lives, v, 0.0)
            tl.store(advantage + row * advantage_row + t * advantage_time + agent, trace, mask=here)


def advantage_scan(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    final_value: Tensor,
    alive: Tensor,
    ratio: Tensor | None,
    chains: Tensor | None,
    gamma: float,
    lam: float,
    rho_clip: float,
    c_clip: float,
    bootstrap_row_end: bool,
    rho_on_reward: bool,
    advantage: Tensor,
) -> None:
    rows, horizon, agents = reward.shape
    weights = reward if ratio is None else ratio
    arrays = (reward, value, terminated, truncated, final_value, alive, weights, advantage)
    strides = [stride for array in arrays for stride in array.stride()[:2]]
    count, length = (rows, 1) if chains is None else chains.shape
    lanes = count * agents
    _advantage_scan[(triton.cdiv(lanes, BLOCK),)](
        reward, value, next_value, terminated, truncated, final_value, alive, weights,
        reward if chains is None else chains, advantage, *strides, next_value.stride(0),
        gamma, lam, rho_clip, c_clip, lanes, agents, horizon, length,
        RATIO=ratio is not None, CHAINS=chains is not None, ROW_END=bootstrap_row_end, ON_REWARD=rho_on_reward,
        BLOCK=BLOCK,
    )  # fmt: skip
