"""Clipping, Adam and the soft target against torch."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from millpond.fast.adam import adam, clip_coefficient, sum_of_squares

SIZE = 2_061  # not a multiple of eight, nor of the blocks of sums


def drawn(seed: int) -> torch.Tensor:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("edges", [(0, SIZE), (0, 8, SIZE), (0, 1_000, 1_024, SIZE)])
def test_updates_in_pieces_equal_adam_of_torch_in_float64(edges: tuple[int, ...]) -> None:
    parameter = torch.nn.Parameter(drawn(0))
    optimizer = torch.optim.Adam([parameter], lr=1e-2)
    target = drawn(1)
    arrays = [tensor.detach().float().numpy().copy() for tensor in (parameter, target)]
    data, soft = arrays
    first, second = np.zeros(SIZE, np.float32), np.zeros(SIZE, np.float32)
    for step in range(1, 4):
        gradient = drawn(10 + step)
        parameter.grad = gradient * 0.5
        optimizer.step()
        target.lerp_(parameter.detach(), 0.1)
        root = np.sqrt(1 - 0.999**step)
        rate, epsilon = np.float32(1e-2 * root / (1 - 0.9**step)), np.float32(1e-8 * root)
        grad = gradient.float().numpy()
        for begin, end in pairwise(edges):
            adam(
                data,
                grad,
                first,
                second,
                soft,
                begin,
                end,
                np.float32(0.5),
                0.9,
                0.999,
                rate,
                epsilon,
                True,
                np.float32(0.1),
            )
    np.testing.assert_allclose(data, parameter.detach().numpy(), atol=2e-6)
    np.testing.assert_allclose(soft, target.numpy(), atol=2e-6)


def test_step_without_deviation_is_rate_times_the_mean_and_target_is_optional() -> None:
    data, first, second = (np.zeros(SIZE, np.float32) for _ in range(3))
    grad, none = np.ones(SIZE, np.float32), np.empty(0, np.float32)
    one, zero = np.float32(1.0), np.float32(0.0)
    adam(data, grad, first, second, none, 0, SIZE, one, 0.9, 0.999, np.float32(0.5), np.float32(-1.0), False, zero)
    np.testing.assert_allclose(data, -0.05, rtol=1e-6)
    np.testing.assert_allclose(second, 0.001, rtol=1e-6)


def test_sum_of_squares_equals_float64() -> None:
    values = drawn(2).float().numpy()
    exact = float((values[3:2_000].astype(np.float64) ** 2).sum())
    assert sum_of_squares(values, 3, 2_000) == pytest.approx(exact, rel=1e-6)


def test_large_gradients_are_scaled_down_and_small_ones_unchanged() -> None:
    assert clip_coefficient(100.0, 5.0) == pytest.approx(0.5, rel=1e-5)
    assert clip_coefficient(4.0, 5.0) == 1.0
    assert np.isnan(clip_coefficient(np.nan, 5.0))


def test_target_with_weight_one_is_a_copy() -> None:
    data, grad, soft = (drawn(seed).float().numpy() for seed in (4, 5, 6))
    first, second, one = np.zeros(SIZE, np.float32), np.zeros(SIZE, np.float32), np.float32(1.0)
    adam(data, grad, first, second, soft, 0, SIZE, one, 0.9, 0.999, np.float32(0.1), np.float32(1e-8), True, one)
    np.testing.assert_array_equal(soft, data)
