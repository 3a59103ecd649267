"""The network that acts and learns: encoder -> core -> heads.

B sequences  T steps  H hidden  S state vectors (lstm 2, gru 1, none 0)
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from millpond.envs.spec import ActionSpec, ObservationSpec
from millpond.policies.cores import GRU, LSTM, Core, Feedforward
from millpond.policies.encoders import EncoderKind, ObservationEncoder
from millpond.policies.errors import PolicyError
from millpond.policies.heads import Head, make_head
from millpond.policies.normalizer import AllReduce

CoreKind = Literal["lstm", "gru", "none"]


class Act(NamedTuple):
    """One step of acting: action [B, *action], log_prob [B], value [B], state [B, S, H] after the step."""

    action: Tensor
    log_prob: Tensor
    value: Tensor
    state: Tensor


class Unrolled(NamedTuple):
    """The current policy's view of collected rows: each [B, T], with gradients."""

    log_prob: Tensor
    entropy: Tensor
    value: Tensor


class Policy(nn.Module):
    """An encoder, a core and heads. Unrolling stored rows gives what acting gave, to 1e-5 in float32."""

    def __init__(self, encoder: ObservationEncoder, core: nn.Module, head: nn.Module, hidden_size: int) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.encoder = encoder
        self.core: Core = core  # type: ignore[assignment]
        self.head: Head = head  # type: ignore[assignment]
        # The numbers of the actions' distribution, then the value: one product for both.
        self.output = nn.Linear(hidden_size, self.head.outputs + 1)
        self.value_trains_core = True  # else the value loss trains only the value's weights of `output`

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw orthogonal weights; actions start nearly uniform (gain 0.01), the value with gain 1."""
        self.encoder.reset_parameters(generator)
        self.core.reset_parameters(generator)
        nn.init.orthogonal_(self.output.weight[:-1], 0.01, generator=generator)
        nn.init.orthogonal_(self.output.weight[-1:], 1.0, generator=generator)
        nn.init.zeros_(self.output.bias)

    def initial_state(self, batch: int, device: torch.device | str = "cpu") -> Tensor:
        """Return zeros [B, S, H]: the state at the start of an episode."""
        return torch.zeros(batch, self.core.states, self.hidden_size, dtype=torch.float32, device=device)

    @torch.no_grad()
    def act(
        self,
        observation: Tensor,
        state: Tensor,
        *,
        action_mask: Tensor | None = None,
        generator: torch.Generator | None = None,
        deterministic: bool = False,
    ) -> Act:
        """observation [B, *obs], state [B, S, H], action_mask [B, sum of sizes] (true where allowed).

        Draws from `generator`; `deterministic` takes the most likely action instead. Vector actions are not clipped.
        """
        numbers, state = self.step(observation, state)
        action, log_prob = self.head.sample(numbers[:, :-1], action_mask, generator, deterministic)
        return Act(action, log_prob, numbers[:, -1].float(), state)

    @torch.no_grad()
    def value(self, observation: Tensor, state: Tensor) -> Tensor:
        """Return the value [B] of `observation` with `state`; nothing changes."""
        value: Tensor = self.step(observation, state)[0][:, -1].float()
        return value

    def step(self, observation: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the network's outputs [B, outputs + 1], the last being the value, and the state after the step."""
        hidden, after = self.core.step(self.encoder(observation), state)
        return self.output(hidden), after

    def unroll(
        self, observation: Tensor, state: Tensor, reset: Tensor, action: Tensor, *, action_mask: Tensor | None = None
    ) -> Unrolled:
        """Rows: observation [B, T, *obs], reset [B, T], action [B, T, *action], action_mask [B, T, sum of sizes].

        `state` [B, S, H] is the state before the first step. Where reset[b, t], an episode starts at t, and the state is
        zeroed before step t.
        """
        batch, steps = reset.shape
        # Time comes first from here on, so that each step of the core is contiguous. Gathered rows have that layout in
        # memory already, so nothing is copied here.
        features = self.encoder(observation.transpose(0, 1).flatten(0, 1)).view(steps, batch, -1)
        hidden = self.core.unroll(features, state, reset.t().contiguous())
        numbers, value = self.output(hidden).split((self.head.outputs, 1), -1)
        if not self.value_trains_core:
            value = nn.functional.linear(hidden.detach(), self.output.weight[-1:], self.output.bias[-1:])
        mask = None if action_mask is None else action_mask.transpose(0, 1)
        log_prob, entropy = self.head.evaluate(numbers, action.transpose(0, 1), mask)
        return Unrolled(log_prob.t(), entropy.t(), value.squeeze(-1).t().float())

    @torch.no_grad()
    def update_normalizer(self, observation: Tensor, all_reduce: AllReduce | None = None) -> None:
        """Add observations [N, *obs] to the running statistics, if the policy has any.

        Call it between iterations: in the middle of one, rows would no longer unroll as they were collected.
        `all_reduce` sums a tensor over ranks in place (torch.distributed.all_reduce).
        """
        self.encoder.update_normalizer(observation, all_reduce)


def build_policy(
    observation: ObservationSpec,
    action: ActionSpec,
    *,
    encoder: EncoderKind = "auto",
    core: CoreKind = "lstm",
    hidden_size: int = 128,
    normalize_observations: bool = False,
    cell_kinds: int = 16,
    generator: torch.Generator | None = None,
) -> Policy:
    """Build the policy for an environment. Its weights are drawn from `generator` (default: torch's global one).

    `cell_kinds` is for grids whose environment does not declare how many kinds of cells there are.
    """
    if hidden_size < 1:
        raise PolicyError(f"policy.hidden_size={hidden_size} must be at least 1")
    reader = ObservationEncoder(observation, hidden_size, encoder, normalize_observations, cell_kinds)
    policy = Policy(reader, _make_core(core, hidden_size, reader.activation), make_head(action), hidden_size)
    policy.reset_parameters(generator)
    return policy


def _make_core(kind: CoreKind, hidden_size: int, activation: nn.Module) -> nn.Module:
    if kind == "lstm":
        return LSTM(hidden_size)
    if kind == "gru":
        return GRU(hidden_size)
    if kind == "none":
        return Feedforward(hidden_size, activation)
    raise PolicyError(f"policy.core={kind!r} must be one of lstm, gru, none")


def count_parameters(policy: nn.Module) -> int:
    """Return the number of trainable parameters."""
    return sum(parameter.numel() for parameter in policy.parameters() if parameter.requires_grad)
