"""The network that acts: encoders -> core -> heads.

B sequences  T steps  H hidden  S state vectors of the core (lstm 2, gru 1, none 0)
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from millpond.envs.dotted import load_dotted
from millpond.envs.spec import ActionSpec, ObservationSpec, Part
from millpond.policies.core import Feedforward
from millpond.policies.errors import PolicyError
from millpond.policies.grid import GridEncoder
from millpond.policies.gru import GRU
from millpond.policies.heads import make_head
from millpond.policies.lstm import LSTM
from millpond.policies.normalizer import Normalizer
from millpond.policies.parts import PartReader
from millpond.policies.pixels import PixelEncoder
from millpond.policies.vector import VectorEncoder

CELL_KINDS = 16


@dataclass(frozen=True)
class Act:
    """What `act` gives, one row a sequence."""

    action: Tensor
    log_prob: Tensor
    value: Tensor
    state: Tensor


@dataclass(frozen=True)
class Unrolled:
    """What `unroll` gives, each [B, T]."""

    log_prob: Tensor
    entropy: Tensor
    value: Tensor


class Encoder(nn.Module):
    """All parts of an observation, each read in its own way, summed into H features."""

    def __init__(self, observation: ObservationSpec, encoder: str, hidden_size: int, normalize: bool) -> None:
        super().__init__()
        self.readers = [PartReader(observation, part) for part in observation.parts]
        self.normalizers = nn.ModuleDict()
        encoders = []
        for index, part in enumerate(observation.parts):
            kind = part.kind if encoder == "auto" or len(observation.parts) > 1 else encoder
            normalizer = None
            if normalize and kind == "vector":
                normalizer = self.normalizers[str(index)] = Normalizer(prod(part.shape))
            encoders.append(_part_encoder(part, kind, hidden_size, normalizer))
        self.encoders = nn.ModuleList(encoders)
        self.bias = nn.Parameter(torch.zeros(hidden_size))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        for encoder in self.encoders:
            encoder.reset_parameters(generator)  # type: ignore[operator]
        nn.init.zeros_(self.bias)

    def forward(self, observation: Tensor) -> Tensor:
        """[N, *shape] -> [N, H]"""
        features = self.bias
        for reader, encoder in zip(self.readers, self.encoders, strict=True):
            features = features + encoder(reader(observation))
        return torch.relu(features)

    def update_normalizers(self, observation: Tensor) -> None:
        for index, normalizer in self.normalizers.items():
            normalizer.update(self.readers[int(index)](observation).flatten(1))  # type: ignore[operator]


def _part_encoder(part: Part, kind: str, hidden_size: int, normalizer: Normalizer | None) -> nn.Module:
    if kind == "grid":
        return GridEncoder(part, hidden_size, CELL_KINDS)
    if kind == "pixels":
        return PixelEncoder(part, hidden_size)
    if kind == "vector":
        return VectorEncoder(part, hidden_size, normalizer)
    raise PolicyError(f"observation part {part.name!r} is of kind {kind!r}; encoders are grid, pixels and vector")


class Policy(nn.Module):
    """Acts one step at a time, and learns over whole rows from the states that acting stored."""

    def __init__(
        self,
        observation: ObservationSpec,
        action: ActionSpec,
        *,
        encoder: str = "auto",
        core: str = "lstm",
        hidden_size: int = 128,
        normalize_observations: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.encoder = Encoder(observation, encoder, hidden_size, normalize_observations)
        self.core = _make_core(core, hidden_size)
        self.actor = make_head(action, hidden_size)
        self.critic = nn.Linear(hidden_size, 1)
        for module in (self.encoder, self.core, self.actor):
            module.reset_parameters(generator)
        nn.init.orthogonal_(self.critic.weight, 1.0, generator=generator)
        nn.init.zeros_(self.critic.bias)

    def initial_state(self, batch: int, device: torch.device | str) -> Tensor:
        """The state before an episode's first step: zeros [B, S, H]."""
        states = int(self.core.states)
        return torch.zeros(batch, states, self.hidden_size if states else 0, device=device)

    def act(
        self,
        observation: Tensor,
        state: Tensor,
        *,
        action_mask: Tensor | None = None,
        generator: torch.Generator | None = None,
        deterministic: bool = False,
    ) -> Act:
        """observation [B, *obs], state [B, S, H]"""
        hidden, after = self.core.step(self.encoder(observation), state)
        action, log_prob = self.actor.act(hidden, action_mask, generator, deterministic)
        return Act(action, log_prob, self.critic(hidden)[:, 0].float(), after)

    def value(self, observation: Tensor, state: Tensor) -> Tensor:
        """Values [B] of observations, from states that stay as they are."""
        hidden, _ = self.core.step(self.encoder(observation), state)
        value: Tensor = self.critic(hidden)[:, 0].float()
        return value

    def unroll(
        self, observation: Tensor, state: Tensor, reset: Tensor, action: Tensor, *, action_mask: Tensor | None = None
    ) -> Unrolled:
        """observation [B, T, *obs], state [B, S, H], reset [B, T] (the state is zeroed before that step), action [B, T, *]"""
        batch, steps = reset.shape
        in_time = observation.transpose(0, 1).flatten(0, 1)
        features = self.encoder(in_time).view(steps, batch, -1)
        hidden = self.core.unroll(features, state, reset.t()).flatten(0, 1)
        mask = None if action_mask is None else action_mask.transpose(0, 1).flatten(0, 1)
        scores = self.actor.score(hidden, action.transpose(0, 1).flatten(0, 1), mask)
        value = self.critic(hidden)[:, 0].float()
        return Unrolled(*(x.view(steps, batch).t() for x in (scores.log_prob, scores.entropy, value)))

    def update_normalizer(self, observation: Tensor) -> None:
        """Take observations [N, *obs] into the running statistics; between iterations only."""
        self.encoder.update_normalizers(observation)


def _make_core(core: str, hidden_size: int) -> Any:
    if core == "none":
        return Feedforward(hidden_size, nn.Tanh())
    return {"lstm": LSTM, "gru": GRU}[core](hidden_size)


def build_policy(observation: ObservationSpec, action: ActionSpec, **options: Any) -> Policy:
    """The policy that a config describes."""
    return Policy(observation, action, **options)


def load_policy_factory(path: str) -> Any:
    """A function of the user's own, by its dotted path, with the arguments of `build_policy`."""
    return load_dotted(path)


def count_parameters(policy: nn.Module) -> int:
    return sum(parameter.numel() for parameter in policy.parameters())
