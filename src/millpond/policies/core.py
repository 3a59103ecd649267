"""What every core is: memory between the encoder and the heads. Also the core without memory.

B sequences, T steps, H hidden, S state vectors (lstm 2, gru 1, none 0).
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn


class Core(Protocol):
    """`step` acts, without gradients; `unroll` learns, one row of T steps at once."""

    states: int

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """First weights, drawn from `generator`."""

    def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """features [B, H], state [B, S, H] -> hidden [B, H], state [B, S, H]."""

    def unroll(self, features: Tensor, state: Tensor, reset: Tensor) -> Tensor:
        """features [T, B, H], state [B, S, H], reset [T, B] -> hidden [T, B, H]; where `reset`, the state is zeroed
        before the step is taken."""


class Feedforward(nn.Module):
    """No memory: one more hidden layer, so that the heads see more than a linear map of the observation."""

    states = 0

    def __init__(self, hidden_size: int, activation: nn.Module) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, hidden_size)
        self.activation = activation

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        nn.init.orthogonal_(self.linear.weight, 2**0.5, generator=generator)
        nn.init.zeros_(self.linear.bias)

    def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return self.activation(self.linear(features)), state

    def unroll(self, features: Tensor, state: Tensor, reset: Tensor) -> Tensor:
        hidden: Tensor = self.activation(self.linear(features))
        return hidden
