"""From a stored observation to H features: every part is read by an encoder of its kind, and the results are added.

    features = activation(sum over parts of encoder(part) + bias)

Adding what the parts give is the same as one linear layer over all that they contain. With `layer_norm` (for
Q-learning without target networks) the sum is normalised before the activation, and so is every convolution's output.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from millpond.envs.spec import ObservationSpec, Part, PartKind
from millpond.policies import products
from millpond.policies.compiled_encoders import CompiledDense, CompiledEncoder, CompiledTokens
from millpond.policies.dense import dense, is_dense_fused
from millpond.policies.errors import PolicyError
from millpond.policies.grid import GridEncoder
from millpond.policies.normalizer import AllReduce, Normalizer
from millpond.policies.parts import PartReader
from millpond.policies.pixels import PixelEncoder
from millpond.policies.precision import is_fused_for
from millpond.policies.tokens import TokenEncoder
from millpond.policies.vector import VectorEncoder

EncoderKind = Literal["auto", "grid", "tokens", "pixels", "vector"]
KINDS = ("auto", "grid", "tokens", "pixels", "vector")


def kind_of(part: Part, encoder: EncoderKind, alone: bool) -> PartKind:
    """How a part is read. A kind that was asked for is for what is not a plain vector, unless that is all there is."""
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
        # tanh is customary for PPO on plain vectors, ReLU on what is looked at and for Q-learning.
        tanh = kinds == {"vector"} and not layer_norm
        self.activation: nn.Module = nn.Tanh() if tanh else nn.ReLU(inplace=True)
        self.one_vector = tanh and len(self.encoders) == 1  # a linear layer and tanh, and nothing else
        if normalize and not self.normalizers():
            raise PolicyError(
                f"policy.normalize_observations=true, but no part of the observation is a vector "
                f"({', '.join(f'{part.name}: {part.kind}' for part in spec.parts)}); set it to false"
            )

    def normalizers(self) -> list[tuple[PartReader, Normalizer]]:
        """The parts that are normalised."""
        pairs = zip(self.readers, self.encoders, strict=True)
        found = [(reader, getattr(encoder, "normalizer", None)) for reader, encoder in pairs]
        return [(reader, normalizer) for reader, normalizer in found if normalizer is not None]

    def update_normalizer(self, observation: Tensor, all_reduce: AllReduce | None) -> None:
        for reader, normalizer in self.normalizers():
            normalizer.update(reader(observation).flatten(1), all_reduce)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        nn.init.zeros_(self.bias)
        for encoder in self.encoders:
            encoder.reset_parameters(generator)  # type: ignore[operator]

    def compiled(self) -> CompiledEncoder | None:
        """What computes the same in compiled calls, where there is such: for plain numbers, and for tokens alone."""
        if not self.is_compiled():
            return None
        encoder = self.encoders[0]
        if isinstance(encoder, TokenEncoder):
            return CompiledTokens(encoder, self.bias)
        assert isinstance(encoder, VectorEncoder)
        return CompiledDense(encoder.linear.weight, self.bias)

    def is_compiled(self) -> bool:
        own = type(self).forward is not ObservationEncoder.forward  # a subclass reads in its own way
        whole = len(self.encoders) == 1 and is_fused_for(self.bias) and isinstance(self.norm, nn.Identity)
        if own or not whole or not products.SGEMM:
            return False
        encoder = self.encoders[0]
        if isinstance(encoder, TokenEncoder):
            return isinstance(self.activation, nn.ReLU)
        if not (isinstance(encoder, VectorEncoder) and self.one_vector):
            return False
        return self.readers[0].stored == torch.float32 and encoder.floats and encoder.normalizer is None

    def forward(self, observation: Tensor) -> Tensor:
        if self.one_vector:
            encoder = self.encoders[0]
            assert isinstance(encoder, VectorEncoder)
            numbers = encoder.scaled(self.readers[0](observation)).contiguous()
            if is_dense_fused(numbers):
                return dense(numbers, encoder.linear.weight, self.bias)
        total: Tensor = self.bias
        for reader, encoder in zip(self.readers, self.encoders, strict=True):
            total = encoder(reader(observation)) + total
        features: Tensor = self.activation(self.norm(total))
        return features


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
        return VectorEncoder(part, hidden_size, Normalizer(_numbers(part)) if normalize else None)
    raise PolicyError(f"observation part {part.name!r} has kind {kind!r}; it must be one of {', '.join(KINDS[1:])}")


def _numbers(part: Part) -> int:
    return part.nbytes // torch.empty((), dtype=getattr(torch, part.dtype)).element_size()
