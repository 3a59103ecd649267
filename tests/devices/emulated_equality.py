"""Acting and three updates on a device equal those of the CPU. Run by test_emulated.py in a process of its own."""

from __future__ import annotations

import copy
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from millpond.devices.emulated import register
from millpond.envs.spec import ActionSpec, ObservationSpec
from millpond.losses import Coefficients, Scale
from millpond.policies import Policy
from millpond.policies.policy import build_policy
from millpond.rollout.micro_batch import Advantages
from millpond.rollout.rows import Rows
from millpond.rollout.sampling import Draw
from millpond.trainers.ppo.device_update import DeviceUpdate
from millpond.trainers.ppo.update import Updater, train_minibatch
from tests.support.update_rows import AGENTS, HIDDEN, HORIZON, OBSERVATIONS, ROWS, random_rows

register()
DEVICE = torch.device("emulated")
SEEN = {
    "vector": OBSERVATIONS["vector"],
    "several": OBSERVATIONS["several"],
    "tokens": OBSERVATIONS["tokens"],
    "pixels": ObservationSpec.single((2, 6, 6), "uint8", "pixels"),
}
ACTIONS = {
    "discrete": (ActionSpec.discrete(4), False),
    "masked": (ActionSpec.multidiscrete((3, 4)), True),
    "continuous": (ActionSpec.continuous((-1.0, -2.0), (1.0, 2.0)), False),
    "mixed": (ActionSpec.mixed((3,), (-1.0, -2.0), (1.0, 2.0)), True),
}
CORES: dict[str, dict[str, Any]] = {
    "lstm": {"core": "lstm"},
    "gru": {"core": "gru"},
    "mingru": {"core": "mingru", "num_layers": 2},
    "none": {"core": "none"},
    "critic": {"core": "gru", "separate_critic": True},
}
ALL = list(product(SEEN, CORES, ACTIONS))
QUICK = [
    ("vector", "lstm", "masked"),
    ("several", "mingru", "discrete"),
    ("tokens", "gru", "mixed"),
    ("pixels", "none", "continuous"),
    ("tokens", "critic", "masked"),
]
COEFFICIENTS = Coefficients(0.2, 0.3, 0.5, 0.01, 0.5)


def made(seen: str, core: str) -> dict[str, Any]:
    scaled = core != "none"
    return {**CORES[core], "normalize_observations": seen == "vector", "normalize_values": scaled}


def trained(seen: str, core: str, action: str, device: torch.device, *, bfloat16: bool = False) -> list[Tensor]:
    """Return what acting gives, the metrics of three updates, and the weights after them."""
    spec, masked = ACTIONS[action]
    torch.manual_seed(2)
    policy: Policy = build_policy(SEEN[seen], spec, hidden_size=HIDDEN, **made(seen, core))
    with torch.no_grad():
        policy.output.weight.mul_(20)  # weights of actions start near 0
    if seen == "vector":
        policy.update_normalizer(3 * torch.randn(50, 5) + 1)
    policy = copy.deepcopy(policy).to(device)
    rows, advantages = random_rows(spec, masked, SEEN[seen], states=max(1, policy.states))
    if not policy.states:
        rows.arrays["initial_state"] = rows.arrays["initial_state"][..., :0, :]
    rows, advantages = moved(rows, advantages, device)
    precision = partial(torch.autocast, device.type, dtype=torch.bfloat16, enabled=bfloat16)
    with precision():
        found = [] if bfloat16 else acted(policy, rows)  # near ties are drawn otherwise
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2, eps=1e-5, fused=True)
    updater = Updater(policy, device=device, autocast=precision)
    on_device = None if device.type == "cpu" else DeviceUpdate(ROWS, device)
    scale = None
    if policy.value_scale is not None:
        scale = Scale(torch.tensor(0.5).to(device), torch.tensor(2.0).to(device))
    coefficients = Coefficients(**{**vars(COEFFICIENTS), "value_scale": scale})
    for step in range(3):
        picked = np.random.default_rng(step).permutation(ROWS)
        draw = Draw(picked, np.linspace(0.5, 1.5, ROWS, dtype=np.float32))
        result = train_minibatch(
            updater,
            optimizer,
            rows,
            advantages,
            draw,
            coefficients,
            micro_batch_rows=5,
            device=device,
            on_device=on_device,
        )
        found += result.metrics.values()
    return [tensor.detach().cpu().double() for tensor in (*found, *policy.parameters())]


BFLOAT16 = 0.05  # largest difference of outputs and metrics in bfloat16, relative to 1 or to the value


@pytest.mark.parametrize(("seen", "core", "action"), QUICK)
def test_update_in_bfloat16_is_near_that_of_the_cpu(seen: str, core: str, action: str) -> None:
    on_cpu = trained(seen, core, action, torch.device("cpu"), bfloat16=True)
    on_device = trained(seen, core, action, DEVICE, bfloat16=True)
    exact = trained(seen, core, action, DEVICE)
    assert not torch.equal(on_device[-1], exact[-1])
    for one, other in zip(on_cpu, on_device, strict=True):
        torch.testing.assert_close(other, one, rtol=BFLOAT16, atol=BFLOAT16)


def acted(policy: Policy, rows: Rows) -> list[Tensor]:
    """Act for the first step of all rows, with random numbers and without, and return the value of the next."""
    first = {name: rows[name][:, 0].flatten(0, 1) for name in ("observation", "action_mask") if name in rows.fields}
    state = rows["initial_state"].flatten(0, 1)
    mask, generator = first.get("action_mask"), torch.Generator().manual_seed(5)
    drawn = policy.act(first["observation"], state, action_mask=mask, generator=generator)
    likely = policy.act(first["observation"], state, action_mask=mask, deterministic=True)
    return [*drawn, *likely, policy.value(rows["observation"][:, 1].flatten(0, 1), drawn.state)]


def moved(rows: Rows, advantages: Advantages, device: torch.device) -> tuple[Rows, Advantages]:
    """Return the same rows on a device."""
    if device.type == "cpu":
        return rows, advantages
    there = Rows([*rows.fields.values()], ROWS, HORIZON, AGENTS, AGENTS, str(device))
    for name, array in rows.arrays.items():
        if array.shape == there[name].shape:
            there[name].copy_(array)
        else:
            there.arrays[name] = array.to(device)
    to = (tensor.to(device) for tensor in (advantages.raw, advantages.scaled, advantages.valid_steps))
    raw, scaled, valid = to
    return there, Advantages(raw, scaled, None, torch.zeros(()), valid)


def require_equal(seen: str, core: str, action: str) -> None:
    on_cpu, on_device = (trained(seen, core, action, device) for device in (torch.device("cpu"), DEVICE))
    assert len(on_cpu) > 20
    for one, other in zip(on_cpu, on_device, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("seen", "core", "action"), QUICK)
def test_three_updates_equal_those_of_the_cpu(seen: str, core: str, action: str) -> None:
    require_equal(seen, core, action)


@pytest.mark.slow
@pytest.mark.parametrize(("seen", "core", "action"), [case for case in ALL if case not in QUICK])
def test_every_combination_equals_that_of_the_cpu(seen: str, core: str, action: str) -> None:
    require_equal(seen, core, action)
