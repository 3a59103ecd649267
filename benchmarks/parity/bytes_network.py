"""PufferLib's default encoder: one linear layer and a GELU over all bytes of an observation, as they are."""

from __future__ import annotations

from math import prod

from torch import Tensor, nn

from millpond.envs.spec import ObservationSpec


class BytesNetwork(nn.Module):
    """Bytes [N, ...] -> features [N, hidden_size]."""

    def __init__(self, observation: ObservationSpec, *, hidden_size: int) -> None:
        super().__init__()
        (part,) = observation.parts
        self.linear = nn.Linear(prod(part.shape), hidden_size)
        nn.init.orthogonal_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, numbers: Tensor) -> Tensor:
        features: Tensor = nn.functional.gelu(self.linear(numbers.flatten(1).float()))
        return features
