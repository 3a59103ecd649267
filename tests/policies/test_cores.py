"""LSTM and GRU with resets inside rows, against torch's own cells stepped one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from millpond.compiled import compiled_fast
from millpond.policies import gru_kernels, lstm_kernels, lstm_rows, products
from millpond.policies.activations import fast_sigmoid, fast_tanh
from millpond.policies.gru import GRU, gru_unroll
from millpond.policies.lstm import LSTM, lstm_unroll
from millpond.policies.unrolling import blocks_backward

T, B, H = 9, 7, 5


def with_resets(generator: torch.Generator, steps: int = T, batch: int = B) -> Tensor:
    """Random resets; some at the first and the last step, one sequence with none, one with all."""
    reset = torch.rand(steps, batch, generator=generator) < 0.3
    reset[0, 0] = reset[-1, 1] = True
    reset[:, 2] = False
    reset[:, 3] = True
    return reset


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


def made(kind: str, dtype: torch.dtype) -> tuple[nn.Module, Tensor, Tensor, Tensor, Tensor]:
    """A core with random weights, features, state, reset, and a gradient for its output."""
    generator = torch.Generator().manual_seed(3)
    core = CORES[kind][0](H)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.normal_(generator=generator)
    core.to(dtype)
    features = torch.randn(T, B, H, generator=generator).to(dtype).requires_grad_()
    state = torch.randn(B, core.states, H, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(T, B, H, generator=generator).to(dtype)
    return core, features, state, with_resets(generator), weight


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])  # float64 is plain torch, float32 the kernels
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_outputs_and_all_gradients_equal_those_of_torchs_cells(kind: str, dtype: torch.dtype) -> None:
    core, features, state, reset, weight = made(kind, dtype)
    wanted = [features, state, *core.parameters()]
    ours = core.unroll(features, state, reset)
    reference = CORES[kind][1](core, features, state, reset)
    tolerance = {"rtol": 1e-10, "atol": 1e-10} if dtype == torch.float64 else {"rtol": 2e-5, "atol": 2e-6}
    torch.testing.assert_close(ours, reference, **tolerance)
    gradients = torch.autograd.grad((ours * weight).sum(), wanted)
    expected = torch.autograd.grad((reference * weight).sum(), wanted)
    for gradient, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, other, **tolerance)
    assert gradients[1][3].abs().max() == 0, "nothing flows through a reset into the initial state"
    assert gradients[1][2].abs().max() > 0


@pytest.mark.parametrize("size", [5, 6])  # products of four rows are ours where the size is even, else BLAS's
@pytest.mark.parametrize("batch", [3, 4, 5])
def test_few_sequences_are_what_they_are_among_many(batch: int, size: int) -> None:
    generator = torch.Generator().manual_seed(3)
    core = LSTM(size)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.normal_(generator=generator)
    features = torch.randn(T, 12, size, generator=generator)
    state, reset = torch.randn(12, 2, size, generator=generator), with_resets(generator, batch=12)
    weight = torch.zeros(T, 12, size)
    weight[:, :batch] = torch.randn(T, batch, size, generator=generator)  # only these have gradients
    many = core.unroll(features, state, reset)
    few = core.unroll(*(array.contiguous() for array in (features[:, :batch], state[:batch], reset[:, :batch])))
    torch.testing.assert_close(few, many[:, :batch], rtol=2e-5, atol=2e-6)
    wanted = torch.autograd.grad((many * weight).sum(), list(core.parameters()))
    found = torch.autograd.grad((few * weight[:, :batch]).sum(), list(core.parameters()))
    for gradient, expected in zip(found, wanted, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("steps", [T, 400])  # one block and several
def test_without_a_blas_for_compiled_code_an_lstm_goes_step_by_step_to_the_same(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(5)
    core = LSTM(H)
    core.reset_parameters(generator)
    features = torch.randn(steps, B, H, generator=generator).requires_grad_()
    state = torch.randn(B, 2, H, generator=generator).requires_grad_()
    reset, weight = with_resets(generator, steps), torch.randn(steps, B, H, generator=generator)

    def found() -> list[Tensor]:
        hidden = core.unroll(features, state, reset)
        return [hidden, *torch.autograd.grad((hidden * weight).sum(), [features, state, *core.parameters()])]

    whole = found()
    monkeypatch.setattr(products, "SGEMM", 0)
    before = len(lstm_kernels.gates_backward.signatures)  # type: ignore[attr-defined]
    by_steps = found()
    assert len(lstm_kernels.gates_backward.signatures) >= max(1, before)  # type: ignore[attr-defined]
    for one, other in zip(whole, by_steps, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


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
def test_the_operation_keeps_torchs_rules(kind: str) -> None:
    """Its declared shapes, its autograd registration and its tracing agree with what it does."""
    core, features, state, reset, _ = made(kind, torch.float32)
    weights = list(core.parameters())
    states = [state[:, k].detach().contiguous().requires_grad_() for k in range(core.states)]
    torch.library.opcheck(lstm_unroll if kind == "lstm" else gru_unroll, (features, *states, reset, *weights))


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_stepping_equals_unrolling(kind: str, dtype: torch.dtype) -> None:
    core, features, state, _, _ = made(kind, dtype)
    with torch.no_grad():
        unrolled = core.unroll(features, state, torch.zeros(T, B, dtype=torch.bool))
        for t in range(T):
            hidden, state = core.step(features[t], state)
            torch.testing.assert_close(hidden, unrolled[t], rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(state[:, 0], hidden)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_large_batches_take_several_blocks_in_a_step(kind: str) -> None:
    core, _, _, _, _ = made(kind, torch.float32)
    features, state = torch.randn(2_500, H), torch.randn(2_500, core.states, H)
    with torch.no_grad():
        hidden, after = core.step(features, state)
        unrolled = core.unroll(features[None], state, torch.zeros(1, 2_500, dtype=torch.bool))
    torch.testing.assert_close(hidden, unrolled[0], rtol=1e-5, atol=1e-6)
    assert torch.equal(after[:, 0], hidden)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_bad_number_before_a_reset_does_not_reach_beyond_it_and_one_after_does(kind: str) -> None:
    core, features, state, _, _ = made(kind, torch.float32)
    reset = torch.zeros(T, B, dtype=torch.bool)
    reset[4] = True
    with torch.no_grad():
        spoiled = state.clone()
        spoiled[0] = float("nan")
        hidden = core.unroll(features, spoiled, reset)
    assert hidden[:4, 0].isnan().all()
    assert not hidden[4:].isnan().any()
    assert not hidden[:, 1:].isnan().any()


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_long_batches_take_several_blocks_on_the_way_back(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    core = CORES[kind][0](H)
    core.reset_parameters(generator)
    batch = 300
    assert list(blocks_backward(T, batch)) == [(6, 9), (3, 6), (0, 3)]
    features = torch.randn(T, batch, H, generator=generator, requires_grad=True)
    state = torch.randn(batch, core.states, H, generator=generator, requires_grad=True)
    reset = with_resets(generator, T, batch)
    wanted = [features, state, *core.parameters()]
    ours = torch.autograd.grad(core.unroll(features, state, reset).square().sum(), wanted)
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


@compiled_fast
def tanh_of(x: np.ndarray, out: np.ndarray) -> None:
    for k in range(x.shape[0]):
        out[k] = fast_tanh(x[k])


@compiled_fast
def sigmoid_of(x: np.ndarray, out: np.ndarray) -> None:
    for k in range(x.shape[0]):
        out[k] = fast_sigmoid(x[k])


def test_the_arithmetic_of_tanh_and_sigmoid_is_exact_to_float32() -> None:
    x = np.concatenate([np.linspace(-20, 20, 1_000_001), 10.0 ** np.linspace(-30, 4, 100_001)]).astype(np.float32)
    out = np.empty_like(x)
    tanh_of(x, out)
    expected = np.tanh(x.astype(np.float64))
    assert np.max(np.abs(out - expected) / np.maximum(np.abs(expected), 1e-30)) < 5e-7
    sigmoid_of(x, out)
    assert np.max(np.abs(out - 1 / (1 + np.exp(-np.maximum(x.astype(np.float64), -500))))) < 3e-7
    edges = np.array([np.nan, np.inf, -np.inf], np.float32)
    out = np.empty_like(edges)
    tanh_of(edges, out)
    np.testing.assert_allclose(out, [np.nan, 1, -1], rtol=2e-7)


def test_the_kernels_are_the_ones_under_test() -> None:
    """float32 on the CPU goes through numba, or the comparisons above would compare torch with torch."""
    assert products.SGEMM, "torch no longer gives its sgemm_ to others; LSTMs still work, more slowly"
    assert lstm_rows.rows_backward.signatures  # type: ignore[attr-defined]
    assert gru_kernels.gates_backward.signatures  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_memory_is_kept_at_the_beginning(kind: str) -> None:
    """Gates that forget half at every step would let gradients reach back only a few steps."""
    torch.manual_seed(0)
    core: Any = {"lstm": LSTM, "gru": GRU}[kind](64)
    core.reset_parameters()
    state = 1e-3 * torch.randn(200, core.states, 64)
    with torch.no_grad():
        _, after = core.step(torch.zeros(200, 64), state)
    kept = (after[:, -1] * state[:, -1]).sum() / state[:, -1].square().sum()  # the cell; of a GRU, all that there is
    assert float(kept) > 0.65
