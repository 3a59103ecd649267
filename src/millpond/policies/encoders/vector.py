"""Encoder of plain numbers: one linear layer. N observations  D numbers  H hidden."""

from __future__ import annotations

from math import log, prod

import torch
from torch import Tensor, nn

from millpond.envs.spec import Part
from millpond.policies.normalizer import Normalizer
from millpond.policies.parts import torch_dtype

LOG_UNIT = log(16.0)  # maps a count of 15 without a known limit to 1


class VectorEncoder(nn.Module):
    """Numbers [N, ...] -> [N, H].

    Floats are used unchanged. Integers are divided by their largest value if the environment declares it; otherwise they
    become sign(x) log(1 + |x|) / log(16), so that counts of 1 and of 200 are both reasonable inputs. A normalizer
    replaces both.
    """

    def __init__(self, part: Part, hidden_size: int, normalizer: Normalizer | None) -> None:
        super().__init__()
        self.normalizer = normalizer
        self.floats = torch_dtype(part.dtype, part.name).is_floating_point
        self.high = 1.0 if part.dtype == "bool" else part.high
        self.linear = nn.Linear(prod(part.shape), hidden_size, bias=False)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        nn.init.orthogonal_(self.linear.weight, 2**0.5, generator=generator)

    def scaled(self, numbers: Tensor) -> Tensor:
        """Return the inputs of the linear layer [N, D]."""
        flat = numbers.reshape(numbers.shape[0], -1).to(self.linear.weight.dtype)
        if self.normalizer is not None:
            flat = self.normalizer(flat)
        elif not self.floats:
            flat = flat / self.high if self.high else flat.sign() * flat.abs().log1p() / LOG_UNIT
        return flat

    def forward(self, numbers: Tensor) -> Tensor:
        features: Tensor = self.linear(self.scaled(numbers))
        return features
