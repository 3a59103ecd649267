"""Encoder of images: convolutions. N observations. Shapes have channels first; in memory they are last on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from millpond.envs.spec import Part
from millpond.policies.errors import PolicyError
from millpond.policies.parts import torch_dtype
from millpond.sizes import convolutions


class ChannelNorm(nn.Module):
    """LayerNorm over the channels of each place of an image [N, C, height, width], and over nothing else."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, image: Tensor) -> Tensor:
        normal: Tensor = self.norm(image.movedim(1, -1))
        return normal.movedim(-1, 1)


class PixelEncoder(nn.Module):
    """Images [N, channels, height, width] or [N, height, width] -> [N, H].

    From 36 pixels per side: the three convolutions of Mnih et al. (2015). Below that, one of 16 filters of 3x3, as for
    MinAtar (Young and Tian, 2019). Integers are divided by their largest value: 255 for bytes, or the value that the
    environment declares. `layer_norm` normalises over the channels after each convolution.
    """

    def __init__(self, part: Part, hidden_size: int, layer_norm: bool = False) -> None:
        super().__init__()
        if len(part.shape) not in (2, 3) or min(part.shape[-2:]) < 3:
            raise PolicyError(
                f"observation part {part.name!r} has shape {part.shape}; pixels must be (channels, height, width) or "
                "(height, width) with at least 3 pixels per side; set policy.encoder to vector to read it as plain numbers"
            )
        dtype = torch_dtype(part.dtype, part.name)
        high = part.high or (1.0 if dtype == torch.bool or dtype.is_floating_point else 255.0)
        self.scale = 1.0 / high
        self.image = (1, *part.shape) if len(part.shape) == 2 else part.shape
        layers: list[nn.Module] = []
        for size in convolutions(self.image):
            layers.append(nn.Conv2d(size.channels, size.filters, size.side, stride=size.stride))
            if layer_norm:
                layers.append(ChannelNorm(size.filters))
            layers.append(nn.ReLU(inplace=True))
        self.convolutions = nn.Sequential(*layers, nn.Flatten())
        self.linear = nn.Linear(size.outputs, hidden_size, bias=False)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        for layer in [*self.convolutions, self.linear]:
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.orthogonal_(layer.weight, 2**0.5, generator=generator)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def forward(self, image: Tensor) -> Tensor:
        scaled = image.view(-1, *self.image).to(self.linear.weight.dtype) * self.scale
        if image.device.type == "cpu":  # where convolutions of this layout are faster, and LayerNorm copies nothing
            scaled = scaled.contiguous(memory_format=torch.channels_last)
        features: Tensor = self.linear(self.convolutions(scaled))
        return features
