"""bfloat16 and compiled policies take the same step as float32, and learn the same."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from millpond.config import load
from millpond.rollout.micro_batch import Advantages
from millpond.rollout.rows import resets
from millpond.rollout.sampling import Draw
from millpond.trainers.common.session import start_run
from millpond.trainers.ppo.trainer import PPOTrainer
from millpond.trainers.ppo.update import Updater, train_minibatch
from tests.support.ppo_runs import SHORT_RECALL, SMALL, train_recipe


@dataclass
class Step:
    """One update: its metrics, its gradient, and the parameters after it."""

    metrics: dict[str, float]
    gradient: torch.Tensor
    weights: torch.Tensor


def take_step(
    trainer: PPOTrainer, advantages: Advantages, draw: Draw, *, bfloat16: bool = False, compiled: bool = False
) -> Step:
    """Run one update of a copy of the policy on these rows."""
    policy = copy.deepcopy(trainer.policy)
    parameters = list(policy.parameters())
    if compiled:
        torch.compiler.reset()
    autocast = partial(torch.autocast, "cpu", dtype=torch.bfloat16, enabled=bfloat16)
    updater = Updater(policy, device=trainer.device, autocast=autocast, compiled=compiled)
    done = train_minibatch(
        updater,
        torch.optim.Adam(parameters, lr=1e-3),
        trainer.rows,
        advantages,
        draw,
        trainer.now.coefficients(trainer.policy, trainer.rows),
        micro_batch_rows=len(draw.rows),
        device=trainer.device,
    )
    gradient = torch.cat([parameter.grad.flatten() for parameter in parameters if parameter.grad is not None])
    weights = torch.cat([parameter.detach().flatten() for parameter in parameters])
    return Step({name: float(value) for name, value in done.metrics.items()}, gradient, weights)


@pytest.fixture
def prepared(core: str, tmp_path: Path) -> Any:
    """Return a trainer with rows collected two updates ago, so that ratios are not 1."""
    settings = {**SMALL, "run_dir": str(tmp_path), "policy.core": core, "policy.hidden_size": 64}
    loaded = load("grid", settings)
    trainer = PPOTrainer(loaded, start_run(loaded, "pond"))
    try:
        trainer._collect()
        advantages = trainer.advantages = trainer._estimate()
        draws = list(trainer._draws())
        coefficients = trainer.now.coefficients(trainer.policy, trainer.rows)
        for draw in draws:
            train_minibatch(
                trainer.updater, trainer.optimizer, trainer.rows, advantages, draw, coefficients,
                micro_batch_rows=len(draw.rows), device=trainer.device,
            )  # fmt: skip
        yield trainer, advantages, draws[0]
    finally:
        trainer.close()


def alignment(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(one, other, dim=0))


@pytest.mark.bfloat16
@pytest.mark.parametrize("core", ["lstm", "gru", "none"])
def test_bfloat16_takes_nearly_the_same_step(prepared: tuple[PPOTrainer, Advantages, Draw]) -> None:
    plain, brief = take_step(*prepared), take_step(*prepared, bfloat16=True)
    assert plain.metrics["approx_kl"] > 1e-6, "the policy has moved, or this shows little"
    assert brief.metrics != plain.metrics, "it is another arithmetic"
    for name in ("policy_loss", "value_loss", "entropy", "grad_norm"):
        assert brief.metrics[name] == pytest.approx(plain.metrics[name], rel=0.02, abs=2e-3), name
    assert brief.metrics["approx_kl"] == pytest.approx(plain.metrics["approx_kl"], abs=1e-4)
    assert brief.gradient.dtype == torch.float32
    assert alignment(plain.gradient, brief.gradient) > 0.995


@pytest.mark.parametrize(
    "core", ["none", pytest.param("gru", marks=pytest.mark.slow), pytest.param("lstm", marks=pytest.mark.slow)]
)
def test_compiled_policy_takes_the_same_step(prepared: tuple[PPOTrainer, Advantages, Draw]) -> None:
    plain, compiled = take_step(*prepared), take_step(*prepared, compiled=True)
    for name, value in plain.metrics.items():
        assert compiled.metrics[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name
    assert alignment(plain.gradient, compiled.gradient) > 0.999999
    torch.testing.assert_close(compiled.gradient, plain.gradient, rtol=1e-3, atol=1e-5)


@pytest.mark.bfloat16
def test_rows_of_a_bfloat16_run_are_on_policy(tmp_path: Path) -> None:
    """Acting and learning have the same precision, so the first update clips almost nothing."""
    settings = {"trainer.precision": "bfloat16", "ppo.normalize_values": False}  # a normalised value starts at 0
    loaded = load("grid", {**SMALL, "run_dir": str(tmp_path), **settings})
    trainer = PPOTrainer(loaded, start_run(loaded, "pond"))
    try:
        trainer._collect()
    finally:
        trainer.close()
    names = ["observation", "action", "terminated", "truncated", "log_prob", "value", "initial_state"]
    rows = trainer.rows.sequences(names, torch.arange(trainer.plan.segments), trainer.device)
    given = rows["observation"], rows["initial_state"], resets(rows["terminated"], rows["truncated"]), rows["action"]
    with torch.no_grad():
        exact = trainer.policy.unroll(*given)
        with trainer._autocast():
            again = trainer.policy.unroll(*given)
    assert float((again.log_prob - rows["log_prob"]).abs().max()) < 1e-2
    away, from_exact = (float((unrolled.value - rows["value"]).abs().mean()) for unrolled in (again, exact))
    assert away < 0.5 * from_exact, "they were acted in bfloat16"


@pytest.mark.slow
@pytest.mark.bfloat16
def test_bfloat16_learns_to_recall(tmp_path: Path) -> None:
    evaluation = train_recipe("recall", tmp_path, **SHORT_RECALL, **{"trainer.precision": "bfloat16"}).final_evaluation
    assert evaluation is not None
    assert evaluation.mean >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_compiled_policy_learns_to_recall(tmp_path: Path, core: str) -> None:
    settings = {**SHORT_RECALL, "trainer.compile": True, "policy.core": core}
    evaluation = train_recipe("recall", tmp_path, **settings).final_evaluation
    assert evaluation is not None
    assert evaluation.mean >= 0.95
