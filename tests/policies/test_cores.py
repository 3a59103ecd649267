"""LSTM and GRU with resets inside rows, plain and compiled, against torch's cells stepped one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from millpond.fast.gru import FastGRU
from millpond.fast.lstm import FastLSTM
from millpond.policies.cores import GRU, LSTM, blocks_backward, gru_unroll, lstm_unroll
from tests.support.policy_inputs import with_resets

T, B, H = 9, 7, 5


def reference_lstm(core: LSTM, features: Tensor, state: Tensor, reset: Tensor) -> Tensor:
    cell = nn.LSTMCell(H, H).to(features.dtype)
    names = {"weight_ih": core.w_input, "weight_hh": core.w_hidden, "bias_ih": core.bias}
    given = {**names, "bias_hh": torch.zeros_like(core.bias)}
    h, c = state[:, 0], state[:, 1]
    rows = []
    for x, begins in zip(features, reset, strict=True):
        keep = (~begins)[:, None].to(x.dtype)
        h, c = torch.func.functional_call(cell, given, (x, (h * keep, c * keep)))
        rows.append(h)
    return torch.stack(rows)


def reference_gru(core: GRU, features: Tensor, state: Tensor, reset: Tensor) -> Tensor:
    def reordered(rows: Tensor) -> Tensor:
        """Ours are candidate, reset, update; torch's are reset, update, candidate."""
        return torch.cat((rows[H:], rows[:H]))

    cell = nn.GRUCell(H, H).to(features.dtype)
    given = {
        "weight_ih": reordered(core.w_input),
        "weight_hh": core.w_hidden,
        "bias_ih": reordered(core.bias),
        "bias_hh": torch.cat((torch.zeros(2 * H, dtype=features.dtype), core.bias_share)),
    }
    h = state[:, 0]
    rows = []
    for x, begins in zip(features, reset, strict=True):
        h = torch.func.functional_call(cell, given, (x, h * (~begins)[:, None].to(x.dtype)))
        rows.append(h)
    return torch.stack(rows)


CORES = {"lstm": (LSTM, reference_lstm), "gru": (GRU, reference_gru)}
WAYS = ["plain", "fast"]


def as_way(core: Any, way: str) -> Any:
    """Return the core itself, or its compiled version, which shares its weights."""
    if way == "plain":
        return core
    return FastLSTM(core) if isinstance(core, LSTM) else FastGRU(core)


def made(kind: str, dtype: torch.dtype) -> tuple[nn.Module, Tensor, Tensor, Tensor, Tensor]:
    """Return a core with random weights, features, state, reset, and a gradient for its output."""
    generator = torch.Generator().manual_seed(3)
    core = CORES[kind][0](H)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.normal_(generator=generator)
    core.to(dtype)
    features = torch.randn(T, B, H, generator=generator).to(dtype).requires_grad_()
    state = torch.randn(B, core.states, H, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(T, B, H, generator=generator).to(dtype)
    return core, features, state, with_resets(generator, T, B), weight


@pytest.mark.parametrize(
    ("way", "dtype"), [("plain", torch.float64), ("plain", torch.float32), ("fast", torch.float32)]
)
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_outputs_and_all_gradients_equal_those_of_torchs_cells(kind: str, dtype: torch.dtype, way: str) -> None:
    core, features, state, reset, weight = made(kind, dtype)
    wanted = [features, state, *core.parameters()]
    ours = as_way(core, way).unroll(features, state, reset)
    reference = CORES[kind][1](core, features, state, reset)
    tolerance = {"rtol": 1e-10, "atol": 1e-10} if dtype == torch.float64 else {"rtol": 2e-5, "atol": 2e-6}
    torch.testing.assert_close(ours, reference, **tolerance)
    gradients = torch.autograd.grad((ours * weight).sum(), wanted)
    expected = torch.autograd.grad((reference * weight).sum(), wanted)
    for gradient, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, other, **tolerance)
    assert gradients[1][3].abs().max() == 0, "nothing flows through a reset into the initial state"
    assert gradients[1][2].abs().max() > 0


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_gradients_equal_finite_differences(kind: str) -> None:
    core, features, state, reset, _ = made(kind, torch.float64)
    assert torch.autograd.gradcheck(
        lambda x, s, *w: core_function(kind)(x, s, reset, *w), (features, state, *core.parameters())
    )


def core_function(kind: str):  # type: ignore[no-untyped-def]
    if kind == "lstm":
        return lambda x, s, reset, *w: lstm_unroll(x, s[:, 0].contiguous(), s[:, 1].contiguous(), reset, *w)[0]
    return lambda x, s, reset, *w: gru_unroll(x, s[:, 0].contiguous(), reset, *w)[0]


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_core_operation_passes_opcheck(kind: str) -> None:
    """Declared shapes, autograd registration and tracing agree with the operation."""
    core, features, state, reset, _ = made(kind, torch.float32)
    weights = list(core.parameters())
    states = [state[:, k].detach().contiguous().requires_grad_() for k in range(core.states)]
    torch.library.opcheck(lstm_unroll if kind == "lstm" else gru_unroll, (features, *states, reset, *weights))


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize(
    ("way", "dtype"), [("plain", torch.float64), ("plain", torch.float32), ("fast", torch.float32)]
)
def test_stepping_equals_unrolling(kind: str, dtype: torch.dtype, way: str) -> None:
    core, features, state, _, _ = made(kind, dtype)
    core = as_way(core, way)
    with torch.no_grad():
        unrolled = core.unroll(features, state, torch.zeros(T, B, dtype=torch.bool))
        for t in range(T):
            hidden, state = core.step(features[t], state)
            torch.testing.assert_close(hidden, unrolled[t], rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(state[:, 0], hidden)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_large_batches_take_several_blocks_in_a_step(kind: str) -> None:
    core = as_way(made(kind, torch.float32)[0], "fast")
    features, state = torch.randn(2_500, H), torch.randn(2_500, core.states, H)
    with torch.no_grad():
        hidden, after = core.step(features, state)
        unrolled = core.unroll(features[None], state, torch.zeros(1, 2_500, dtype=torch.bool))
    torch.testing.assert_close(hidden, unrolled[0], rtol=1e-5, atol=1e-6)
    assert torch.equal(after[:, 0], hidden)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_nan_in_the_state_ends_at_a_reset(kind: str, way: str) -> None:
    core, features, state, _, _ = made(kind, torch.float32)
    core = as_way(core, way)
    reset = torch.zeros(T, B, dtype=torch.bool)
    reset[4] = True
    with torch.no_grad():
        spoiled = state.clone()
        spoiled[0] = float("nan")
        hidden = core.unroll(features, spoiled, reset)
    assert hidden[:4, 0].isnan().all()
    assert not hidden[4:].isnan().any()
    assert not hidden[:, 1:].isnan().any()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_backward_pass_in_several_blocks_equals_torchs_cells(kind: str, way: str) -> None:
    generator = torch.Generator().manual_seed(0)
    core = CORES[kind][0](H)
    core.reset_parameters(generator)
    batch = 300
    assert list(blocks_backward(T, batch)) == [(6, 9), (3, 6), (0, 3)]
    features = torch.randn(T, batch, H, generator=generator, requires_grad=True)
    state = torch.randn(batch, core.states, H, generator=generator, requires_grad=True)
    reset = with_resets(generator, T, batch)
    wanted = [features, state, *core.parameters()]
    ours = torch.autograd.grad(as_way(core, way).unroll(features, state, reset).square().sum(), wanted)
    reference = torch.autograd.grad(CORES[kind][1](core, features, state, reset).square().sum(), wanted)
    for gradient, other in zip(ours, reference, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-4)


@pytest.mark.bfloat16
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_bfloat16_autocast_agrees_with_float32(kind: str) -> None:
    core, features, state, reset, weight = made(kind, torch.float32)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.mul_(0.3)
    wanted = [features, state, *core.parameters()]
    plain = core.unroll(features, state, reset)
    with torch.autocast("cpu", torch.bfloat16):
        low = core.unroll(features, state, reset)
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), plain, rtol=0.05, atol=0.03)
    gradients = torch.autograd.grad((low.float() * weight).sum(), wanted)
    expected = torch.autograd.grad((plain * weight).sum(), wanted)
    for gradient, other in zip(gradients, expected, strict=True):
        assert gradient.dtype == torch.float32
        assert nn.functional.cosine_similarity(gradient.flatten(), other.flatten(), 0) > 0.999


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_memory_lasts_at_the_start_of_training(kind: str) -> None:
    """Gates that forget half at every step would let gradients reach back only a few steps."""
    torch.manual_seed(0)
    core: Any = {"lstm": LSTM, "gru": GRU}[kind](64)
    core.reset_parameters()
    state = 1e-3 * torch.randn(200, core.states, 64)
    with torch.no_grad():
        _, after = core.step(torch.zeros(200, 64), state)
    kept = (after[:, -1] * state[:, -1]).sum() / state[:, -1].square().sum()  # the cell of an LSTM, the state of a GRU
    assert float(kept) > 0.65
