"""PufferLib's advantage, against outputs of PufferLib's own compiled function (benchmarks/peers/puffer_advantage.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kernels.test_advantage import KERNELS

STORED = Path(__file__).parent.parent / "data" / "puffer_advantage.npz"


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("case", range(4))
def test_advantages_equal_those_of_pufferlib(kernel: Any, case: int) -> None:
    with np.load(STORED) as stored:
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
