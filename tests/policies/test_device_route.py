"""What policies do off the CPU: custom operations are well formed, and torch.compile sees acting and the update as one graph.

Shapes on torch's device `meta` stand for those on a GPU, which take the same way through the code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from millpond.envs.spec import ActionSpec, ObservationSpec
from millpond.losses import Coefficients
from millpond.policies import Policy, cores, device_steps, mingru
from millpond.policies.encoders import device_sums
from millpond.policies.policy import build_policy
from millpond.rollout.micro_batch import MicroBatch
from millpond.trainers.ppo import device_loss
from millpond.trainers.ppo.update import unroll_micro_batch, unrolled_loss

B, T, H = 3, 4, 8


def number(*shape: int, grad: bool = False) -> Tensor:
    return torch.randn(*shape).requires_grad_(grad)


OPERATIONS: dict[str, tuple[Any, Callable[[], tuple[Any, ...]]]] = {
    "lstm_step": (cores.lstm_step, lambda: (number(B, H), number(4 * H, H), number(4 * H, H), number(4 * H), number(B, 2, H))),
    "gru_step": (
        cores.gru_step,
        lambda: (number(B, H), number(3 * H, H), number(3 * H, H), number(3 * H), number(H), number(B, 1, H)),
    ),
    "mingru_step": (
        mingru.mingru_step,
        lambda: (number(B, H), [number(3 * H, H)] * 2, [number(3 * H)] * 2, number(B, 2, H)),
    ),
    "grid_sum": (
        device_sums.grid_sum,
        lambda: (torch.randint(0, 4, (B, 6), dtype=torch.uint8), number(6, 3, H, grad=True)),
    ),
    "draw_choices": (
        device_steps.draw_choices,
        lambda: (number(B, 5), torch.ones(B, 5, dtype=torch.bool), torch.rand(B, 2, dtype=torch.float64), [2, 3]),
    ),
    "normalise": (device_steps.normalised, lambda: (number(B, 2), number(2), number(2).abs(), 0.01, 5.0)),
    "rescale": (device_steps.rescaled, lambda: (number(B), number(1)[0], number(1)[0].abs(), 1e-5, 1e-8)),
    "loss": (
        device_loss.loss_and_gradients,
        lambda: (*(number(T, B, grad=True) for _ in range(3)), *(number(T, B) for _ in range(5)), number(6).abs(),
                 torch.tensor(12), True),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_passes_opcheck(name: str) -> None:
    torch.manual_seed(1)
    operation, arguments = OPERATIONS[name]
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(operation, arguments(), test_utils=checks)


def made(seen: str, core: str, action: ActionSpec) -> Policy:
    specs = {
        "parts": ObservationSpec.packed([("cells", "grid", (3, 3), "uint8"), ("held", "vector", (4,), "uint8")]),
        "tokens": ObservationSpec.single((6, 3), "uint8", "tokens"),
        "pixels": ObservationSpec.single((2, 6, 6), "uint8", "pixels"),
        "vector": ObservationSpec.single((5,), "float32", "vector"),
    }
    normalised = {"normalize_observations": seen == "vector", "normalize_values": True}
    return build_policy(specs[seen], action, hidden_size=H, core=core, **normalised)  # type: ignore[arg-type]


CASES = [
    ("parts", "lstm", ActionSpec.discrete(3)),
    ("tokens", "gru", ActionSpec.multidiscrete((3, 2))),
    ("vector", "mingru", ActionSpec.mixed((3,), (-1.0,), (1.0,))),
    ("pixels", "none", ActionSpec.continuous((-1.0,), (1.0,))),
]
SHAPES = {"parts": (16,), "tokens": (6, 3), "pixels": (2, 6, 6), "vector": (5,)}


def batch_of(policy: Policy, seen: str, action: ActionSpec, device: str) -> MicroBatch:
    """Return sequences [B, T]."""
    kind = torch.float32 if seen == "vector" else torch.uint8
    numbers = torch.zeros(8, B, T, device=device).unbind()
    return MicroBatch(
        observation=torch.zeros(B, T, *SHAPES[seen], dtype=kind, device=device),
        action=torch.zeros(B, T, *action.shape, device=device),
        action_mask=torch.ones(B, T, action.mask_size, dtype=torch.bool, device=device) if action.sizes else None,
        state=policy.initial_state(B, device),
        reset=torch.zeros(B, T, dtype=torch.bool, device=device),
        log_prob=numbers[0],
        value=numbers[1],
        advantage=numbers[2] + 1,
        target=numbers[3] + 1,
        weight=numbers[4] + 1,
    )


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(("seen", "core", "action"), CASES, ids=[f"{seen}-{core}" for seen, core, _ in CASES])
def test_acting_and_update_are_one_graph(
    seen: str, core: str, action: ActionSpec, device: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if backend == "inductor" and (seen, device) != ("parts", "cpu"):
        pytest.skip("inductor once; it cannot run on meta")
    torch.compiler.reset()
    if device == "meta":  # it has no autocast
        for module in (cores, mingru):
            monkeypatch.setattr(module, "computing_dtype", lambda features: features.dtype)
    policy = made(seen, core, action).to(device)
    batch = batch_of(policy, seen, action, device)
    steps = torch.tensor(12, device=device)
    on_device = None if device == "cpu" else torch.zeros(len(device_loss.NUMBERS), device=device)
    coefficients = Coefficients(0.2, None, 0.5, 0.01, 0.5, on_device=on_device)

    def act(observation: Tensor, state: Tensor, mask: Tensor | None) -> Any:
        return policy.act(observation, state, action_mask=mask)

    def loss(batch: MicroBatch) -> Tensor:
        return unrolled_loss(unroll_micro_batch(policy.unroll, batch), batch, coefficients, steps).total

    assert batch.observation is not None
    mask = None if batch.action_mask is None else batch.action_mask[:, 0]
    found = torch.compile(act, fullgraph=True, backend=backend)(batch.observation[:, 0], batch.state, mask)
    assert found.log_prob.shape == (B,)
    total = torch.compile(loss, fullgraph=True, backend=backend)(batch)
    total.backward()  # type: ignore[no-untyped-call]
    assert policy.output.weight.grad is not None
    if device == "cpu":
        again = batch_of(policy, seen, action, device)
        torch.testing.assert_close(total, loss(again))
