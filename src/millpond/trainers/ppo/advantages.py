"""Advantages of an iteration's rows: estimated after collection and, if the config says so, again before every minibatch.

R rows   T horizon   a agents of a row
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Any

import torch

from millpond.config.ppo import NormalizeAdvantage, PPOConfig
from millpond.kernels.advantage import advantage_numba, advantage_torch
from millpond.kernels.scan import advantage_scan, chains_of
from millpond.losses import AllReduce, explained_variance, normalise
from millpond.rollout.micro_batch import Advantages
from millpond.rollout.rows import Rows

INPUTS = ("reward", "value", "next_value", "terminated", "truncated", "final_value", "alive")


@dataclass(frozen=True)
class Estimator:
    """Settings of the recursion in `millpond.kernels.advantage`, and of what is made from its results.

    `use_ratio`: importance weights are the newest probability ratios, clipped; else 1. Without `bootstrap_truncation` a
    truncated step is treated as terminated, to see the effect; with `ignore_truncation` as any other step. With `link_rows`
    traces go on from row to row of an agent.
    """

    gamma: float
    lam: float
    rho_clip: float = inf
    c_clip: float = inf
    use_ratio: bool = False
    bootstrap_truncation: bool = True
    ignore_truncation: bool = False
    bootstrap_row_end: bool = True
    rho_on_reward: bool = False
    link_rows: bool = False
    normalize: NormalizeAdvantage = "iteration"
    prioritized: bool = True  # rows are drawn by their priority

    @staticmethod
    def of(ppo: PPOConfig) -> Estimator:
        """Return the estimator that a config describes."""
        clipped = ppo.advantage != "gae"
        return Estimator(
            gamma=ppo.gamma,
            lam=ppo.gae_lambda,
            rho_clip=ppo.rho_clip if clipped else inf,
            c_clip=ppo.c_clip if clipped else inf,
            use_ratio=clipped and ppo.recompute_advantage,
            bootstrap_truncation=ppo.bootstrap_truncation,
            ignore_truncation=ppo.ignore_truncation,
            bootstrap_row_end=ppo.row_end == "bootstrap",
            rho_on_reward=ppo.rho_weights == "reward",
            link_rows=ppo.trace_end == "iteration",
            normalize=ppo.normalize_advantage,
            prioritized=ppo.sampling == "prioritized",
        )


def estimate_advantages(
    rows: Rows, num_rows: int, estimator: Estimator, all_reduce: AllReduce | None = None
) -> Advantages:
    """Estimate advantages of the first `num_rows` rows, right after collection: the policy acted, all ratios are 1.

    Advantages are normalised over these rows, or later over each minibatch. `all_reduce` sums a tensor over ranks, so that
    statistics cover all rows.
    """
    if "ratio" in rows.fields:
        rows["ratio"][:num_rows] = 1.0
    advantage = _advantage(rows, num_rows, estimator)
    value, alive = (rows[name][:num_rows] for name in ("value", "alive"))
    unfinished = Advantages(
        advantage,
        advantage,
        None,
        explained_variance(value, advantage + value, alive, all_reduce),
        alive.sum(dim=(1, 2)),
        per_minibatch=estimator.normalize == "minibatch",
    )
    return _finished(unfinished, rows, estimator, all_reduce)


def refresh_advantages(
    rows: Rows, before: Advantages, estimator: Estimator, all_reduce: AllReduce | None = None
) -> Advantages:
    """Estimate the same rows' advantages again, with the ratios and values that training has written back since."""
    _advantage(rows, len(before.raw), estimator)
    return _finished(before, rows, estimator, all_reduce)


def inputs_of(rows: Rows, some: slice | torch.Tensor, estimator: Estimator) -> dict[str, Any]:
    """Return the arrays [R, T, a] of some rows from which the recursion is computed."""
    arrays: dict[str, Any] = {name: rows[name][some] for name in INPUTS}
    if "learned_reward" in rows.fields:
        arrays["reward"] = rows["learned_reward"][some]
    if "reward_baseline" in rows.fields:
        arrays["reward"] = arrays["reward"] - rows["reward_baseline"][some]
    if estimator.ignore_truncation:
        arrays["truncated"] = torch.zeros_like(arrays["truncated"])
    elif not estimator.bootstrap_truncation:
        arrays["terminated"] = arrays["terminated"] | arrays["truncated"]
    return arrays


def lambda_residual(rows: Rows, estimator: Estimator, picked: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return the lambda-weighted temporal differences of values [b, T, a] of the rows `picked`, with gradients through them.

    Values after the row, and of final observations, are those of the collection; they have no gradient.
    """
    arrays = inputs_of(rows, picked.to(rows.device), estimator)
    arrays = {name: array.to(value.device) for name, array in arrays.items()} | {"value": value}
    row_end = estimator.bootstrap_row_end
    return advantage_torch(**arrays, gamma=estimator.gamma, lam=estimator.lam, bootstrap_row_end=row_end)


def _advantage(rows: Rows, num_rows: int, estimator: Estimator) -> torch.Tensor:
    """Compute the recursion into `rows["advantage"]`, and return it [R, T, a]."""
    arrays = inputs_of(rows, slice(num_rows), estimator)
    if estimator.use_ratio:
        arrays["ratio"] = rows["ratio"][:num_rows]
    options = ("gamma", "lam", "rho_clip", "c_clip", "bootstrap_row_end", "rho_on_reward")
    numbers: dict[str, Any] = {name: getattr(estimator, name) for name in options}
    if estimator.link_rows:
        numbers["following"] = rows.following[:num_rows]
    advantage = rows["advantage"][:num_rows]
    if rows.device.type == "cpu":
        advantage_numba(**{name: array.numpy() for name, array in arrays.items()}, **numbers, out=advantage.numpy())
    else:
        _scan_on_device(arrays, numbers, advantage)
    return advantage


def _scan_on_device(arrays: dict[str, Any], numbers: dict[str, Any], advantage: torch.Tensor) -> None:
    following, chains = numbers.pop("following", None), None
    if following is not None:
        chains = torch.from_numpy(chains_of(following)).to(advantage.device)
    ratio = arrays.pop("ratio", None)
    advantage_scan(*(arrays[name] for name in INPUTS), ratio, chains, **numbers, advantage=advantage)


def _finished(advantages: Advantages, rows: Rows, estimator: Estimator, all_reduce: AllReduce | None) -> Advantages:
    """Return advantages with what follows from `raw`: normalised ones, and priorities."""
    raw = advantages.raw
    alive = rows["alive"][: len(raw)]
    return replace(
        advantages,
        scaled=normalise(raw, alive, all_reduce) if estimator.normalize == "iteration" else raw,
        priority=raw.abs().sum(dim=(1, 2)).cpu().double().numpy() if estimator.prioritized else None,
    )
