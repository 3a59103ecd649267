"""Triton kernels compute what their plain versions do. Run by test_emulated.py in its own process, interpreted on the CPU."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are defined

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from millpond.devices.kernels import DeviceKernel
from millpond.kernels import scan
from millpond.kernels.scan import chains_of, following_of
from millpond.policies import device_cores as cores
from millpond.policies import device_steps as steps
from millpond.policies.encoders import device_sums as sums
from millpond.trainers.ppo import device_loss

pytest.importorskip("triton")
T, B, H = 4, 5, 3
DTYPES = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 2e-2}


def normal(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64).to(dtype)


def flags(*shape: int) -> Tensor:
    return torch.rand(*shape) < 0.4


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype == torch.bfloat16 else dtype


def lstm_forward(d: torch.dtype) -> tuple[object, ...]:
    w = wide(d)
    return (normal(B, 4 * H, dtype=d), normal(B, H, dtype=w), flags(B), flags(B), normal(B, H, dtype=w),
            normal(B, H, dtype=d), normal(B, H, dtype=d))  # fmt: skip


def lstm_step(d: torch.dtype) -> tuple[object, ...]:
    state, after = normal(B, 2, H, dtype=wide(d)), normal(B, 2, H, dtype=wide(d))
    return normal(B, 4 * H, dtype=d), state[:, 1], None, None, after[:, 1], normal(B, H, dtype=d), after[:, 0]


def lstm_backward(d: torch.dtype) -> tuple[object, ...]:
    w = wide(d)
    gates = normal(B, 4 * H, dtype=d).sigmoid()
    return (gates, normal(B, H, dtype=w), normal(B, H, dtype=w), flags(B), flags(B), normal(B, H, dtype=d),
            normal(B, H, dtype=d), normal(B, H, dtype=w), torch.empty_like(gates))  # fmt: skip


def lstm_backward_of_last_step(d: torch.dtype) -> tuple[object, ...]:
    return *(made := lstm_backward(d))[:4], None, *made[5:]


def gru_forward(d: torch.dtype) -> tuple[object, ...]:
    carried = normal(B, H, dtype=d)
    return (normal(B, 3 * H, dtype=d), normal(B, 3 * H, dtype=d), normal(H, dtype=d), flags(B), carried,
            normal(B, 4 * H, dtype=d), normal(B, H, dtype=d), carried)  # fmt: skip


def gru_backward(d: torch.dtype) -> tuple[object, ...]:
    gates = normal(B, 4 * H, dtype=d).sigmoid()
    return (gates, normal(B, H, dtype=d), flags(B), flags(B), normal(B, H, dtype=d), normal(B, H, dtype=d),
            torch.empty_like(gates))  # fmt: skip


def mingru_forward(d: torch.dtype) -> tuple[object, ...]:
    return (normal(T, B, 3 * H, dtype=d), normal(T, B, H, dtype=d), normal(B, H, dtype=d), flags(T, B),
            normal(T, B, H, dtype=d), normal(T, B, H, dtype=d))  # fmt: skip


def mingru_step(d: torch.dtype) -> tuple[object, ...]:
    state, after = normal(B, 2, H, dtype=wide(d)), normal(B, 2, H, dtype=wide(d))
    return (normal(1, B, 3 * H, dtype=d), normal(1, B, H, dtype=d), state[:, 1], None, after[:, 1][None],
            normal(1, B, H, dtype=d))  # fmt: skip


def mingru_backward(d: torch.dtype) -> tuple[object, ...]:
    sums = normal(T, B, 3 * H, dtype=d)
    rows = [normal(T, B, H, dtype=d) for _ in range(4)]
    return (sums, rows[0], rows[1], normal(B, H, dtype=d), flags(T, B), rows[2], torch.empty_like(sums), rows[3],
            normal(B, H, dtype=d))  # fmt: skip


def tables(d: torch.dtype) -> tuple[Tensor, ...]:
    """Return tokens of three features [B, 20, 3], some of which are padding, and their tables."""
    tokens = torch.stack([torch.randint(0, top, (B, 20)) for top in (256, 3, 256)], -1).to(torch.uint8)
    tokens[:, 11:, 0] = 0xFF
    tokens[:, 11:, 1] = 0xFF
    return tokens, normal(256, H, dtype=d), normal(48, H, dtype=d), normal(48, H, dtype=d)


def token_forward(d: torch.dtype) -> tuple[object, ...]:
    return *tables(d), torch.ones(1, dtype=torch.int32), normal(B, H, dtype=d)


def token_forward_beyond_the_tables(d: torch.dtype) -> tuple[object, ...]:
    tokens, *others = token_forward(d)
    assert isinstance(tokens, Tensor)
    tokens[2, 4, 1] = 3
    return tokens, *others


def token_backward(d: torch.dtype) -> tuple[object, ...]:
    tokens, where, low, high = tables(d)
    return normal(B, H, dtype=d), tokens, where, low, high, where.clone(), low.clone(), high.clone()


def grid_forward(d: torch.dtype) -> tuple[object, ...]:
    cells = torch.randint(0, 4, (B, 21)).to(torch.uint8)
    return cells, normal(21, 3, H, dtype=d), torch.ones(1, dtype=torch.int32), normal(B, H, dtype=d)


def grid_forward_beyond_the_table(d: torch.dtype) -> tuple[object, ...]:
    cells, *others = grid_forward(d)
    assert isinstance(cells, Tensor)
    cells[2, 4] = 4
    return cells, *others


def grid_backward(d: torch.dtype) -> tuple[object, ...]:
    cells, table, *_ = grid_forward(d)
    return normal(B, H, dtype=d), cells, table


def loss(d: torch.dtype) -> tuple[object, ...]:
    n = 40
    log_prob, old, advantage, value, old_value, target, entropy, weight = (normal(n, dtype=d) for _ in range(8))
    numbers = torch.tensor([0.2, 0.3, 0.5, 0.01, 1.5, 1.0], dtype=d)
    weight = torch.where(flags(n), 0.0, weight.abs())
    return (log_prob, old, advantage, value, old_value, target, entropy, weight, numbers,
            torch.tensor(29.0, dtype=d), True, normal(5, n, dtype=d), normal(3, n, dtype=d))  # fmt: skip


def loss_without_bounds(d: torch.dtype) -> tuple[object, ...]:
    made = loss(d)
    numbers = torch.tensor([0.2, float("inf"), 0.5, 0.01, float("inf"), 1.0], dtype=d)
    return *made[:8], numbers, made[9], False, *made[11:]


def rows(d: torch.dtype) -> tuple[object, ...]:
    """Return rows of [R, T, A] with time first in memory, as they are on a device."""
    r, t, a = 6, 4, 2

    def number() -> Tensor:
        return normal(t, r, a, dtype=torch.float32).transpose(0, 1)

    ends = [(torch.rand(t, r, a) < share).transpose(0, 1) for share in (0.2, 0.2, 0.8)]
    return (number(), number(), normal(r, a, dtype=torch.float32), ends[0], ends[1], number(), ends[2], None, None,
            0.9, 0.8, 1.2, 1.1, True, False, number())  # fmt: skip


def rows_without_row_end(d: torch.dtype) -> tuple[object, ...]:
    made = rows(d)
    ratio = (0.5 + torch.rand(4, 6, 2)).transpose(0, 1)
    return *made[:7], ratio, *made[8:13], False, True, made[15]


def chained_rows(d: torch.dtype) -> tuple[object, ...]:
    chains = torch.from_numpy(chains_of(np.array([2, 3, 5, -1, -1, -1])))
    made = rows(d)
    return *made[:8], chains, *made[9:]


def draw(d: torch.dtype) -> tuple[object, ...]:
    w, mask = wide(d), flags(B, 7)
    mask[:, 2] = True
    return (normal(B, 8, dtype=d)[:, :7], mask, torch.rand(B, 2, dtype=torch.float64), 1, 2, 5,
            torch.zeros(B, 2, dtype=torch.int32), normal(B, dtype=w))  # fmt: skip


def draw_first(d: torch.dtype) -> tuple[object, ...]:
    made = draw(d)
    return made[0], None, made[2], 0, 0, 2, *made[6:]


def most_likely(d: torch.dtype) -> tuple[object, ...]:
    made = draw(d)
    return *made[:2], None, *made[3:]


def nothing_allowed(d: torch.dtype) -> tuple[object, ...]:
    made = draw(d)
    return made[0], torch.zeros(B, 7, dtype=torch.bool), *made[2:]


def normalise(d: torch.dtype) -> tuple[object, ...]:
    variance = torch.tensor([0.0, 0.5, 9.0], dtype=torch.float64)
    return normal(B, 3, dtype=d), normal(3, dtype=torch.float64), variance, 0.01, 1.5, normal(B, 3, dtype=d)


def rescale(d: torch.dtype) -> tuple[object, ...]:
    mean, variance = torch.tensor(-7.0, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64)
    return normal(B, 2, dtype=d)[:, 1], mean, variance, 0.1, 1e-8, normal(B, dtype=d)


CASES: list[tuple[DeviceKernel, Callable[[torch.dtype], tuple[object, ...]]]] = [
    (cores.lstm_forward, lstm_forward),
    (cores.lstm_forward, lstm_step),
    (cores.lstm_backward, lstm_backward),
    (cores.lstm_backward, lstm_backward_of_last_step),
    (cores.gru_forward, gru_forward),
    (cores.gru_backward, gru_backward),
    (cores.mingru_forward, mingru_forward),
    (cores.mingru_forward, mingru_step),
    (cores.mingru_backward, mingru_backward),
    (sums.token_forward, token_forward),
    (sums.token_forward, token_forward_beyond_the_tables),
    (sums.token_backward, token_backward),
    (sums.grid_forward, grid_forward),
    (sums.grid_forward, grid_forward_beyond_the_table),
    (sums.grid_backward, grid_backward),
    (steps.draw_choice, draw),
    (steps.draw_choice, draw_first),
    (steps.draw_choice, most_likely),
    (steps.draw_choice, nothing_allowed),
    (steps.normalise_into, normalise),
    (steps.rescale_into, rescale),
    (device_loss.ppo_terms, loss),
    (device_loss.ppo_terms, loss_without_bounds),
    (scan.advantage_scan, rows),
    (scan.advantage_scan, rows_without_row_end),
    (scan.advantage_scan, chained_rows),
]


def copies(arguments: tuple[object, ...]) -> list[object]:
    """Return copies with the same strides; what shared memory still does."""
    whole: dict[int, Tensor] = {}

    def copy(value: object) -> object:
        if not isinstance(value, Tensor):
            return value
        storage = value.untyped_storage()
        base = whole.setdefault(
            storage.data_ptr(),
            torch.empty(0, dtype=value.dtype).set_(storage.clone()),  # type: ignore[call-overload]
        )
        return base.as_strided(value.size(), value.stride(), value.storage_offset())

    return [copy(value) for value in arguments]


def test_chains_of_rows_are_those_that_follow_each_other() -> None:
    following = np.array([2, 3, 5, -1, -1, -1])
    assert chains_of(following).tolist() == [[3, 1, -1], [4, -1, -1], [5, 2, 0]]
    assert following_of(chains_of(following), 6).tolist() == following.tolist()


def test_codes_beyond_the_tables_are_noted() -> None:
    for kernel, make in (
        (sums.token_forward, token_forward_beyond_the_tables),
        (sums.grid_forward, grid_forward_beyond_the_table),
    ):
        arguments = make(torch.float32)
        kernel.triton(*arguments)
        assert [a.item() for a in arguments if isinstance(a, Tensor) and a.dtype == torch.int32] == [0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kernel", "make"), CASES, ids=[make.__name__ for _, make in CASES])
def test_kernel_computes_what_its_plain_version_does(
    kernel: DeviceKernel, make: Callable[[torch.dtype], tuple[object, ...]], dtype: torch.dtype
) -> None:
    if dtype == torch.bfloat16 and not (kernel.path.startswith(cores.TRITON) or kernel is steps.draw_choice):
        pytest.skip("others never get bfloat16")
    torch.manual_seed(1)
    arguments = make(dtype)
    plain, found = copies(arguments), copies(arguments)
    kernel.plain(*plain)
    kernel.triton(*found)
    changed = 0
    for before, one, other in zip(arguments, plain, found, strict=True):
        if isinstance(before, Tensor):
            assert isinstance(one, Tensor)
            close = max(DTYPES[dtype], 1e-6 if one.dtype == torch.float32 else 0)
            torch.testing.assert_close(other, one, rtol=close, atol=close)
            changed += not torch.equal(torch.nan_to_num(before.float()), torch.nan_to_num(one.float()))
    assert changed >= 1
