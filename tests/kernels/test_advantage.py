"""Advantages against a hand-worked table, and the fast kernels against the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.kernels import advantage
from millpond.kernels.advantage import advantage_numba, advantage_reference, advantage_torch

PUFFER = Path(__file__).parent.parent / "data" / "puffer_advantage.npz"


def with_numpy(kernel: Any, arrays: dict[str, Any], **numbers: float) -> np.ndarray:
    return np.asarray(kernel(**arrays, **numbers))


def with_torch(arrays: dict[str, Any], **numbers: float) -> np.ndarray:
    following = {"following": arrays["following"]} if "following" in arrays else {}
    tensors = {
        name: None if array is None else torch.from_numpy(array)
        for name, array in arrays.items()
        if name not in following
    } | following
    return advantage_torch(**tensors, **numbers).numpy()


def column(*values: float) -> np.ndarray:
    """One row of one agent."""
    return np.array(values, np.float32).reshape(1, -1, 1)


def flags(*values: int) -> np.ndarray:
    return np.array(values, bool).reshape(1, -1, 1)


def in_parallel(arrays: dict[str, Any], **numbers: float) -> np.ndarray:
    """The version for many steps, on few."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(advantage, "MIN_PARALLEL_STEPS", 0)
        return with_numpy(advantage_numba, arrays, **numbers)


KERNELS = [
    lambda arrays, **numbers: with_numpy(advantage_reference, arrays, **numbers),
    lambda arrays, **numbers: with_numpy(advantage_numba, arrays, **numbers),
    in_parallel,
    with_torch,
]


@pytest.mark.parametrize("kernel", KERNELS)
def test_truncation_bootstraps_and_termination_does_not(kernel: Any) -> None:
    arrays = {
        #                      t = 0    1    2
        "reward": column(1.0, 1.0, 1.0),
        "value": column(0.5, 0.5, 0.5),
        "next_value": np.array([[4.0]], np.float32),
        "terminated": flags(0, 0, 0),
        "truncated": flags(0, 1, 0),
        "final_value": column(0.0, 2.0, 0.0),
        "alive": flags(1, 1, 1),
    }
    # t=2: 1 + .5*4 - .5 = 2.5   t=1: 1 + .5*2 - .5 = 1.5 (chain stops)   t=0: 1 + .5*.5 - .5 + .25*1.5 = 1.125
    assert kernel(arrays, gamma=0.5, lam=0.5).ravel().tolist() == [1.125, 1.5, 2.5]
    arrays |= {"terminated": flags(0, 1, 0), "truncated": flags(0, 0, 0)}
    # t=1 has no future: 1 - .5 = .5   t=0: 1 + .5*.5 - .5 + .25*.5 = .875
    assert kernel(arrays, gamma=0.5, lam=0.5).ravel().tolist() == [0.875, 0.5, 2.5]


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_row_end_that_is_not_bootstrapped_has_advantage_zero(kernel: Any) -> None:
    arrays = {
        "reward": column(1.0, 1.0, 7.0),
        "value": column(0.5, 0.5, 3.0),
        "next_value": np.array([[4.0]], np.float32),
        "terminated": flags(0, 0, 0),
        "truncated": flags(0, 0, 0),
        "final_value": column(0.0, 0.0, 0.0),
        "alive": flags(1, 1, 1),
    }
    # t=2: 0, whatever its reward   t=1: 1 + .5*3 - .5 = 2   t=0: 1 + .5*.5 - .5 + .25*2 = 1.25
    assert kernel(arrays, gamma=0.5, lam=0.5, bootstrap_row_end=False).ravel().tolist() == [1.25, 2.0, 0.0]
    arrays |= {"alive": flags(1, 1, 0)}  # the value of a step without an agent counts as 0: t=1 is .5, t=0 .875
    assert kernel(arrays, gamma=0.5, lam=0.5, bootstrap_row_end=False).ravel().tolist() == [0.875, 0.5, 0.0]


@pytest.mark.parametrize("kernel", KERNELS)
def test_importance_weights_are_clipped(kernel: Any) -> None:
    arrays = {
        "reward": column(1.0, 1.0),
        "value": column(0.0, 0.0),
        "next_value": np.array([[0.0]], np.float32),
        "terminated": flags(0, 0),
        "truncated": flags(0, 0),
        "final_value": column(0.0, 0.0),
        "alive": flags(1, 1),
        "ratio": column(4.0, 0.5),
    }
    # t=1: rho = min(2, .5): .5*1 = .5    t=0: rho = min(2, 4) = 2, c = min(1, 4) = 1: 2*1 + .5*1*.5 = 2.25
    assert kernel(arrays, gamma=0.5, lam=1.0, rho_clip=2.0, c_clip=1.0).ravel().tolist() == [2.25, 0.5]


@pytest.mark.parametrize("kernel", KERNELS)
def test_importance_weight_on_the_reward_alone(kernel: Any) -> None:
    arrays = {
        "reward": column(1.0, 1.0),
        "value": column(4.0, 2.0),
        "next_value": np.array([[6.0]], np.float32),
        "terminated": flags(0, 0),
        "truncated": flags(0, 0),
        "final_value": column(0.0, 0.0),
        "alive": flags(1, 1),
        "ratio": column(4.0, 0.5),
    }
    # t=1: .5*1 + .5*6 - 2 = 1.5    t=0: 2*1 + .5*2 - 4 + .5*1*1.5 = -.25
    numbers = {"gamma": 0.5, "lam": 1.0, "rho_clip": 2.0, "c_clip": 1.0}
    assert kernel(arrays, **numbers, rho_on_reward=True).ravel().tolist() == [-0.25, 1.5]


@pytest.mark.parametrize("kernel", KERNELS)
def test_dead_agent_has_no_advantage(kernel: Any) -> None:
    arrays = {
        "reward": column(1.0, 9.0, 1.0),
        "value": column(0.5, 9.0, 0.5),
        "next_value": np.array([[4.0]], np.float32),
        "terminated": flags(1, 0, 0),
        "truncated": flags(0, 0, 0),
        "final_value": column(0.0, 9.0, 0.0),
        "alive": flags(1, 0, 1),
    }
    assert kernel(arrays, gamma=0.5, lam=0.5).ravel().tolist() == [0.5, 0.0, 2.5]


@settings(max_examples=60)
@given(
    shape=st.tuples(st.integers(1, 5), st.integers(1, 9), st.integers(1, 3)),
    seed=st.integers(0, 2**32 - 1),
    weighted=st.booleans(),
    row_end=st.booleans(),
    rho_on_reward=st.booleans(),
    gamma=st.floats(0, 1),
    lam=st.floats(0, 1),
)
def test_fast_kernels_equal_the_reference(
    shape: tuple[int, int, int],
    seed: int,
    weighted: bool,
    row_end: bool,
    rho_on_reward: bool,
    gamma: float,
    lam: float,
) -> None:
    rng = np.random.default_rng(seed)
    ends = rng.random(shape)
    arrays: dict[str, Any] = {
        "reward": rng.normal(size=shape).astype(np.float32),
        "value": rng.normal(size=shape).astype(np.float32),
        "next_value": rng.normal(size=(shape[0], shape[2])).astype(np.float32),
        "terminated": ends < 0.15,
        "truncated": ends > 0.85,
        "final_value": rng.normal(size=shape).astype(np.float32),
        "alive": rng.random(shape) > 0.1,
        "ratio": rng.lognormal(size=shape).astype(np.float32) if weighted else None,
    }
    numbers = {"gamma": gamma, "lam": lam, "rho_clip": 1.2, "c_clip": 0.9, "bootstrap_row_end": row_end}
    numbers["rho_on_reward"] = rho_on_reward
    expected = with_numpy(advantage_reference, arrays, **numbers)
    np.testing.assert_allclose(with_numpy(advantage_numba, arrays, **numbers), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(with_torch(arrays, **numbers), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("weighted", [False, True])
def test_linked_rows_give_the_advantages_of_one_long_row(kernel: Any, weighted: bool) -> None:
    """Four envs of 15 steps as rows of 5, filled in rounds; the last two envs have a row less, as after a top-up."""
    rng, envs, rounds, horizon = np.random.default_rng(3), 4, 3, 5
    shape = (envs, rounds * horizon, 2)
    ends = rng.random(shape)
    steps: dict[str, Any] = {
        name: rng.normal(size=shape).astype(np.float32) for name in ("reward", "value", "final_value")
    }
    steps |= {"terminated": ends < 0.1, "truncated": ends > 0.9, "alive": rng.random(shape) > 0.05}
    steps |= {"ratio": rng.lognormal(size=shape).astype(np.float32)} if weighted else {}
    next_value = rng.normal(size=(envs, 2)).astype(np.float32)
    numbers = {"gamma": 0.97, "lam": 0.9, "rho_clip": 1.2, "c_clip": 0.9}

    def expected(some: slice, length: int) -> np.ndarray:
        cut = {name: array[some, :length] for name, array in steps.items()}
        # the value after the last step: that of the next step, if it is one of the agent's
        after = next_value[some] if length == shape[1] else steps["value"][some, length] * steps["alive"][some, length]
        return with_numpy(advantage_reference, cut | {"next_value": after}, **numbers)

    rows = {
        name: np.concatenate([array[:, k * horizon : (k + 1) * horizon] for k in range(rounds)])[:10]
        for name, array in steps.items()
    }
    firsts = [steps["value"][:, k * horizon] * steps["alive"][:, k * horizon] for k in range(1, rounds)]
    rows["next_value"] = np.concatenate([*firsts, next_value])[:10]
    rows["following"] = np.array([4, 5, 6, 7, 8, 9, -1, -1, -1, -1])
    advantage = kernel(rows, **numbers)
    whole, shorter = expected(slice(0, 2), 15), expected(slice(2, 4), 10)
    np.testing.assert_allclose(advantage[[0, 4, 8]].reshape(-1, 2), whole[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(advantage[[1, 5, 9]].reshape(-1, 2), whole[1], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(advantage[[2, 6]].reshape(-1, 2), shorter[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(advantage[[3, 7]].reshape(-1, 2), shorter[1], rtol=1e-4, atol=1e-5)


def test_numba_writes_in_place() -> None:
    ones, no = np.ones((2, 3, 1), np.float32), np.zeros((2, 3, 1), bool)
    out = np.full_like(ones, np.nan)
    result = advantage_numba(ones, ones, ones[:, 0], no, no, ones, ~no, gamma=0.9, lam=0.9, out=out)
    assert result is out
    assert np.isfinite(out).all()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("case", range(4))
def test_advantages_equal_those_of_pufferlib(kernel: Any, case: int) -> None:
    """Against stored outputs of its own compiled function: benchmarks/peers/puffer_advantage.py."""
    with np.load(PUFFER) as stored:
        theirs = {name: stored[f"{case}/{name}"] for name in ("value", "reward", "done", "ratio", "advantage")}
        gamma, lam, rho_clip, c_clip = stored[f"{case}/numbers"].tolist()

    def of_step(array: np.ndarray) -> np.ndarray:
        """PufferLib stores a reward, and an end, with the observation that came with it: one step later."""
        return np.concatenate((array[:, 1:], np.zeros_like(array[:, :1])), axis=1)[..., None]

    reward, value = of_step(theirs["reward"]), theirs["value"][..., None]
    arrays = {
        "reward": reward,
        "value": value,
        "next_value": np.full_like(value[:, 0], 9.0),  # never used
        "terminated": of_step(theirs["done"]) > 0,
        "truncated": np.zeros(value.shape, bool),
        "final_value": np.full_like(value, 9.0),
        "alive": np.ones(value.shape, bool),
        "ratio": theirs["ratio"][..., None],
    }
    numbers = {"gamma": gamma, "lam": lam, "rho_clip": rho_clip, "c_clip": c_clip}
    ours = kernel(arrays, **numbers, bootstrap_row_end=False)
    assert np.abs(theirs["advantage"]).max() > 0.5 or value.shape[1] == 1
    np.testing.assert_allclose(ours[..., 0], theirs["advantage"], rtol=0, atol=1e-5)
