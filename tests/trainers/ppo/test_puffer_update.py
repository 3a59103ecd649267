"""A whole iteration of updates, against PufferLib's own trainer on the same rows (benchmarks/parity/puffer_update.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from millpond.config.ppo import PPOConfig
from millpond.config.style import STYLE_KEYS
from millpond.envs.spec import ActionSpec, ObservationSpec
from millpond.losses import Coefficients
from millpond.policies import build_policy
from millpond.rollout.rows import Rows
from millpond.rollout.sampling import SMALLEST, Draw, annealed_beta
from millpond.rollout.schema import RowField, row_fields
from millpond.trainers.ppo.advantages import Estimator, estimate_advantages, refresh_advantages
from millpond.trainers.ppo.build import make_optimizer
from millpond.trainers.ppo.update import GradientsOfRows, Updater, train_minibatch
from tests.support.update_rows import fast_updater

STORED = Path(__file__).parents[2] / "data" / "puffer_update.npz"
CPU = torch.device("cpu")
SAME_NAME = ("learning_rate", "adam_beta1", "adam_beta2", "adam_eps", "gamma", "gae_lambda", "clip_coef", "vf_clip_coef",
             "vf_coef", "ent_coef", "max_grad_norm", "prio_alpha", "prio_beta0")  # fmt: skip


@pytest.fixture(scope="module")
def stored() -> dict[str, Any]:
    with np.load(STORED) as file:
        return dict(file)


def part(stored: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in stored.items() if name.startswith(prefix)}


def collected_rows(theirs: dict[str, Any], hidden: int) -> Rows:
    """Return PufferLib's rows as Millpond stores them: a reward, and an end, with the step that led to it."""
    count, horizon, numbers = theirs["observations"].shape
    fields = [
        RowField("observation", (numbers,), "float32", 4, per_step=True, trained=True),
        RowField("action", (), "int32", 4, per_step=True, trained=True),
        *row_fields(None, (2, hidden), ratio=True),
    ]
    rows = Rows(fields, count, horizon, 1, 1, "cpu", resets_state=False)
    rows["alive"].fill_(True)
    for name, array in (
        ("observation", theirs["observations"]),
        ("action", theirs["actions"]),
        ("log_prob", theirs["logprobs"]),
        ("value", theirs["values"]),
    ):
        rows[name].copy_(torch.from_numpy(array)[:, :, None])
    rows["reward"][:, :-1, 0] = torch.from_numpy(theirs["rewards"])[:, 1:]
    rows["terminated"][:, :-1, 0] = torch.from_numpy(theirs["terminals"])[:, 1:] > 0
    rows["truncated"].copy_(torch.rand(rows["truncated"].shape) < 0.1)  # ignored
    return rows


@pytest.mark.parametrize("compiled", [False, True])
def test_weights_after_an_iteration_equal_those_of_pufferlib(stored: dict[str, Any], compiled: bool) -> None:
    before, after, numbers = (part(stored, f"{name}/") for name in ("before", "after", "numbers"))
    hidden = len(before["encoder.bias"])
    seen = ObservationSpec.single(stored["rows/observations"].shape[2:], "float32", "vector")
    actions = len(before["output.bias"]) - 1
    policy = build_policy(seen, ActionSpec.discrete(actions), core="lstm", hidden_size=hidden)
    policy.load_state_dict({name: torch.from_numpy(array) for name, array in before.items()})
    rows = collected_rows(part(stored, "rows/"), hidden)
    style = {one.key.removeprefix("ppo."): one.puffer for one in STYLE_KEYS if one.key.startswith("ppo.")}
    ppo = PPOConfig(**{**style, **{name: float(numbers[name]) for name in SAME_NAME}})
    estimator, optimizer = Estimator.of(ppo), make_optimizer(ppo, policy)
    updater: GradientsOfRows = fast_updater(policy) if compiled else Updater(policy, device=CPU)
    coefficients = Coefficients(
        ppo.clip_coef, ppo.vf_clip_coef, ppo.vf_coef, ppo.ent_coef, ppo.max_grad_norm, weights_value=False
    )
    beta = annealed_beta(ppo.prio_beta0, float(stored["progress"]), ppo.prio_alpha)
    advantages = estimate_advantages(rows, rows.rows, estimator)
    for minibatch, (drawn, probability) in enumerate(zip(stored["drawn"], stored["probability"], strict=True)):
        if minibatch:
            advantages = refresh_advantages(rows, advantages, estimator)
        assert advantages.priority is not None
        ours = (advantages.priority + SMALLEST) ** ppo.prio_alpha
        ours /= ours.sum()
        np.testing.assert_allclose(ours, probability, rtol=2e-3)
        weight = ((rows.rows * ours[drawn]) ** -beta).astype(np.float32)
        train_minibatch(
            updater, optimizer, rows, advantages, Draw(drawn, weight), coefficients,
            micro_batch_rows=len(drawn), device=CPU,
        )  # fmt: skip
    np.testing.assert_allclose(rows["ratio"][..., 0].numpy(), stored["ratio"], rtol=5e-3)
    np.testing.assert_allclose(rows["value"][..., 0].numpy(), stored["value"], atol=5e-3)
    assert float(np.abs(stored["ratio"] - 1).max()) > 1.5 * ppo.clip_coef  # far enough from on policy that clips matter
    for name, weight in policy.state_dict().items():
        # PufferLib's deviation of a minibatch of 512 steps has 511 in the denominator.
        moved = float(np.abs(after[name] - before[name]).max())
        np.testing.assert_allclose(weight.numpy(), after[name], atol=0.01 * moved, err_msg=name)
