"""Encoder of a whole observation: each part is read by an encoder of its kind, and the results are added.

    features = activation(sum over parts of encoder(part) + bias)

The sum equals one linear layer over the concatenated parts. With `layer_norm` (for Q-learning without target networks) the
sum is normalised before the activation, and so is the output of every convolution.

N observations  H hidden
"""

from __future__ import annotations

from math import prod
from typing import Literal

import torch
from torch import Tensor, nn

from millpond.envs.spec import ObservationSpec, Part, PartKind
from millpond.policies.encoders.grid import GridEncoder
from millpond.policies.encoders.pixels import PixelEncoder
from millpond.policies.encoders.tokens import TokenEncoder
from millpond.policies.encoders.vector import VectorEncoder
from millpond.policies.errors import PolicyError
from millpond.policies.normalizer import AllReduce, Normalizer
from millpond.policies.parts import PartReader

EncoderKind = Literal["auto", "grid", "tokens", "pixels", "vector"]
KINDS = ("auto", "grid", "tokens", "pixels", "vector")


def kind_of(part: Part, encoder: EncoderKind, alone: bool) -> PartKind:
    """Return the kind of encoder for a part.

    A requested kind applies to parts that are not plain vectors, and to a plain vector if it is the only part.
    """
    if encoder == "auto" or (part.kind == "vector" and encoder != "vector" and not alone):
        return part.kind
    return encoder


class ObservationEncoder(nn.Module):
    """Observations [N, *shape] -> features [N, H]."""

    def __init__(
        self,
        spec: ObservationSpec,
        hidden_size: int,
        encoder: EncoderKind,
        normalize: bool,
        cell_kinds: int,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        if encoder not in KINDS:
            raise PolicyError(f"policy.encoder={encoder!r} must be one of {', '.join(KINDS)}")
        self.readers: list[PartReader] = []
        self.encoders = nn.ModuleList()
        self.bias = nn.Parameter(torch.zeros(hidden_size))
        kinds = set()
        for part in spec.parts:
            kind = kind_of(part, encoder, alone=len(spec.parts) == 1)
            self.readers.append(PartReader(spec, part))
            self.encoders.append(_part_encoder(part, kind, hidden_size, normalize, cell_kinds, layer_norm))
            kinds.add(kind)
        self.kinds = frozenset(kinds)
        self.norm: nn.Module = nn.LayerNorm(hidden_size) if layer_norm else nn.Identity()
        # tanh is customary for PPO on plain vectors, ReLU on images and for Q-learning.
        tanh = kinds == {"vector"} and not layer_norm
        self.activation: nn.Module = nn.Tanh() if tanh else nn.ReLU(inplace=True)
        if normalize and not self.normalizers():
            raise PolicyError(
                f"policy.normalize_observations=true, but no part of the observation is a vector "
                f"({', '.join(f'{part.name}: {part.kind}' for part in spec.parts)}); set it to false"
            )

    def forward(self, observation: Tensor) -> Tensor:
        total: Tensor = self.bias
        for reader, encoder in zip(self.readers, self.encoders, strict=True):
            total = encoder(reader(observation)) + total
        features: Tensor = self.activation(self.norm(total))
        return features

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        nn.init.zeros_(self.bias)
        for encoder in self.encoders:
            encoder.reset_parameters(generator)  # type: ignore[operator]

    def normalizers(self) -> list[tuple[PartReader, Normalizer]]:
        """Return the normalised parts."""
        pairs = [
            (reader, getattr(encoder, "normalizer", None))
            for reader, encoder in zip(self.readers, self.encoders, strict=True)
        ]
        return [(reader, normalizer) for reader, normalizer in pairs if normalizer is not None]

    def update_normalizer(self, observation: Tensor, all_reduce: AllReduce | None) -> None:
        for reader, normalizer in self.normalizers():
            normalizer.update(reader(observation).flatten(1), all_reduce)


def _part_encoder(
    part: Part, kind: PartKind, hidden_size: int, normalize: bool, cell_kinds: int, layer_norm: bool
) -> nn.Module:
    if kind == "grid":
        return GridEncoder(part, hidden_size, cell_kinds)
    if kind == "tokens":
        return TokenEncoder(part, hidden_size)
    if kind == "pixels":
        return PixelEncoder(part, hidden_size, layer_norm)
    if kind == "vector":
        return VectorEncoder(part, hidden_size, Normalizer(prod(part.shape)) if normalize else None)
    raise PolicyError(f"observation part {part.name!r} has kind {kind!r}; it must be one of {', '.join(KINDS[1:])}")
