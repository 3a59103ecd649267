"""Epsilon-greedy exploration: a schedule over a counter that a reset sets to 0."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from millpond.schedules import linear


class Epsilon:
    """linear(reset_to, end, over)(since_reset). The owner chooses the unit of `over` and `advance`."""

    def __init__(self, start: float, end: float, *, over: float) -> None:
        self.reset_to, self.end, self.over = start, end, over
        self.since_reset = 0

    @property
    def value(self) -> float:
        return linear(self.reset_to, self.end, over=self.over)(self.since_reset)

    def advance(self, count: int) -> None:
        self.since_reset += count

    def reset(self, to: float | None = None) -> None:
        """Restart the decay, from `to`, or from the value of the last start."""
        self.reset_to = self.reset_to if to is None else to
        self.since_reset = 0

    def state_dict(self) -> dict[str, Any]:
        return {"reset_to": self.reset_to, "end": self.end, "over": self.over, "since_reset": self.since_reset}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.reset_to, self.end, self.over = float(state["reset_to"]), float(state["end"]), float(state["over"])
        self.since_reset = int(state["since_reset"])


def epsilon_greedy(q: Tensor, epsilon: float, generator: torch.Generator) -> Tensor:
    """Return actions [N] int64: the best of Q [N, actions], or, with probability epsilon, a random one."""
    count, actions = q.shape
    explore = torch.rand(count, generator=generator, device=q.device) < epsilon
    drawn = torch.randint(actions, (count,), generator=generator, device=q.device)
    return torch.where(explore, drawn, q.argmax(-1))
