"""A custom policy for observations of several parts."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributions import Categorical

from millpond.envs.spec import ActionSpec, ObservationSpec
from millpond.policies import Act, Unrolled


class Parts(nn.Module):
    """Without memory; reads a Dict of `speed` (a float) and `kind` (three flags), and records the observations that it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.observed: list[dict[str, tuple[torch.dtype, tuple[int, ...]]]] = []

    def forward(self, observation: dict[str, torch.Tensor]) -> tuple[Categorical, torch.Tensor]:
        self.observed.append({name: (part.dtype, tuple(part.shape)) for name, part in observation.items()})
        out = self.layer(torch.cat([observation["speed"], observation["kind"].float()], -1))
        return Categorical(logits=out[..., :-1]), out[..., -1]

    def initial_state(self, batch: int, device: Any = "cpu") -> torch.Tensor:
        return torch.zeros(batch, 0, device=device)

    @torch.no_grad()
    def act(self, observation: Any, state: torch.Tensor, **_: Any) -> Act:
        choice, value = self(observation)
        action = choice.probs.argmax(-1)
        return Act(action.int(), choice.log_prob(action), value, state)

    @torch.no_grad()
    def value(self, observation: Any, state: torch.Tensor) -> torch.Tensor:
        return self(observation)[1]

    def unroll(
        self, observation: Any, state: Any, reset: Any, action: torch.Tensor, *, action_mask: Any = None
    ) -> Unrolled:
        choice, value = self(observation)
        return Unrolled(choice.log_prob(action), choice.entropy(), value)

    def update_normalizer(self, observation: Any, all_reduce: Any = None) -> None:
        self(observation)


BUILT: list[Parts] = []  # by `build_policy`, oldest first


def build_policy(observation: ObservationSpec, action: ActionSpec, **settings: object) -> Parts:
    BUILT.append(Parts())
    return BUILT[-1]
