"""The recursion of advantages on a device as one scan. The definition is `millpond.kernels.advantage.advantage_reference`.

R rows   T horizon   A agents   Q chains of rows, each of at most L rows, in which one agent went on
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from millpond.devices.kernels import device_kernel

if TYPE_CHECKING:
    from torch import Tensor

TRITON = "millpond.fast.triton.scan"


@device_kernel(f"{TRITON}:advantage_scan")
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
    """Arrays [R, T, A] of any layout whose last axis is dense, next_value [R, A], chains [Q, L], last row first, -1 after.

    Write the advantages [R, T, A]. Without chains every row is one.
    """
    from millpond.kernels.advantage import advantage_torch

    following = None if chains is None else following_of(chains.cpu().numpy(), len(reward))
    arrays = (reward, value, next_value, terminated, truncated, final_value, alive, ratio, following)
    advantage.copy_(
        advantage_torch(
            *arrays, gamma=gamma, lam=lam, rho_clip=rho_clip, c_clip=c_clip,
            bootstrap_row_end=bootstrap_row_end, rho_on_reward=rho_on_reward,
        )
    )  # fmt: skip


def chains_of(following: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the chains of rows [Q, L], the last row of each first; -1 where a chain is shorter."""
    before = np.full(len(following), -1)
    before[following[following >= 0]] = np.flatnonzero(following >= 0)
    columns, rows = [], np.flatnonzero(following < 0)
    while (rows >= 0).any():
        columns.append(rows)
        rows = np.where(rows >= 0, before[rows], -1)
    return np.stack(columns, 1)


def following_of(chains: npt.NDArray[np.int64], rows: int) -> npt.NDArray[np.int64]:
    """Return the row that follows each row [R], or -1: the inverse of `chains_of`."""
    following = np.full(rows, -1)
    for later, earlier in zip(chains.T[:-1], chains.T[1:], strict=True):
        following[earlier[earlier >= 0]] = later[earlier >= 0]
    return following
