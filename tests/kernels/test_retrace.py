"""Returns of Retrace against a hand-worked table, Peng's Q(lambda) and the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from millpond.kernels.lambda_return import lambda_return_reference
from millpond.kernels.retrace import retrace_numba, retrace_reference, retrace_torch


def column(*values: float) -> Any:
    return np.array(values, np.float32)[:, None]


def flags(*values: int) -> Any:
    return np.array(values, np.bool_)[:, None]


def through_torch(**arrays: Any) -> Any:
    tensors = {k: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for k, value in arrays.items()}
    return retrace_torch(**tensors).numpy()


KERNELS = [retrace_reference, retrace_numba, through_torch]


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
        "q_taken": column(4.0, 2.0, 6.0, 6.0),
        "trace": column(0.5, 0.5, 0.0, 0.5),
    }
    # t=3: 1 + .5*10 = 6             t=2: 1 + .5*(6 + .5*(6 - 6)) = 4
    # t=1: 1 + .5*(8 + 0) = 5        t=0: 1 + .5*(2 + .5*(5 - 2)) = 2.75
    assert kernel(**arrays, gamma=0.5)[:, 0].tolist() == [2.75, 5.0, 4.0, 6.0]


@pytest.mark.parametrize("kernel", KERNELS)
def test_traces_end_at_terminated_truncated_and_lost_steps(kernel: Any) -> None:
    arrays = {
        "reward": column(1.0, 1.0, 1.0, 99.0, 1.0),
        "value": column(4.0, 2.0, 8.0, 6.0, 20.0),
        "next_value": np.array([10.0], np.float32),
        "terminated": flags(0, 1, 0, 0, 0),
        "truncated": flags(0, 0, 0, 0, 1),
        "final_value": column(0.0, 0.0, 0.0, 0.0, 4.0),
        "lost": flags(0, 0, 0, 1, 0),
        "q_taken": column(4.0, 2.0, 8.0, 6.0, 20.0),
        "trace": column(0.5, 0.5, 0.5, 0.5, 0.5),
    }
    # t=4: 1 + .5*4 = 3      t=3: its value 6     t=2: 1 + .5*6 = 4
    # t=1: 1                 t=0: 1 + .5*(2 + .5*(1 - 2)) = 1.75
    assert kernel(**arrays, gamma=0.5)[:, 0].tolist() == [1.75, 1.0, 4.0, 6.0, 3.0]


@st.composite
def cases(draw: Any) -> dict[str, Any]:
    shape = draw(st.tuples(st.integers(1, 9), st.integers(1, 4)))
    floats = st.floats(-50, 50, width=32)
    case: dict[str, Any] = {
        name: draw(hnp.arrays(np.float32, shape[1:] if name == "next_value" else shape, elements=floats))
        for name in ("reward", "value", "next_value", "final_value", "q_taken")
    }
    case["trace"] = draw(hnp.arrays(np.float32, shape, elements=st.floats(0, 1, width=32)))
    case |= {name: draw(hnp.arrays(np.bool_, shape)) for name in ("terminated", "truncated", "lost")}
    return case | {"gamma": draw(st.floats(0, 1))}


@given(cases())
def test_fast_kernels_equal_the_reference(case: dict[str, Any]) -> None:
    plain = retrace_reference(**case)
    for kernel in (retrace_numba, through_torch):
        np.testing.assert_allclose(kernel(**case), plain, rtol=1e-4, atol=1e-3)


@given(cases(), st.floats(0, 1, width=32))
def test_greedy_actions_give_the_lambda_return(case: dict[str, Any], lam: float) -> None:
    """Where every action was greedy, Q(s, a) is the largest Q, and Retrace is Peng's Q(lambda)."""
    case["q_taken"], case["trace"] = case["value"], np.full_like(case["value"], lam)
    names = ("reward", "value", "next_value", "terminated", "truncated", "final_value", "lost", "gamma")
    peng = lambda_return_reference(**{name: case[name] for name in names}, lam=lam)
    np.testing.assert_allclose(retrace_reference(**case), peng, rtol=1e-4, atol=1e-3)
