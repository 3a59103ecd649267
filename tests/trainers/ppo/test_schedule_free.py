"""Schedule-free AdamW: a step by hand, the equations in float64, and runs that evaluate and save the average."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from millpond.trainers.ppo.schedule_free import ScheduleFreeAdamW, averaged
from tests.support.ppo_runs import train_small

RATE, BETAS, EPS, DECAY, WARMUP = 0.1, (0.9, 0.99), 1e-8, 0.01, 4


def equations(start: np.ndarray[Any, Any], gradients: np.ndarray[Any, Any]) -> tuple[Any, Any, Any]:
    """Return x, y, z after all gradients, by the equations as they stand in the paper."""
    x, z, v = start.astype(np.float64), start.astype(np.float64), np.zeros_like(start, dtype=np.float64)
    rates: list[float] = []
    for t, g in enumerate(gradients.astype(np.float64), start=1):
        y = (1 - BETAS[0]) * z + BETAS[0] * x
        v = BETAS[1] * v + (1 - BETAS[1]) * g**2
        rates.append(RATE * min(1.0, t / WARMUP))
        z = z - rates[-1] * (g / (np.sqrt(v / (1 - BETAS[1] ** t)) + EPS) + DECAY * y)
        c = rates[-1] ** 2 / sum(rate**2 for rate in rates)
        x = (1 - c) * x + c * z
    return x, (1 - BETAS[0]) * z + BETAS[0] * x, z


def test_two_steps_by_hand() -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    optimizer = ScheduleFreeAdamW([weight], lr=0.1, betas=(0.5, 0.0), eps=0.0, weight_decay=0.0)
    for _ in range(2):
        weight.grad = torch.tensor([2.0])
        optimizer.step()
    # every gradient is divided by its size:  z = 1, .9, .8;  c = 1, 1/2;  x = .9, then (.9 + .8) / 2
    state = optimizer.state[weight]
    assert state["z"].item() == pytest.approx(0.8)
    assert state["x"].item() == pytest.approx(0.85)
    assert weight.item() == pytest.approx(0.825)  # halfway between
    with averaged(optimizer):
        assert weight.item() == pytest.approx(0.85)
    assert weight.item() == pytest.approx(0.825)


def test_many_steps_follow_the_equations() -> None:
    rng = np.random.default_rng(0)
    start, gradients = rng.normal(size=(3, 4)), rng.normal(size=(30, 3, 4))
    weight = torch.nn.Parameter(torch.from_numpy(start).float())
    settings: Any = {"lr": RATE, "betas": BETAS, "eps": EPS, "weight_decay": DECAY, "warmup": WARMUP}
    optimizer = ScheduleFreeAdamW([weight], **settings)
    for gradient in gradients:
        weight.grad = torch.from_numpy(gradient).float()
        optimizer.step()
    x, y, z = equations(start, gradients)
    for ours, exact in ((optimizer.state[weight]["x"], x), (weight.detach(), y), (optimizer.state[weight]["z"], z)):
        np.testing.assert_allclose(ours.numpy(), exact, rtol=1e-5, atol=1e-5)


def test_a_parameter_without_a_gradient_stays() -> None:
    one, other = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    optimizer = ScheduleFreeAdamW([one, other], lr=0.1)
    one.grad = torch.ones(2)
    optimizer.step()
    with averaged(optimizer):
        assert torch.equal(other.detach(), torch.ones(2))
    assert not torch.equal(one.detach(), torch.ones(2))


FREE = {"ppo.optimizer": "schedule_free_adamw", "ppo.warmup_updates": 4}


def test_a_run_saves_the_average_and_goes_on_from_the_training_point(tmp_path: Path) -> None:
    trainer = train_small(tmp_path, "run", **FREE)
    saved = trainer.checkpoints.load(trainer.counters.updates).weights["policy"]
    names = {parameter: name for name, parameter in trainer.policy.named_parameters()}
    moved = 0.0
    for parameter, state in trainer.optimizer.state.items():
        assert torch.equal(saved[names[parameter]], state["x"])
        expected = torch.lerp(state["z"], state["x"], 0.9)
        assert torch.equal(parameter.detach(), expected)
        moved = max(moved, float((state["x"] - state["z"]).abs().max()))
    assert moved > 1e-4  # the two points differ


@pytest.mark.parametrize("fast", [True, False])
def test_normalised_values_keep_all_points_in_the_same_units(tmp_path: Path, fast: bool) -> None:
    """Rewards times 1,000 with PopArt: the run learns the same actions, so that y, x and z must all have been rescaled."""
    learned = []
    for name, scale in (("one", 1.0), ("large", 1000.0)):
        changes = {**FREE, "ppo.normalize_values": True, "ppo.vf_clip_coef": None, "trainer.fast": fast}
        trainer = train_small(tmp_path, name, **{**changes, "env.reward_scale": scale})
        learned.append({key: value.clone() for key, value in trainer.policy.state_dict().items()})
    for key, tensor in learned[0].items():
        if "value_scale" not in key:
            torch.testing.assert_close(learned[1][key], tensor, rtol=1e-3, atol=1e-4, msg=key)
