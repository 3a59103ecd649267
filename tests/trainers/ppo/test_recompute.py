"""Advantages that are recomputed before every minibatch, and runs in the style of PufferLib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from millpond.config import load
from millpond.kernels.advantage import advantage_reference
from millpond.rollout.sampling import Draw
from millpond.trainers.common.session import start_run
from millpond.trainers.ppo.advantages import INPUTS
from millpond.trainers.ppo.trainer import PPOTrainer
from tests.support.ppo_runs import SMALL, train_small
from tests.support.records import records

PUFFER = {"ppo.style": "puffer", "trainer.batch_unit": "agent_steps", "trainer.batch_size": 8 * 36}
SIZES = {"trainer.minibatch_size": 8 * 12}


class Watched(PPOTrainer):
    """Compares the advantages of every update with the reference, and notes which rows were trained before."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: list[
            tuple[int, float]
        ] = []  # rows with a ratio other than 1, and the largest change of an advantage
        self.first = torch.zeros(0)

    def _update(self, at: Any, draw: Draw, advantages: Any) -> None:
        ppo, rows = self.recipe.ppo, self.rows
        if at.begins("iteration"):
            self.first = advantages.raw.clone()
        arrays = {name: rows[name][: self.share.segments].numpy() for name in (*INPUTS, "ratio")}
        if ppo.ignore_truncation:
            arrays["truncated"] = np.zeros_like(arrays["truncated"])
        expected = advantage_reference(
            **arrays,
            gamma=ppo.gamma,
            lam=ppo.gae_lambda,
            rho_clip=ppo.rho_clip,
            c_clip=ppo.c_clip,
            bootstrap_row_end=ppo.row_end == "bootstrap",
        )
        np.testing.assert_allclose(advantages.raw.numpy(), expected, rtol=1e-4, atol=1e-5)
        if advantages.priority is not None:
            np.testing.assert_allclose(advantages.priority, np.abs(expected).sum((1, 2)), rtol=1e-4, atol=1e-5)
        trained = (rows["ratio"][: self.share.segments] != 1.0).any(dim=2).any(dim=1)
        self.seen.append((int(trained.sum()), float((advantages.raw - self.first).abs().max())))
        super()._update(at, draw, advantages)


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize(
    "changes",
    [
        PUFFER,
        {"ppo.advantage": "vtrace", "ppo.recompute_advantage": True, "ppo.normalize_values": True, "ppo.rho_clip": 1.1},
    ],
    ids=["puffer", "vtrace"],
)
def test_advantages_are_recomputed_with_newest_ratios_and_values(
    tmp_path: Path, changes: dict[str, Any], fast: bool
) -> None:
    settings = {
        **SMALL,
        **SIZES,
        **changes,
        "trainer.fast": fast,
        "trainer.total_iterations": 2,
        "ppo.learning_rate": 0.02,
    }
    if "trainer.batch_size" not in changes:
        settings |= {"trainer.batch_size": 8 * 36}
    loaded = load("grid", {**settings, "run_dir": str(tmp_path)})
    trainer = Watched(loaded, start_run(loaded, "pond"))
    try:
        trainer.train()
    finally:
        trainer.close()
    assert len(trainer.seen) == 2 * 2 * 3
    for iteration in (trainer.seen[:6], trainer.seen[6:]):
        assert iteration[0] == (0, 0.0)
        changed = [rows for rows, _ in iteration]
        assert changed[2] > 0  # not earlier: the first minibatch is of the policy that acted
        assert changed == sorted(changed)
        assert all(difference > 1e-4 for _, difference in iteration[2:])


def test_a_run_in_the_style_of_pufferlib_is_the_same_in_compiled_and_in_plain_code(tmp_path: Path) -> None:
    for name, fast in (("fast", True), ("plain", False)):
        train_small(tmp_path, name, **PUFFER, **SIZES, **{"trainer.fast": fast})
    ours, plain = records(tmp_path / "fast"), records(tmp_path / "plain")
    for name in ("policy_loss", "value_loss", "entropy", "approx_kl", "grad_norm", "reward_per_agent_step"):
        assert [one[name] for one in ours] == pytest.approx([one[name] for one in plain], rel=1e-3, abs=1e-5), name


def test_clips_of_vtrace_matter_only_if_advantages_are_recomputed(tmp_path: Path) -> None:
    def returns(name: str, **changes: Any) -> list[float]:
        train_small(tmp_path, name, **{"ppo.advantage": "vtrace", "ppo.learning_rate": 0.02, **changes})
        return [record["value_loss"] for record in records(tmp_path / name)]

    once = returns("once")
    assert returns("once_clipped", **{"ppo.c_clip": 1.0}) == once
    again = returns("again", **{"ppo.recompute_advantage": True})
    assert again != once
    assert (
        returns("again_clipped", **{"ppo.recompute_advantage": True, "ppo.rho_clip": 3.0, "ppo.c_clip": 3.0}) != again
    )
