"""Two ranks with half of the rows each take the step that one rank takes with all of them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from millpond.config.ppo import NormalizeAdvantage
from millpond.distributed import ALONE, Ranks
from millpond.losses import GTD, Coefficients
from millpond.policies import build_policy
from millpond.rollout.sampling import Draw
from millpond.trainers.common.envs import begin_with_weights
from millpond.trainers.ppo.advantages import Estimator, estimate_advantages, lambda_residual, refresh_advantages
from millpond.trainers.ppo.update import Updater, train_minibatch, update_value_scale, value_scale_of
from tests.support.rank_processes import run_ranks
from tests.support.rows_of_ranks import HIDDEN, ROWS, spec, stored_rows

MINIBATCHES = ([0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10, 11])  # half of each is rank 0's


def two_steps(
    ranks: Ranks, normalize: NormalizeAdvantage, micro_batch_rows: int, *, gtd: bool = False
) -> dict[str, Any]:
    """Compute statistics, advantages and two optimiser steps on this rank's rows."""
    share = ROWS // ranks.count
    rows = stored_rows(ranks.rank * share, share)
    torch.manual_seed(ranks.rank)  # the weights of rank 0 are broadcast
    policy = build_policy(
        spec().observation,
        spec().action,
        core="lstm",
        hidden_size=HIDDEN,
        normalize_observations=True,
        normalize_values=normalize == "minibatch" and not gtd,
        corrects_value=gtd,
    )
    if gtd:  # its first weights are zeros
        torch.nn.init.normal_(policy.correction.weight)  # type: ignore[union-attr]
    begin_with_weights(ranks, {"policy": policy}, None)
    policy.update_normalizer(rows["observation"].flatten(0, 2), ranks.all_reduce)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    updater = Updater(policy, device=torch.device("cpu"))
    recomputed = normalize == "minibatch"
    estimator = Estimator(0.9, 0.8, rho_clip=1.0, c_clip=1.0, use_ratio=recomputed, normalize=normalize)
    advantages = estimate_advantages(rows, share, estimator, ranks.all_reduce)
    coefficients = Coefficients(clip_coef=0.2, vf_clip_coef=0.2, vf_coef=0.5, ent_coef=0.01, max_grad_norm=0.5)
    if gtd:
        coefficients = replace(coefficients, gtd=GTD(0.7, 0.5, partial(lambda_residual, rows, estimator)))
    elif normalize == "minibatch":
        update_value_scale(policy, optimizer, rows, advantages, ranks.all_reduce)
        coefficients = replace(coefficients, value_scale=value_scale_of(policy))
    found = []
    for minibatch in MINIBATCHES:
        if recomputed:
            advantages = refresh_advantages(rows, advantages, estimator, ranks.all_reduce)
        mine = np.array([row for row in minibatch if row // share == ranks.rank])
        step = train_minibatch(
            updater,
            optimizer,
            rows,
            advantages,
            Draw(mine - ranks.rank * share, np.linspace(0.5, 1.5, ROWS, dtype=np.float32)[mine]),
            coefficients,
            micro_batch_rows=micro_batch_rows // ranks.count,
            device=torch.device("cpu"),
            all_reduce=ranks.all_reduce,
        )
        found.append({**{name: float(value) for name, value in step.metrics.items()}, "steps": int(step.agent_steps)})
    return {
        "steps": found,
        "explained_variance": float(advantages.explained_variance),
        "scaled": advantages.scaled.numpy(),
        "weights": {name: tensor.numpy() for name, tensor in policy.state_dict().items()},
    }


def all_cases(ranks: Ranks) -> list[dict[str, Any]]:
    """Whole minibatches, and micro-batches; advantages are normalised over all rows, over each minibatch, or not."""
    return [two_steps(ranks, "iteration", 6), two_steps(ranks, "none", 2), two_steps(ranks, "minibatch", 2),
            two_steps(ranks, "minibatch", 2, gtd=True)]  # fmt: skip


def test_two_ranks_take_the_same_step_as_one() -> None:
    of_one, of_two = all_cases(ALONE), run_ranks(2, all_cases)
    for one, first, second in zip(of_one, *of_two, strict=True):
        for ours in (first, second):
            assert ours["explained_variance"] == pytest.approx(one["explained_variance"], abs=1e-5)
            for mine, theirs in zip(ours["steps"], one["steps"], strict=True):
                assert mine == pytest.approx(theirs, rel=1e-5, abs=1e-5)
            for name, weight in ours["weights"].items():
                # Adam divides by gradients that may be near 0, so that rounding shows.
                np.testing.assert_allclose(weight, one["weights"][name], atol=5e-5, err_msg=name)
                np.testing.assert_array_equal(weight, first["weights"][name])
        np.testing.assert_allclose(np.concatenate([first["scaled"], second["scaled"]]), one["scaled"], atol=1e-5)
