"""Images on the CPU in float32: the plain `PixelEncoder`, a few images at a time, by threads that share them.

Convolutions compute with channels last in memory, where oneDNN is fastest; a few images at a time, so that what one layer
writes is in the cache when the next one reads it. Images are stored as the bytes that they are: the backward pass of the
first convolution reads them again, which takes a thirtieth of the time of the convolutions, and a fourth of the memory.

N images, n of a block  C channels  P pixels  D numbers after the convolutions  H hidden
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from millpond.compiled import compiled_fast
from millpond.fast.limits import image_block, min_images_per_thread
from millpond.policies.encoders.pixels import PixelEncoder
from millpond.threads import in_threads, one_each

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
PIXELS_AT_ONCE = 64  # of all channels: they stay in the first-level cache


# ---- Reading images


@compiled_fast
def channels_last(images: Bytes, scale: np.float32, out: Floats) -> None:
    """images [N, C, P] -> out [N, P, C], times `scale`."""
    count, channels, pixels = images.shape
    if out.shape != (count, pixels, channels):
        raise ValueError("the output array has another shape than the images")
    for n in range(count):
        image, numbers = images[n], out[n]
        if channels == 4:  # the usual stack of frames; written out, so that it is compiled to vector instructions
            for p in range(pixels):
                numbers[p, 0] = np.float32(image[0, p]) * scale
                numbers[p, 1] = np.float32(image[1, p]) * scale
                numbers[p, 2] = np.float32(image[2, p]) * scale
                numbers[p, 3] = np.float32(image[3, p]) * scale
        else:
            for start in range(0, pixels, PIXELS_AT_ONCE):
                for c in range(channels):
                    for p in range(start, min(pixels, start + PIXELS_AT_ONCE)):
                        numbers[p, c] = np.float32(image[c, p]) * scale


def read_images(images: Tensor, scale: float) -> Tensor:
    """images [n, C, height, width] -> the same in float32, times `scale`, with channels last in memory."""
    if images.dtype not in (torch.uint8, torch.bool):
        return images.to(torch.float32).contiguous(memory_format=torch.channels_last) * scale
    count, channels, height, width = images.shape
    out = torch.empty(count, height, width, channels)
    stored = images.contiguous().view(torch.uint8).numpy().reshape(count, channels, height * width)
    channels_last(stored, np.float32(scale), out.numpy().reshape(count, height * width, channels))
    return out.permute(0, 3, 1, 2)


class FirstConvolution(torch.autograd.Function):
    """The first convolution of images [n, C, height, width], which are read again for the gradients of the weights."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, scale: float, layer: nn.Conv2d, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.images, ctx.scale, ctx.layer = images, scale, layer
        ctx.save_for_backward(weight)
        return layer(read_images(images, scale))  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[None, None, None, Tensor, Tensor]:
        (weight,), layer = ctx.saved_tensors, ctx.layer
        d_out = d_out.contiguous(memory_format=torch.channels_last)
        _, d_weight, d_bias = torch.ops.aten.convolution_backward(
            d_out,
            read_images(ctx.images, ctx.scale),
            weight,
            list(layer.bias.shape),
            layer.stride,
            layer.padding,
            layer.dilation,
            False,
            [0, 0],
            layer.groups,
            [False, True, True],
        )
        return None, None, None, d_weight, d_bias


# ---- oneDNN's operations, which torch does not use for layers in float32

OPERATIONS = ("_linear_pointwise", "_convolution_pointwise", "_reorder_linear_weight", "_reorder_convolution_weight")
HAS_ONEDNN: bool = torch.backends.mkldnn.is_available() and all(  # type: ignore[no-untyped-call]
    hasattr(torch.ops.mkldnn, name) for name in OPERATIONS
)


def product_transposed(a: Tensor, b: Tensor) -> Tensor:
    """a [m, k] @ b [n, k].T, in any memory layout.

    torch's own products are MKL's, which reach half of oneDNN's speed on processors of AMD with AVX-512.
    """
    if HAS_ONEDNN:
        return torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")  # type: ignore[no-any-return]
    return a @ b.t()


class FrozenPixels:
    """Weights of a PixelEncoder in the layout that oneDNN computes with, which takes longer to make than to act for a few."""

    def __init__(self, plain: PixelEncoder) -> None:
        self.scale, self.block = plain.scale, image_block(plain.image)
        self.layers = []
        for layer in plain.convolutions:
            if isinstance(layer, nn.Conv2d):
                sizes = list(layer.padding), list(layer.stride), list(layer.dilation), layer.groups
                weight = torch.ops.mkldnn._reorder_convolution_weight(layer.weight.detach().clone(), *sizes)
                assert layer.bias is not None
                self.layers.append((weight, layer.bias.detach().clone(), *sizes))
        self.linear = torch.ops.mkldnn._reorder_linear_weight(plain.linear.weight.detach().clone())

    def __call__(self, images: Tensor) -> Tensor:
        """Images [N, C, height, width] -> features [N, H]."""
        features = []
        for some in torch.split(images, self.block):
            outputs = read_images(some, self.scale)
            for layer in self.layers:
                outputs = torch.ops.mkldnn._convolution_pointwise(outputs, *layer, "relu", [], "")
            features.append(torch.ops.mkldnn._linear_pointwise(outputs.flatten(1), self.linear, None, "none", [], ""))
        return features[0] if len(features) == 1 else torch.cat(features)


# ---- The encoder


class _Block(NamedTuple):
    """Some images of a share, from `start` on, with the graph of their convolutions: outputs [n, channels, height, width]."""

    start: int
    outputs: Tensor


class _Share(NamedTuple):
    """One thread's images, after the forward pass."""

    start: int
    stop: int
    blocks: list[_Block]
    flat: Tensor  # [N, D], the outputs of all blocks
    features: Tensor  # [N, H]


class FastPixels(nn.Module):
    """A plain PixelEncoder's weights. Images [N, ...] -> features [N, H]."""

    def __init__(self, plain: PixelEncoder) -> None:
        super().__init__()
        self.plain = plain
        self.block = image_block(plain.image)
        self.min_per_thread = min_images_per_thread(plain.image)
        first, *self.others = list(plain.convolutions)[:-1]  # without nn.Flatten
        assert isinstance(first, nn.Conv2d)
        assert first.bias is not None
        self.first = first
        self.convolution_weights = list(plain.convolutions.parameters())
        self._frozen: FrozenPixels | None = None

    def freeze(self) -> None:
        """Pack the weights: until the next call, features without gradients are those of the weights as they are now."""
        if HAS_ONEDNN and all(isinstance(layer, nn.Conv2d | nn.ReLU) for layer in self.others):
            self._frozen = FrozenPixels(self.plain)

    def forward(self, image: Tensor) -> Tensor:
        images = image.view(-1, *self.plain.image)
        if not torch.is_grad_enabled():  # acting, where the caller shares observations out
            if self._frozen is not None:
                return self._frozen(images)
            return self._share(images, 0, len(images)).features
        weights = *self.convolution_weights, self.plain.linear.weight
        return SharedImages.apply(images, self, *weights)  # type: ignore[no-any-return, no-untyped-call]

    def _share(self, images: Tensor, start: int, stop: int) -> _Share:
        """Return the features of images start..stop-1, and the graphs of their convolutions if gradients are enabled."""
        count = stop - start
        flat, blocks = images.new_empty(count, self.plain.linear.in_features, dtype=torch.float32), []
        number = -(-count // self.block)
        for k in range(number):
            first, last = count * k // number, count * (k + 1) // number
            outputs = self._convolve(images[start + first : start + last])
            flat[first:last].view(outputs.shape).copy_(outputs.detach())
            if outputs.requires_grad:
                blocks.append(_Block(first, outputs))
        return _Share(start, stop, blocks, flat, product_transposed(flat, self.plain.linear.weight.detach()))

    def _convolve(self, images: Tensor) -> Tensor:
        first = self.first
        outputs: Tensor = FirstConvolution.apply(images, self.plain.scale, first, first.weight, first.bias)  # type: ignore[no-untyped-call]
        for layer in self.others:
            outputs = layer(outputs)
        return outputs

    def gradients(self, share: _Share, d_features: Tensor) -> list[Tensor]:
        """Return the gradients of the weights from those of a share's features [N, H]. The graphs are freed."""
        d_linear = product_transposed(d_features.t(), share.flat.t())
        d_flat = product_transposed(d_features, self.plain.linear.weight.detach().t())
        total: list[Tensor] = []
        while share.blocks:
            first, outputs = share.blocks.pop()
            d_outputs = d_flat[first : first + len(outputs)].view(outputs.shape)
            d_outputs = d_outputs.contiguous(memory_format=torch.channels_last)
            gradients = torch.autograd.grad(outputs, self.convolution_weights, d_outputs)
            total = _add(total, gradients) if total else list(gradients)
        return [*total, d_linear]


class SharedImages(torch.autograd.Function):
    """Features of images, by threads that share them."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, encoder: FastPixels, *weights: Tensor) -> Tensor:
        def share(start: int, stop: int) -> _Share:
            with torch.enable_grad():
                return encoder._share(images, start, stop)

        ctx.encoder = encoder
        ctx.shares = in_threads(share, len(images), encoder.min_per_thread)
        features = [one.features for one in ctx.shares]
        return features[0] if len(features) == 1 else torch.cat(features)

    @staticmethod
    def backward(ctx: Any, d_features: Tensor) -> tuple[Tensor | None, ...]:
        shares, ctx.shares = ctx.shares, None
        calls = (partial(ctx.encoder.gradients, one, d_features[one.start : one.stop]) for one in shares)
        total, *others = one_each(calls, len(shares))
        for gradients in others:  # in the order of the images, so that a run is reproducible
            total = _add(total, gradients)
        return None, None, *total


def _add(total: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[Tensor]:
    return [one.add_(more) for one, more in zip(total, gradients, strict=True)]


def freeze_images(encoder: nn.Module) -> None:
    """Pack the weights of the compiled encoders of images in an encoder, if it has any; see `FastPixels.freeze`."""
    for module in encoder.modules():
        if isinstance(module, FastPixels):
            module.freeze()


def image_shapes(policy: nn.Module) -> list[tuple[int, ...]]:
    """Return the shapes of the images that a policy reads: those of its plain PixelEncoders."""
    return [module.image for module in policy.modules() if type(module) is PixelEncoder]
