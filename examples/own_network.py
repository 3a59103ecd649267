"""Train with your own network: any `nn.Module` that turns observations [B, ...] into features [B, F].

Millpond adds the memory that `policy.core` names, the outputs for the actions, and the value. A network may also return the
pair (logits [B, actions], value [B]) and be the whole policy: see docs/policies.md.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import millpond
from ball import Ball
from millpond.envs.spec import ObservationSpec


class Features(nn.Module):
    """Two layers, with a connection around the second."""

    def __init__(self, observation: ObservationSpec, hidden_size: int) -> None:
        super().__init__()
        self.first = nn.Linear(observation.shape[0], hidden_size)
        self.second = nn.Linear(hidden_size, hidden_size)

    def forward(self, observation: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(observation))
        return hidden + torch.tanh(self.second(hidden))


def main(steps: int = 100_000) -> None:
    settings = [f"trainer.total_timesteps={steps}", "policy.core=gru", "policy.hidden_size=32"]
    run = millpond.train(env=Ball, policy=Features, run="own-network", overwrite=True, overrides=settings)
    print(millpond.load(run).network)
    print(f"return {millpond.evaluate(run, episodes=50).mean:.1f} of 32")


if __name__ == "__main__":
    main()
