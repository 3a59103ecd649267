"""Triton kernels compute what their plain versions do. Run by test_emulated.py in its own process, interpreted on the CPU."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are defined

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from millpond.devices.kernels import DeviceKernel
from millpond.policies import device_cores as cores

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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kernel", "make"), CASES, ids=[make.__name__ for _, make in CASES])
def test_kernel_computes_what_its_plain_version_does(
    kernel: DeviceKernel, make: Callable[[torch.dtype], tuple[object, ...]], dtype: torch.dtype
) -> None:
    torch.manual_seed(1)
    arguments = make(dtype)
    plain, found = copies(arguments), copies(arguments)
    kernel.plain(*plain)
    kernel.triton(*found)
    changed = 0
    for before, one, other in zip(arguments, plain, found, strict=True):
        if isinstance(before, Tensor):
            assert isinstance(one, Tensor)
            torch.testing.assert_close(other, one, rtol=DTYPES[dtype], atol=DTYPES[dtype])
            changed += not torch.equal(torch.nan_to_num(before.float()), torch.nan_to_num(one.float()))
    assert changed >= 2
