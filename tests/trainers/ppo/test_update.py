"""Advantages normalised over a minibatch, and the optimizer's moments of normalised values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from millpond.envs.spec import ActionSpec
from millpond.losses import Coefficients, normalise
from millpond.policies import Policy, build_policy
from millpond.rollout.sampling import Draw
from millpond.trainers.ppo.muon import Muon
from millpond.trainers.ppo.update import Updater, train_minibatch, update_value_scale, value_scale_of
from tests.support.update_rows import HIDDEN, SPEC, fast_updater, random_rows

CPU, ACTION = torch.device("cpu"), ActionSpec.discrete(4)
COEFFICIENTS = Coefficients(0.2, 0.1, 0.5, 0.02, 0.5)


def make_policy(core: Any, **settings: bool) -> Policy:
    generator = torch.Generator().manual_seed(0)
    return build_policy(SPEC, ACTION, core=core, hidden_size=HIDDEN, generator=generator, **settings)


@pytest.mark.parametrize("micro_batch_rows", [6, 2])
@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "fast"])
@pytest.mark.parametrize("core", ["lstm", "none"])
def test_minibatch_is_normalised_over_its_valid_steps(core: str, compiled: bool, micro_batch_rows: int) -> None:
    """As if the advantages of its rows, one of them drawn twice, had been normalised beforehand, whatever their weights."""
    drawn, weight = np.array([4, 0, 7, 4, 2, 5]), np.linspace(0.5, 1.5, 6, dtype=np.float32)
    rows, advantages = random_rows(ACTION, False, SPEC, HIDDEN, {"lstm": 2, "none": 0}[core])
    raw = 3 * advantages.raw + 1
    minibatch = normalise(raw[drawn], rows["alive"][drawn])
    scaled = torch.zeros_like(raw)
    scaled[drawn] = minibatch
    learned = []
    for given in (
        replace(advantages, raw=raw, scaled=raw, per_minibatch=True),
        replace(advantages, raw=raw, scaled=scaled),
    ):
        policy = make_policy(core)
        updater: Any = fast_updater(policy) if compiled else Updater(policy, device=CPU)
        optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
        step = train_minibatch(
            updater,
            optimizer,
            rows,
            given,
            Draw(drawn, weight),
            COEFFICIENTS,
            micro_batch_rows=micro_batch_rows,
            device=CPU,
        )
        learned.append((policy.state_dict(), step.metrics))
    (ours, metrics), (expected, expected_metrics) = learned
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=1e-6)
    for name, metric in metrics.items():
        torch.testing.assert_close(metric, expected_metrics[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["adam", "radam", "muon"])
@pytest.mark.parametrize("separate_critic", [False, True])
def test_moments_of_the_value_follow_its_scale(separate_critic: bool, optimizer: str) -> None:
    """Those of its gradients by a factor, those of their squares by its square, those of the actions not at all."""
    policy = make_policy("none", normalize_values=True, separate_critic=separate_critic)
    made: Any = {
        "adam": lambda: torch.optim.Adam(policy.parameters(), fused=True),
        "radam": lambda: torch.optim.RAdam(policy.parameters()),
        "muon": lambda: Muon(policy.parameters(), lr=1e-3, momentum=0.9),
    }[optimizer]()
    rows, advantages = random_rows(ACTION, False, SPEC, HIDDEN, 0)
    update_value_scale(policy, made, rows, advantages)  # before the first step there are no moments
    coefficients = replace(COEFFICIENTS, value_scale=value_scale_of(policy))
    draw = Draw(np.arange(9), np.ones(9, np.float32))
    updater = Updater(policy, device=CPU)
    train_minibatch(updater, made, rows, advantages, draw, coefficients, micro_batch_rows=9, device=CPU)
    layer = policy.value_layer
    before = [
        (parameter, name, moment.clone())
        for parameter in (layer.weight, layer.bias)
        for name, moment in made.state[parameter].items()
        if moment.dim()
    ]
    assert len(before) == (2 if optimizer == "muon" else 4)
    deviation = value_scale_of(policy).deviation
    update_value_scale(policy, made, rows, replace(advantages, raw=50 * advantages.raw))
    factor = float(deviation / value_scale_of(policy).deviation)
    assert factor < 0.2
    for parameter, name, moment in before:
        expected = moment.clone()
        expected[-1] *= factor**2 if name == "exp_avg_sq" else factor
        torch.testing.assert_close(made.state[parameter][name], expected, rtol=1e-5, atol=0)
