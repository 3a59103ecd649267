"""A plain network to compare with: what one writes in an afternoon, and pinned, so that figures can be compared.

    flat observation -> nn.Linear -> ReLU -> nn.LSTM -> nn.Linear (actions), nn.Linear (value)

Observations are read as bytes, or, where all of a grid's codes are known, one-hot. The recurrent layer is torch's own: it
cannot begin anew inside a row, so it does less than ours.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from millpond.bench.bare import Network
from millpond.bench.timing import Effort
from millpond.envs.spec import EnvSpec, Part
from millpond.policies.heads import make_head
from millpond.policies.parts import PartReader
from millpond.policies.policy import Act, Unrolled
from millpond.processor import can_use_bfloat16, claims_bfloat16, cpu_flags
from millpond.trainers.ppo.trainer import PPOTrainer

CORES: dict[str, Any] = {"lstm": nn.LSTM, "gru": nn.GRU}
LESS_CALLS, LESS_UPDATES = 12, 2  # there are four of them, and an iteration should not have to wait
LEAST_CALLS = 3  # where bfloat16 is emulated, ten times slower
STATES = {"lstm": 2, "gru": 1, "none": 0}


class PlainNetwork(nn.Module):
    """The same calls as a policy has; state [N, S, H] as there, with S = 2 for an LSTM."""

    def __init__(self, spec: EnvSpec, core: str, hidden_size: int, *, one_hot: bool) -> None:
        super().__init__()
        self.one_hot, self.hidden_size, self.states = one_hot, hidden_size, STATES[core]
        self.parts = [(part, PartReader(spec.observation, part)) for part in spec.observation.parts]
        inputs = sum(_numbers(part) * (_codes(part) if one_hot else 1) for part, _ in self.parts)
        self.encoder = nn.Linear(inputs, hidden_size)
        self.core = CORES[core](hidden_size, hidden_size) if core in CORES else nn.Linear(hidden_size, hidden_size)
        self.head: Any = make_head(spec.action)
        self.actions, self.values = nn.Linear(hidden_size, self.head.outputs), nn.Linear(hidden_size, 1)

    def initial_state(self, batch: int, device: torch.device | str = "cpu") -> Tensor:
        return torch.zeros(batch, self.states, self.hidden_size, device=device)

    def act(self, observation: Tensor, state: Tensor, *, action_mask: Tensor | None, generator: torch.Generator) -> Act:
        hidden, state = self._remember(self._features(observation)[None], state)
        action, log_prob = self.head.sample(self.actions(hidden[0]), action_mask, generator, False)
        return Act(action, log_prob, self.values(hidden[0]).squeeze(-1), state)

    def unroll(
        self, observation: Tensor, state: Tensor, reset: Tensor, action: Tensor, *, action_mask: Tensor | None = None
    ) -> Unrolled:
        batch, steps = reset.shape
        features = self._features(observation.transpose(0, 1).flatten(0, 1)).view(steps, batch, -1)
        hidden = self._remember(features, state)[0].transpose(0, 1)
        log_prob, entropy = self.head.evaluate(self.actions(hidden), action, action_mask)
        return Unrolled(log_prob, entropy, self.values(hidden).squeeze(-1))

    def _features(self, observation: Tensor) -> Tensor:
        flat = [self._read(part, reader(observation).flatten(1)) for part, reader in self.parts]
        return torch.relu(self.encoder(flat[0] if len(flat) == 1 else torch.cat(flat, -1)))

    def _read(self, part: Part, values: Tensor) -> Tensor:
        if self.one_hot and _codes(part) > 1:
            return functional.one_hot(values.long(), _codes(part)).flatten(1).float()
        return values.float() / 255 if part.dtype == "uint8" else values.float()

    def _remember(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        if self.states == 0:
            return torch.relu(self.core(features)), state
        parts = tuple(part.contiguous() for part in state.to(features.dtype).transpose(0, 1).unsqueeze(1))
        hidden, after = self.core(features, parts if self.states == 2 else parts[0])
        vectors = after if self.states == 2 else (after,)
        return hidden, torch.stack([vector[0] for vector in vectors], dim=1).float()


def plain_networks(trainer: PPOTrainer, effort: Effort) -> dict[str, Network]:
    """The plain networks of a recipe's sizes, by how they read observations and by precision (bfloat16 is autocast).

    Both precisions where the processor can do both: without instructions for bfloat16 it is by far the slower one, and the
    faster is what counts.
    """
    policy, spec, device = trainer.recipe.policy, trainer.vector.spec, trainer.device
    less = replace(effort, calls=min(effort.calls, LESS_CALLS), updates=min(effort.updates, LESS_UPDATES))
    least = replace(effort, calls=min(effort.calls, LEAST_CALLS), updates=1)
    on_cpu = device.type == "cpu"
    emulated = on_cpu and not claims_bfloat16(cpu_flags())
    precisions = ("float32",) if on_cpu and not can_use_bfloat16() else ("bfloat16", "float32")
    made = {}
    for reading in ("bytes", "one-hot"):
        one_hot = reading == "one-hot"
        if one_hot and not any(_codes(part) > 1 for part in spec.observation.parts):
            continue
        for precision in precisions:
            enabled = precision == "bfloat16"
            autocast = partial(torch.autocast, device.type, dtype=torch.bfloat16, enabled=enabled)
            plain = PlainNetwork(spec, policy.core, policy.hidden_size, one_hot=one_hot).to(device)
            made[f"{reading}, {precision}"] = Network(
                trainer, plain, least if enabled and emulated else less, autocast=autocast
            )
    return made


def _codes(part: Part) -> int:
    """Kinds of cells of a grid; 1 for what is not read one-hot."""
    return int(part.high) + 1 if part.kind == "grid" and part.high is not None else 1


def _numbers(part: Part) -> int:
    return int(torch.Size(part.shape).numel())
