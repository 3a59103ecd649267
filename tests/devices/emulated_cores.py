"""Recurrent cores on a device equal those of the CPU, with few launches. Run by test_emulated.py in a process of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from millpond.devices.counts import counting
from millpond.devices.emulated import register
from millpond.policies.cores import GRU, LSTM
from millpond.policies.mingru import MinGRU

register()
T, B, H = 9, 7, 5
# launches of a row of T steps, forward and backward with the product for the loss, and of a step without gradients
CORES: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    "lstm": (lambda: LSTM(H), 4 * T + 20, 3),
    "gru": (lambda: GRU(H), 4 * T + 17, 3),
    "two layers of mingru": (lambda: MinGRU(H, 2), 19, 4),
}


def unrolled(core: nn.Module, device: str, dtype: torch.dtype) -> list[Tensor]:
    """Return outputs, a step, and gradients, on the CPU."""
    torch.manual_seed(1)
    core = copy.deepcopy(core).to(device)
    features, state = torch.randn(T, B, H), torch.randn(B, int(core.states), H)  # type: ignore[call-overload]
    reset, weight = (torch.rand(T, B) < 0.3).to(device), torch.randn(T, B, H).to(device)
    features, state = features.to(device).requires_grad_(), state.to(device).requires_grad_()
    with torch.autocast(device, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
        output = core.unroll(features, state, reset)  # type: ignore[operator]
        (output.float() * weight).sum().backward()
        with torch.no_grad():
            stepped = core.step(features[0].detach(), state.detach())  # type: ignore[operator]
    grads = [features.grad, state.grad, *(parameter.grad for parameter in core.parameters())]
    return [tensor.detach().float().cpu() for tensor in (output, *stepped, *grads) if tensor is not None]


@pytest.mark.parametrize("kind", CORES)
def test_core_equals_that_of_the_cpu_in_float32(kind: str) -> None:
    core = made(kind)
    for one, other in zip(unrolled(core, "cpu", torch.float32), unrolled(core, "emulated", torch.float32), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", CORES)
def test_launches_per_row_and_step(kind: str) -> None:
    core = made(kind).to("emulated")
    features, state = torch.randn(T, B, H).to("emulated"), torch.randn(B, int(core.states), H).to("emulated")  # type: ignore[call-overload]
    reset, weight = (torch.rand(T, B) < 0.3).to("emulated"), torch.randn(T, B, H).to("emulated")
    features.requires_grad_()
    state.requires_grad_()
    with counting() as counts:
        (core.unroll(features, state, reset) * weight).sum().backward()  # type: ignore[operator]
    with counting() as of_step, torch.no_grad():
        core.step(features[0], state)  # type: ignore[operator]
    assert counts.of("launch") == CORES[kind][1]
    assert of_step.of("launch") == CORES[kind][2]


def made(kind: str) -> nn.Module:
    """Return a core with random weights."""
    torch.manual_seed(0)
    core = CORES[kind][0]()
    for parameter in core.parameters():
        nn.init.normal_(parameter)
    return core
