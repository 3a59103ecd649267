"""The network that acts and learns: encoder -> core -> heads.

B sequences  T steps  H hidden  S state vectors (lstm 2, gru 1, none 0)
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from millpond.envs.spec import ActionSpec, ObservationSpec
from millpond.policies.acting import CompiledActor, is_compiled
from millpond.policies.core import Core, Feedforward
from millpond.policies.encoder import EncoderKind, ObservationEncoder
from millpond.policies.errors import PolicyError
from millpond.policies.gru import GRU
from millpond.policies.heads import Head, make_head
from millpond.policies.lstm import LSTM
from millpond.policies.normalizer import AllReduce
from millpond.policies.precision import is_fused_for
from millpond.policies.threads import in_threads, threads_for, torch_threads

CoreKind = Literal["lstm", "gru", "none"]
LEAST = 32  # observations for which another thread is worth waking
LEAST_IMAGES = 4


class Act(NamedTuple):
    """What the policy does now: action [B, *action], log_prob [B], value [B], state [B, S, H] after it."""

    action: Tensor
    log_prob: Tensor
    value: Tensor
    state: Tensor


class Unrolled(NamedTuple):
    """What the policy says of rows that were collected: each [B, T], with gradients."""

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
        self.value_trains_core = True  # else the value's loss trains its own weights of `output`, and nothing before

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Orthogonal throughout; the actions begin nearly uniform (gain 0.01), the value with gain 1."""
        self.encoder.reset_parameters(generator)
        self.core.reset_parameters(generator)
        nn.init.orthogonal_(self.output.weight[:-1], 0.01, generator=generator)
        nn.init.orthogonal_(self.output.weight[-1:], 1.0, generator=generator)
        nn.init.zeros_(self.output.bias)

    def initial_state(self, batch: int, device: torch.device | str = "cpu") -> Tensor:
        """Zeros [B, S, H]: the state at the beginning of an episode."""
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

        Draws from `generator`; `deterministic` takes the likeliest action instead. Vector actions are not clipped.
        """
        actor = None if deterministic else self.compiled_actor()
        if actor is not None and is_fused_for(state):
            seen, state = observation.contiguous().numpy(), state.contiguous()
            after = torch.empty_like(state)
            mask = None if action_mask is None else action_mask.contiguous().numpy()
            acted = actor.act(seen, state.numpy(), after.numpy(), mask, generator)
            action, log_prob, value = map(torch.from_numpy, acted)
            return Act(action, log_prob, value, after)
        numbers, state = self._step(observation, state)
        action, log_prob = self.head.sample(numbers[:, :-1], action_mask, generator, deterministic)
        return Act(action, log_prob, numbers[:, -1].float(), state)

    @torch.no_grad()
    def value(self, observation: Tensor, state: Tensor) -> Tensor:
        """The value [B] of being at `observation` with `state`; nothing changes."""
        value: Tensor = self._step(observation, state)[0][:, -1].float()
        return value

    def compiled_actor(self) -> CompiledActor | None:
        """What acts without torch, where that computes the same; good for as long as weights only change in place."""
        own = type(self).act is not Policy.act  # a subclass acts in its own way
        return CompiledActor(self) if not own and is_compiled(self) else None

    def least_for_a_thread(self) -> int:
        """Observations for which another thread is worth waking."""
        kinds = getattr(self.encoder, "kinds", ())  # an encoder of one's own need not have any
        return LEAST_IMAGES if "pixels" in kinds else LEAST

    def _step(self, observation: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The network's numbers [B, outputs + 1] and the state after it; on the CPU each thread takes a share of B."""
        device = observation.device.type
        if device != "cpu" or torch.compiler.is_compiling():
            return self._step_alone(observation, state)
        least = self.least_for_a_thread()
        if threads_for(len(observation), least) == 1:
            with torch_threads(1):
                return self._step_alone(observation, state)
        inference = torch.is_inference_mode_enabled()
        precision = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None

        def share(start: int, stop: int) -> tuple[Tensor, Tensor]:
            casting = nullcontext() if precision is None else torch.autocast(device, dtype=precision)
            with torch.inference_mode(inference), torch.no_grad(), casting:  # modes are each thread's own
                return self._step_alone(observation[start:stop], state[start:stop])

        numbers, after = zip(*in_threads(share, len(observation), least), strict=True)
        return torch.cat(numbers), torch.cat(after)

    def _step_alone(self, observation: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        hidden, after = self.core.step(self.encoder(observation), state)
        return self.output(hidden), after

    def unroll(
        self, observation: Tensor, state: Tensor, reset: Tensor, action: Tensor, *, action_mask: Tensor | None = None
    ) -> Unrolled:
        """Rows: observation [B, T, *obs], reset [B, T], action [B, T, *action], action_mask [B, T, sum of sizes].

        `state` [B, S, H] is what the first step began with. reset[b, t]: an episode began at t, so that the state is
        zeroed before step t is taken.
        """
        batch, steps = reset.shape
        # Time goes first from here on, so that each step of the core is one piece of memory. `Rows.sequences` lays
        # memory out like that already, so that nothing is moved here.
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
        """Take observations [N, *obs] into the running statistics, where the policy keeps any.

        Call it between iterations: in the middle of one, rows would no longer unroll to what was acted.
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
    """The policy for an environment. Its weights are drawn from `generator` (torch's default one without).

    `cell_kinds` is for grids whose environment does not say how many kinds of cells there are.
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
    """How many numbers are learned."""
    return sum(parameter.numel() for parameter in policy.parameters() if parameter.requires_grad)
