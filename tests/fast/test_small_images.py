"""The convolution of small images with LayerNorm over channels, against torch in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from millpond.fast import packed_gemm, small_images


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64)


def image_of(dtype: torch.dtype, channels: int, height: int, width: int) -> torch.Tensor:
    image = drawn(channels, height, width)
    return (image > 1).to(dtype) * 3 if dtype == torch.uint8 else image.to(dtype)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.float32])
@pytest.mark.parametrize(("channels", "height", "width"), [(4, 10, 10), (1, 3, 5), (7, 6, 3)])
def test_output_and_gradients_equal_torch(dtype: torch.dtype, channels: int, height: int, width: int) -> None:
    filters, scale = 16, 1 / 3
    image = image_of(dtype, channels, height, width)
    weight, bias, gain, shift = (
        drawn(filters, channels, 3, 3),
        drawn(filters),
        1 + drawn(filters),
        drawn(filters, seed=9),
    )
    for tensor in (weight, bias, gain, shift):
        tensor.requires_grad_()
    plain = F.conv2d(image.double().unsqueeze(0) * scale, weight, bias).movedim(1, -1)
    output = F.layer_norm(plain, (filters,), gain, shift).relu()[0].reshape(-1)  # [P * F]
    upstream = drawn(len(output), seed=3)
    (output * upstream).sum().backward()

    def flat(tensor: torch.Tensor) -> Any:
        return tensor.detach().float().numpy().reshape(-1).copy()

    last = np.empty(weight.numel(), np.float32)
    small_images.filters_last(flat(weight), filters, last)
    places = (height - 2) * (width - 2)
    values, active = np.empty(places * filters, np.float32), np.empty(places * filters, np.float32)
    deviation, factor = np.empty(places, np.float32), np.float32(scale)
    pixels = image.reshape(-1).numpy()
    padded = np.zeros((small_images.margin(width) + height * width) * filters, np.float32)
    where, numbers = np.empty(pixels.size + 1, np.int64), np.empty(pixels.size + 1, np.float32)
    count = small_images.list_pixels(pixels, factor, where, numbers)
    assert where[:count].tolist() == np.flatnonzero(pixels).tolist()
    np.testing.assert_allclose(numbers[:count], pixels[pixels != 0] * factor)
    for _ in range(2):  # what an earlier image left outside of the outputs does not matter
        small_images.convolve(where, numbers, count, height, width, last, flat(bias), padded)
    small_images.without_padding(padded, height, width, filters, values)
    np.testing.assert_allclose(values, plain.detach().reshape(-1), atol=1e-5)
    small_images.normalize_groups(values, filters, flat(gain), flat(shift), deviation, active)
    np.testing.assert_allclose(active, output.detach(), atol=1e-5)

    gradient, sums = flat(upstream), [np.zeros(filters, np.float32) for _ in range(3)]
    small_images.normalize_groups_backward(gradient, values, deviation, filters, flat(gain), flat(shift), *sums)

    # the same with places last
    images, outputs = (np.ascontiguousarray(array.reshape(places, filters).T).reshape(-1) for array in (values, active))
    small_images.without_padding(padded, height, width, filters, active)
    packed_gemm.transpose(active, places, filters, images)
    small_images.normalize_places(images, places, flat(gain), flat(shift), deviation, outputs)
    np.testing.assert_allclose(outputs.reshape(filters, places).T.reshape(-1), output.detach(), atol=1e-5)
    same, parts = np.empty_like(images), np.zeros((3, filters * 8), np.float32)
    packed_gemm.transpose(flat(upstream), places, filters, same)
    small_images.normalize_places_backward(same, images, deviation, places, flat(gain), flat(shift), *parts)
    np.testing.assert_allclose(same.reshape(filters, places).T.reshape(-1), gradient, atol=1e-5)
    for part, total in zip(parts, sums, strict=True):
        again = np.zeros(filters, np.float32)
        small_images.add_partial_sums(part, again)
        np.testing.assert_allclose(again, total, atol=5e-5)

    weights = np.zeros(weight.numel(), np.float32)
    padded[:] = 0.0
    small_images.with_padding(gradient, height, width, filters, padded)
    small_images.add_weight_gradient(where, numbers, count, height, width, padded, filters, weights)
    for found, parameter in zip(sums, (gain, shift, bias), strict=True):
        np.testing.assert_allclose(found, parameter.grad, atol=5e-5)
    assert weight.grad is not None
    np.testing.assert_allclose(weights.reshape(-1, filters).T, weight.grad.reshape(filters, -1), atol=5e-5)


@pytest.mark.parametrize(("rows", "columns"), [(16, 16), (8, 16), (64, 16), (6, 16), (33, 50), (1, 7)])
def test_transpose(rows: int, columns: int) -> None:
    values = drawn(rows, columns).float().numpy()
    out = np.empty(values.size, np.float32)
    packed_gemm.transpose(values.reshape(-1), rows, columns, out)
    np.testing.assert_array_equal(out.reshape(columns, rows), values.T)


def test_nan_in_an_output_is_not_hidden() -> None:
    values, active = np.ones(32, np.float32), np.empty(32, np.float32)
    values[5] = np.nan
    one, zero = np.ones(16, np.float32), np.zeros(16, np.float32)
    small_images.normalize_groups(values, 16, one, zero, np.empty(2, np.float32), active)
    assert np.isnan(active[:16]).all()
    assert np.isfinite(active[16:]).all()
    values = np.ones(2 * 9, np.float32)  # two channels of nine places
    values[[5, 8]] = np.nan
    small_images.normalize_places(values, 9, one[:2], zero[:2], np.empty(9, np.float32), active)
    assert np.flatnonzero(np.isnan(active[:18])).tolist() == [5, 8, 14, 17]
