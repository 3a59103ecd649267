"""Lambda returns against a hand-worked table, and the fast kernels against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from millpond.kernels.lambda_return import lambda_return_numba, lambda_return_reference, lambda_return_torch

NAMES = ("reward", "value", "next_value", "terminated", "truncated", "final_value", "lost")


def through_torch(**arrays: Any) -> Any:
    tensors = {name: torch.from_numpy(value) if name in NAMES else value for name, value in arrays.items()}
    return lambda_return_torch(**tensors).numpy()


KERNELS = [lambda_return_reference, lambda_return_numba, through_torch]


def column(*values: float) -> Any:
    return np.array(values, np.float32)[:, None]


def flags(*values: int) -> Any:
    return np.array(values, np.bool_)[:, None]


@pytest.mark.parametrize("kernel", KERNELS)
def test_hand_worked_table(kernel: Any) -> None:
    #                        step   0    1    2    3
    arrays = {
        "reward": column(1.0, 1.0, 1.0, 1.0),
        "value": column(4.0, 2.0, 8.0, 6.0),
        "next_value": np.array([10.0], np.float32),
        "terminated": flags(0, 0, 0, 0),
        "truncated": flags(0, 0, 0, 0),
        "final_value": column(0.0, 0.0, 0.0, 0.0),
        "lost": flags(0, 0, 0, 0),
    }
    # t=3: 1 + .5*10 = 6                       t=2: 1 + .5*(.5*6 + .5*6) = 4
    # t=1: 1 + .5*(.5*4 + .5*8) = 4            t=0: 1 + .5*(.5*4 + .5*2) = 2.5
    assert kernel(**arrays, gamma=0.5, lam=0.5)[:, 0].tolist() == [2.5, 4.0, 4.0, 6.0]


@pytest.mark.parametrize("kernel", KERNELS)
def test_terminated_step_has_no_future_and_truncated_step_bootstraps(kernel: Any) -> None:
    """Termination has no future, truncation has that of its final observation, and neither that of the next episode."""
    arrays = {
        "reward": column(1.0, 1.0, 1.0, 1.0, 1.0),
        "value": column(4.0, 2.0, 8.0, 6.0, 20.0),
        "next_value": np.array([10.0], np.float32),
        "terminated": flags(0, 1, 0, 0, 0),
        "truncated": flags(0, 0, 0, 1, 0),
        "final_value": column(0.0, 0.0, 0.0, 3.0, 0.0),
        "lost": flags(0, 0, 0, 0, 0),
    }
    # t=4: 1 + .5*10 = 6      t=3: 1 + .5*3 = 2.5     t=2: 1 + .5*(.5*2.5 + .5*6) = 3.125
    # t=1: 1                  t=0: 1 + .5*(.5*1 + .5*2) = 1.75
    assert kernel(**arrays, gamma=0.5, lam=0.5)[:, 0].tolist() == [1.75, 1.0, 3.125, 2.5, 6.0]


@pytest.mark.parametrize("kernel", KERNELS)
def test_step_before_a_lost_step_bootstraps_from_its_value(kernel: Any) -> None:
    arrays = {
        "reward": column(1.0, 99.0, 1.0),
        "value": column(4.0, 2.0, 8.0),
        "next_value": np.array([10.0], np.float32),
        "terminated": flags(0, 0, 0),
        "truncated": flags(0, 0, 0),
        "final_value": column(0.0, 0.0, 0.0),
        "lost": flags(0, 1, 0),
    }
    # t=1: its value 2      t=0: 1 + .5*(.5*2 + .5*2) = 2
    assert kernel(**arrays, gamma=0.5, lam=0.5)[:, 0].tolist() == [2.0, 2.0, 6.0]


@st.composite
def cases(draw: Any) -> dict[str, Any]:
    shape = draw(st.tuples(st.integers(1, 9), st.integers(1, 4)))
    floats = st.floats(-50, 50, width=32)
    case: dict[str, Any] = {
        name: draw(hnp.arrays(np.float32, shape[1:] if name == "next_value" else shape, elements=floats))
        for name in ("reward", "value", "next_value", "final_value")
    }
    case |= {name: draw(hnp.arrays(np.bool_, shape)) for name in ("terminated", "truncated", "lost")}
    return case | {"gamma": draw(st.floats(0, 1)), "lam": draw(st.floats(0, 1))}


@given(cases())
def test_fast_kernels_equal_the_reference(case: dict[str, Any]) -> None:
    plain = lambda_return_reference(**case)
    for kernel in (lambda_return_numba, through_torch):
        np.testing.assert_allclose(kernel(**case), plain, rtol=1e-4, atol=1e-3)


def test_lambda_one_is_the_full_return_and_lambda_zero_is_one_step() -> None:
    rng = np.random.default_rng(0)
    reward, value = rng.normal(size=(5, 2)).astype(np.float32), rng.normal(size=(5, 2)).astype(np.float32)
    next_value, none = rng.normal(size=2).astype(np.float32), np.zeros((5, 2), np.bool_)
    rest = (none, none, np.zeros((5, 2), np.float32), none)
    whole = lambda_return_numba(reward, value, next_value, *rest, gamma=0.9, lam=1.0)
    by_hand = sum(0.9**t * reward[t] for t in range(5)) + 0.9**5 * next_value
    np.testing.assert_allclose(whole[0], by_hand, rtol=1e-5)
    one = lambda_return_numba(reward, value, next_value, *rest, gamma=0.9, lam=0.0)
    np.testing.assert_allclose(one[:-1], reward[:-1] + 0.9 * value[1:], rtol=1e-5)
