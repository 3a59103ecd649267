"""Measures for warnings: what they say of rows and gradients, and that a run is the same without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from millpond.config import load
from millpond.envs.spec import ObservationSpec
from millpond.rollout.micro_batch import gather
from millpond.rollout.rows import Rows
from millpond.rollout.schema import RowField
from millpond.trainers.common.session import start_run
from millpond.trainers.ppo.measures import gradient_is_due, observation_ranges, value_gradient_share
from millpond.trainers.ppo.trainer import PPOTrainer
from tests.support.ppo_runs import SMALL, train_small
from tests.support.records import records

HORIZON = 4


def rows_of(spec: ObservationSpec, observation: Tensor, alive: Tensor | None = None) -> Rows:
    """Return rows of one agent with these observations [R, T, *observation]."""
    fields = [
        RowField("observation", spec.shape, spec.dtype, 1, per_step=True, trained=True),
        RowField("alive", (), "bool", 1, per_step=True, trained=True),
    ]
    rows = Rows(fields, len(observation), HORIZON, 1, 1, "cpu")
    rows["observation"][:, :, 0] = observation
    rows["alive"][:, :, 0] = True if alive is None else alive
    return rows


def ranges(spec: ObservationSpec, observation: Tensor, alive: Tensor | None = None) -> dict[str, float]:
    rows = rows_of(spec, observation, alive)
    return {name: float(value) for name, value in observation_ranges(rows, rows.rows, spec).items()}


VECTOR = ObservationSpec.single((3,), "float32", "vector")


def test_ranges_of_a_vector_are_those_of_its_numbers() -> None:
    observation = torch.full((2, HORIZON, 3), 7.0)
    observation[:, :, 1] = torch.tensor([[0.0, 1.0, 2.0, 3.0], [1.0, 1.0, 1.0, 1.0]])
    observation[1, 2, 2] = 7.5
    assert ranges(VECTOR, observation) == {"observation_range": 3.0, "observation_range_ratio": 6.0}  # 3 over 0.5


def test_range_of_constant_observations_is_zero() -> None:
    assert ranges(VECTOR, torch.full((2, HORIZON, 3), 0.1))["observation_range"] == 0.0


def test_range_without_overflow_and_without_tiny_numbers() -> None:
    observation = torch.zeros(1, HORIZON, 3)
    observation[0, :2, 0] = torch.tensor([3e38, -3e38])
    observation[0, 0, 1] = 1e-7  # the normaliser would not scale it up
    assert ranges(VECTOR, observation)["observation_range"] == pytest.approx(6e38)
    assert ranges(VECTOR, observation)["observation_range_ratio"] == pytest.approx(6e40)


def test_agents_that_are_not_alive_are_not_seen() -> None:
    observation, alive = torch.ones(2, HORIZON, 3), torch.ones(2, HORIZON, dtype=torch.bool)
    observation[0, :2], alive[0, :2] = 5.0, False
    assert ranges(VECTOR, observation)["observation_range"] == 4.0
    assert ranges(VECTOR, observation, alive)["observation_range"] == 0.0


def test_images_have_no_ratio_and_float_parts_next_to_bytes_have_one() -> None:
    image = ObservationSpec.single((1, 2, 2), "uint8", "pixels")
    shown = torch.zeros(1, HORIZON, 1, 2, 2, dtype=torch.uint8)
    shown[0, 1, 0, 1, 1] = 255
    assert ranges(image, shown) == {"observation_range": 255.0}
    mixed = ObservationSpec.packed([("kind", "vector", (3,), "uint8"), ("speed", "vector", (2,), "float32")])
    stored = np.zeros((1, HORIZON, mixed.shape[0]), np.uint8)
    speed = np.zeros((1, HORIZON, 2), np.float32)
    speed[0, 1] = 100.0, 0.5
    offset = mixed.parts[1].offset
    stored[..., offset : offset + 8] = speed.view(np.uint8)
    assert ranges(mixed, torch.from_numpy(stored))["observation_range_ratio"] == 200.0


def test_sample_of_many_rows_sees_all_steps_of_an_episode() -> None:
    observation = torch.zeros(2_048, HORIZON, 3)
    observation[:, 3] = 1.0  # the last step of each row
    assert ranges(VECTOR, observation)["observation_range"] == 1.0


@pytest.fixture
def trainer(tmp_path: Path) -> Any:
    loaded = load("grid", {**SMALL, "run_dir": str(tmp_path)})
    trainer = PPOTrainer(loaded, start_run(loaded, "x"))
    yield trainer
    trainer.close()


def test_share_of_the_value_is_that_of_separate_gradients(trainer: PPOTrainer) -> None:
    trainer._collect()
    advantages, coefficients, policy = (
        trainer._estimate(),
        trainer.now.coefficients(trainer.policy, trainer.rows),
        trainer.policy,
    )
    rows = trainer.share.minibatch_segments
    state = torch.get_rng_state()
    share = value_gradient_share(policy, trainer.rows, advantages, coefficients, rows, trainer.device)
    assert torch.equal(state, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in policy.parameters())

    def norm(part: str) -> float:
        """Return the norm of the gradient of one of the two losses, at a ratio of 1 and values that are not clipped."""
        batch = gather(trainer.rows, advantages, torch.arange(rows), np.ones(rows, np.float32), trainer.device)
        unrolled = policy.unroll(batch.observation, batch.state, batch.reset, batch.action, action_mask=None)
        if part == "value":
            loss = coefficients.vf_coef * 0.5 * (unrolled.value - batch.target).square().mean()
        else:
            loss = -(unrolled.log_prob * batch.advantage).mean() - coefficients.ent_coef * unrolled.entropy.mean()
        shared = [*policy.encoder.parameters(), *policy.core.parameters()]
        return float(torch.cat([grad.flatten() for grad in torch.autograd.grad(loss, shared)]).norm())

    of_value, of_policy = norm("value"), norm("policy")
    assert float(share) == pytest.approx(of_value / (of_value + of_policy), rel=1e-3)
    assert 0.01 < float(share) < 1
    policy.value_trains_core = False
    assert value_gradient_share(policy, trainer.rows, advantages, coefficients, rows, trainer.device) < 1e-5


def test_gradient_is_measured_early_and_then_rarely() -> None:
    assert [iteration for iteration in range(300) if gradient_is_due(iteration)] == [16, 32, 64, 128, 192, 256]


def test_run_that_is_measured_every_iteration_is_the_same_as_one_that_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = {}
    for name, every in (("measured", 1), ("not", 10**9)):
        monkeypatch.setattr("millpond.trainers.ppo.trainer.EVERY", every)
        monkeypatch.setattr("millpond.trainers.ppo.measures.GRADIENT_EVERY", every)
        runs[name] = train_small(tmp_path, name)
    measured, other = (records(tmp_path / name) for name in ("measured", "not"))
    assert sum("value_gradient_share" in record for record in measured) == 3  # not at the first iteration
    assert not any("value_gradient_share" in record for record in other)
    only = {"value_gradient_share", "observation_range", "observation_range_ratio"}
    unmeasured = [[{k: v for k, v in one.items() if k not in only} for one in run] for run in (measured, other)]
    assert unmeasured[0] == unmeasured[1]
    weights = [runs[name].policy.state_dict() for name in ("measured", "not")]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])
