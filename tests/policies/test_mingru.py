"""MinGRU with resets inside rows, plain and compiled, against its equations step by step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from millpond.fast.mingru import FastMinGRU
from millpond.policies.mingru import MinGRU, linear_scan, mingru_unroll
from tests.support.policy_inputs import with_resets

T, B, H, L = 9, 7, 5, 2
WAYS = ["plain", "fast"]


def reference(core: MinGRU, features: Tensor, state: Tensor, reset: Tensor) -> Tensor:
    """The equations of the module's docstring, one step and one layer at a time."""
    rows, states = [], list(state.unbind(1))
    for x, begins in zip(features, reset, strict=True):
        for layer, (weight, bias) in enumerate(zip(core.weights, core.biases, strict=True)):
            c, g, p = (x @ weight.t() + bias).split(x.shape[1], 1)
            z, s = 1 / (1 + (-g).exp()), 1 / (1 + (-p).exp())
            n = torch.where(c >= 0, c + 0.5, 1 / (1 + (-c).exp()))
            before = torch.where(begins[:, None], torch.zeros_like(x), states[layer])
            states[layer] = (1 - z) * before + z * n
            x = s * states[layer] + (1 - s) * x
        rows.append(x)
    return torch.stack(rows)


def as_way(core: MinGRU, way: str) -> Any:
    return core if way == "plain" else FastMinGRU(core)


def made(dtype: torch.dtype, layers: int = L) -> tuple[MinGRU, Tensor, Tensor, Tensor, Tensor]:
    """Return a core with random weights, features, state, reset, and a gradient for its output."""
    generator = torch.Generator().manual_seed(3)
    core = MinGRU(H, layers)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.normal_(generator=generator)
    core.to(dtype)
    features = torch.randn(T, B, H, generator=generator).to(dtype).requires_grad_()
    state = torch.randn(B, layers, H, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(T, B, H, generator=generator).to(dtype)
    return core, features, state, with_resets(generator, T, B), weight


def test_scan_of_three_steps_by_hand() -> None:
    keep = torch.tensor([0.5, 0.0, 2.0]).view(3, 1, 1)
    add = torch.tensor([1.0, 3.0, -1.0]).view(3, 1, 1)
    # 1 + .5 * 4 = 3    3 + 0 * 3 = 3    -1 + 2 * 3 = 5
    assert linear_scan(keep, add, torch.tensor([[4.0]])).flatten().tolist() == [3.0, 3.0, 5.0]


@pytest.mark.parametrize("steps", [1, 2, 3, 8, 13])
def test_scan_equals_the_recurrence_for_any_number_of_steps(steps: int) -> None:
    generator = torch.Generator().manual_seed(steps)
    keep = torch.rand(steps, 2, 3, generator=generator, dtype=torch.float64)
    add, state = torch.randn_like(keep), torch.randn(2, 3, dtype=torch.float64)
    scanned = linear_scan(keep, add, state)
    for t in range(steps):
        state = keep[t] * state + add[t]
        torch.testing.assert_close(scanned[t], state, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("way", "dtype"), [("plain", torch.float64), ("plain", torch.float32), ("fast", torch.float32)]
)
def test_outputs_and_all_gradients_equal_the_equations_step_by_step(dtype: torch.dtype, way: str) -> None:
    core, features, state, reset, weight = made(dtype)
    wanted = [features, state, *core.parameters()]
    ours, expected = as_way(core, way).unroll(features, state, reset), reference(core, features, state, reset)
    tolerance = {"rtol": 1e-10, "atol": 1e-10} if dtype == torch.float64 else {"rtol": 2e-5, "atol": 2e-6}
    torch.testing.assert_close(ours, expected, **tolerance)
    gradients = torch.autograd.grad((ours * weight).sum(), wanted)
    for gradient, other in zip(gradients, torch.autograd.grad((expected * weight).sum(), wanted), strict=True):
        torch.testing.assert_close(gradient, other, **tolerance)
    assert gradients[1][3].abs().max() == 0, "nothing flows through a reset into the initial state"
    assert gradients[1][2].abs().max() > 0


def test_gradients_equal_finite_differences() -> None:
    core, features, state, reset, _ = made(torch.float64, layers=1)
    assert torch.autograd.gradcheck(
        lambda x, s, *w: mingru_unroll(x, s[:, 0].contiguous(), reset, *w)[0], (features, state, *core.parameters())
    )


def test_operation_passes_opcheck() -> None:
    core, features, state, reset, _ = made(torch.float32, layers=1)
    before = state[:, 0].detach().contiguous().requires_grad_()
    torch.library.opcheck(mingru_unroll, (features, before, reset, *core.parameters()))


@pytest.mark.parametrize("way", WAYS)
def test_stepping_equals_unrolling(way: str) -> None:
    core, features, state, _, _ = made(torch.float32)
    either = as_way(core, way)
    with torch.no_grad():
        unrolled = either.unroll(features, state, torch.zeros(T, B, dtype=torch.bool))
        for t in range(T):
            output, state = either.step(features[t], state)
            torch.testing.assert_close(output, unrolled[t], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("way", WAYS)
def test_nan_in_the_state_ends_at_a_reset(way: str) -> None:
    core, features, state, _, _ = made(torch.float32)
    reset = torch.zeros(T, B, dtype=torch.bool)
    reset[4] = True
    with torch.no_grad():
        spoiled = state.clone()
        spoiled[0] = float("nan")
        output = as_way(core, way).unroll(features, spoiled, reset)
    assert output[:4, 0].isnan().all()
    assert not output[4:].isnan().any()
    assert not output[:, 1:].isnan().any()


@pytest.mark.bfloat16
def test_bfloat16_autocast_agrees_with_float32() -> None:
    core, features, state, reset, weight = made(torch.float32)
    wanted = [features, state, *core.parameters()]
    plain = core.unroll(features, state, reset)
    with torch.autocast("cpu", torch.bfloat16):
        low = core.unroll(features, state, reset)
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), plain, rtol=0.05, atol=0.1)
    gradients = torch.autograd.grad((low.float() * weight).sum(), wanted)
    for gradient, other in zip(gradients, torch.autograd.grad((plain * weight).sum(), wanted), strict=True):
        assert nn.functional.cosine_similarity(gradient.flatten(), other.flatten(), 0) > 0.999


def test_memory_lasts_at_the_start_of_training() -> None:
    core = MinGRU(32)
    core.reset_parameters(torch.Generator().manual_seed(0))
    features, state = torch.zeros(4, 1, 32), torch.ones(1, 1, 32, requires_grad=True)
    core.unroll(features, state, torch.zeros(4, 1, dtype=torch.bool))[-1].sum().backward()
    assert state.grad is not None
    # Half of it passes the highway gate. Of four steps units keep (1 - 1/2)^4 to (1 - 1/64)^4.
    torch.testing.assert_close(state.grad[0, 0, [0, -1]], torch.tensor([0.5 / 16, 0.5 * (63 / 64) ** 4]))
