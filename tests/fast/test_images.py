"""Images: the compiled encoder against plain convolutions with channels first, in float64 and float32."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from millpond.envs.spec import ActionSpec, ObservationSpec, Part
from millpond.fast import images as fast_images
from millpond.fast.images import FastPixels, image_shapes, product_transposed, read_images
from millpond.fast.limits import image_row_threads, min_images_per_thread
from millpond.fast.network import with_compiled_parts
from millpond.policies import build_policy
from millpond.policies.encoders.pixels import ChannelNorm, PixelEncoder
from millpond.threads import torch_threads

HIDDEN, COUNT = 24, 70
IMAGES = {
    "frames": (4, 84, 84),
    "one frame": (1, 40, 37),
    "colour": (3, 36, 45),
    "small": (6, 10, 10),
    "odd and small": (4, 5, 7),
    "without channels": (9, 12),
}


def make_encoder(image: tuple[int, ...], dtype: str, layer_norm: bool = False) -> PixelEncoder:
    encoder = PixelEncoder(Part("image", "pixels", image, dtype), HIDDEN, layer_norm)
    encoder.reset_parameters(torch.Generator().manual_seed(0))
    with torch.no_grad():
        for layer in encoder.convolutions:
            if isinstance(layer, torch.nn.Conv2d):
                assert layer.bias is not None
                layer.bias.uniform_(-0.1, 0.1)
            if isinstance(layer, ChannelNorm):
                layer.norm.weight.uniform_(0.5, 1.5)
                layer.norm.bias.uniform_(-0.5, 0.5)
    return encoder


def random_images(image: tuple[int, ...], dtype: torch.dtype, count: int = COUNT) -> Tensor:
    draw = torch.Generator().manual_seed(3)
    if dtype.is_floating_point:
        return torch.randn(count, *image, generator=draw, dtype=dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 256, (count, *image), generator=draw).to(dtype)


def channels_first(encoder: PixelEncoder, images: Tensor) -> Tensor:
    """Apply the encoder's layers by their formulas, with channels first in memory, in the weights' precision."""
    hidden = images.view(-1, *encoder.image).to(encoder.linear.weight.dtype) * encoder.scale
    for layer in encoder.convolutions:
        if isinstance(layer, torch.nn.Conv2d):
            hidden = F.conv2d(hidden, layer.weight, layer.bias, stride=layer.stride).contiguous()
        elif isinstance(layer, ChannelNorm):
            deviation = (hidden.var(1, unbiased=False, keepdim=True) + layer.norm.eps).sqrt()
            normal = (hidden - hidden.mean(1, keepdim=True)) / deviation
            hidden = normal * layer.norm.weight[:, None, None] + layer.norm.bias[:, None, None]
        elif isinstance(layer, torch.nn.ReLU):
            hidden = hidden.clamp(min=0)
    return F.linear(hidden.reshape(len(hidden), -1), encoder.linear.weight)


def features_and_gradients(encoder: Any, weights: list[Tensor], images: Tensor) -> list[Tensor]:
    features = encoder(images)
    assert features.is_contiguous()
    d_features = torch.linspace(-1, 1, features.numel(), dtype=features.dtype).view(features.shape)
    return [features.detach(), *torch.autograd.grad(features, weights, d_features)]


def compare_with_channels_first(encoder: PixelEncoder, compiled: torch.nn.Module, images: Tensor) -> None:
    """Compare features and gradients of all weights, float32 with float64: to 1e-5 and 1e-4 of the largest.

    Gradients are less exact, since a sum near 0 may be positive in one precision only.
    """
    exact = copy.deepcopy(encoder).double()
    expected = features_and_gradients(lambda seen: channels_first(exact, seen), list(exact.parameters()), images)
    ours = features_and_gradients(compiled, list(encoder.parameters()), images)
    for which, (one, other) in enumerate(zip(ours, expected, strict=True)):
        assert one.dtype == torch.float32
        tolerance = 1e-4 if which else 1e-5
        torch.testing.assert_close(one.double(), other, rtol=0, atol=tolerance * float(other.abs().max()))


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("image", IMAGES.values(), ids=IMAGES)
def test_plain_encoder_equals_convolutions_with_channels_first(image: tuple[int, ...], layer_norm: bool) -> None:
    encoder = make_encoder(image, "uint8", layer_norm)
    compare_with_channels_first(encoder, encoder, random_images(image, torch.uint8))


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("image", IMAGES.values(), ids=IMAGES)
def test_compiled_encoder_equals_convolutions_with_channels_first(
    image: tuple[int, ...], threads: int, layer_norm: bool
) -> None:
    encoder = make_encoder(image, "uint8", layer_norm)
    compiled = FastPixels(encoder)
    compiled.block, compiled.min_per_thread = 16, 8  # several blocks of different sizes
    with torch_threads(threads):
        compare_with_channels_first(encoder, compiled, random_images(image, torch.uint8))


@pytest.mark.parametrize("dtype", ["uint8", "bool", "float32", "int32"])
def test_compiled_encoder_reads_every_dtype(dtype: str) -> None:
    encoder = make_encoder((3, 12, 9), dtype)
    compare_with_channels_first(encoder, FastPixels(encoder), random_images((3, 12, 9), getattr(torch, dtype)))


@pytest.mark.parametrize("image", IMAGES.values(), ids=IMAGES)
def test_features_without_gradients_are_the_same(image: tuple[int, ...]) -> None:
    encoder = make_encoder(image, "uint8")
    compiled, images = FastPixels(encoder), random_images(image, torch.uint8, 5)
    with torch.inference_mode():
        acted = compiled(images)
    torch.testing.assert_close(acted, compiled(images).detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(acted, encoder(images).detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("onednn", [True, False])
@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("image", IMAGES.values(), ids=IMAGES)
def test_frozen_weights_give_the_same_features_until_they_are_frozen_again(
    image: tuple[int, ...], layer_norm: bool, onednn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_images, "HAS_ONEDNN", onednn and fast_images.HAS_ONEDNN)
    encoder = make_encoder(image, "uint8", layer_norm)
    compiled, images = FastPixels(encoder), random_images(image, torch.uint8)
    with torch.no_grad():
        for _ in range(2):
            compiled.freeze()
            before = compiled(images)
            torch.testing.assert_close(before, encoder(images), rtol=1e-5, atol=1e-5)
            for weight in encoder.parameters():
                weight.mul_(1.5)
            is_packed = fast_images.HAS_ONEDNN and not layer_norm
            assert torch.equal(compiled(images), before) == is_packed
    torch.testing.assert_close(
        compiled(images), encoder(images), rtol=1e-5, atol=1e-4
    )  # with gradients: current weights


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("size", [(1, 1), (7, 9), (10, 13)])
def test_images_are_scaled_exactly_as_by_torch(channels: int, size: tuple[int, int]) -> None:
    images = random_images((channels, *size), torch.uint8, 3)
    read = read_images(images, 1 / 255)
    assert read.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(read, images.float() * (1 / 255))
    assert torch.equal(read_images(images[1:], 1 / 255), read[1:])


def test_images_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match="another shape"):
        fast_images.channels_last(
            random_images((2, 3), torch.uint8).numpy(), np.float32(1.0), torch.empty(COUNT, 3, 3).numpy()
        )


def test_products_are_the_same_without_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(0)
    a, b = torch.randn(33, 70, generator=draw), torch.randn(18, 70, generator=draw)
    pairs = [(a, b), (a.t().contiguous().t(), b), (a[:, ::2], b.t().contiguous().t()[:, ::2])]
    here = [product_transposed(*pair) for pair in pairs]
    monkeypatch.setattr(fast_images, "HAS_ONEDNN", False)
    for (left, right), product in zip(pairs, here, strict=True):
        exact = left.double() @ right.double().t()
        for computed in (product, product_transposed(left, right)):
            torch.testing.assert_close(computed.double(), exact, rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(product_transposed(left, right), product, rtol=1e-5, atol=1e-4)


def test_threads_share_rows_if_they_divide_well_and_images_otherwise() -> None:
    frames = [(4, 84, 84)]
    assert image_row_threads(frames, rows=2, steps_per_row=128, threads=2) == 2
    assert image_row_threads(frames, rows=2, steps_per_row=128, threads=1) == 1
    assert image_row_threads(frames, rows=1, steps_per_row=256, threads=2) == 1
    assert image_row_threads(frames, rows=3, steps_per_row=128, threads=2) == 1  # one of two would wait for a third
    assert image_row_threads(frames, rows=9, steps_per_row=128, threads=2) == 2
    assert image_row_threads(frames, rows=8, steps_per_row=1, threads=8) == 1  # too few images for two
    assert image_row_threads([(4, 10, 10)], rows=8, steps_per_row=16, threads=2) == 1
    assert min_images_per_thread((4, 84, 84)) < 10 < 100 < min_images_per_thread((4, 10, 10))


def test_bfloat16_leaves_images_to_torch() -> None:
    spec = ObservationSpec.single((4, 36, 36), "uint8", "pixels")
    policy: Any = build_policy(spec, ActionSpec.discrete(3), core="none", hidden_size=HIDDEN)
    assert image_shapes(policy) == [(4, 36, 36)]
    for autocast, kind in ((False, FastPixels), (True, PixelEncoder)):
        encoder: Any = with_compiled_parts(policy, autocast).encoder
        assert type(encoder.encoders[0]) is kind
