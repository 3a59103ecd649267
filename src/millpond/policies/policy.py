"""The network that acts and learns: encoder -> core -> heads.

B sequences  T steps  H hidden  S state vectors (lstm 2, gru 1, mingru 1 per layer, none 0; twice as many with a separate
critic)
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
from millpond.policies.mingru import MinGRU
from millpond.policies.normalizer import AllReduce
from millpond.policies.value_scale import ValueScale

CoreKind = Literal["lstm", "gru", "mingru", "none"]


class Act(NamedTuple):
    """One step of acting: action [B, *action], log_prob [B], value [B], state [B, S, H] after the step."""

    action: Tensor
    log_prob: Tensor
    value: Tensor
    state: Tensor


class Unrolled(NamedTuple):
    """The current policy's view of collected rows: each [B, T], with gradients. `correction` is that of an auxiliary head."""

    log_prob: Tensor
    entropy: Tensor
    value: Tensor
    correction: Tensor | None = None


class Critic(nn.Module):
    """A separate network for the value: an encoder, a core and a layer that gives one number."""

    def __init__(self, encoder: ObservationEncoder, core: nn.Module, hidden_size: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.core: Core = core  # type: ignore[assignment]
        self.output = nn.Linear(hidden_size, 1)

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        self.encoder.reset_parameters(generator)
        self.core.reset_parameters(generator)
        nn.init.orthogonal_(self.output.weight, 1.0, generator=generator)
        nn.init.zeros_(self.output.bias)

    def step(self, observation: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the value [B, 1] and the state after the step."""
        hidden, after = self.core.step(self.encoder(observation), state)
        return self.output(hidden), after


class Policy(nn.Module):
    """An encoder, a core and heads. Unrolling stored rows gives what acting gave, to 1e-5 in float32."""

    def __init__(
        self,
        encoder: ObservationEncoder,
        core: nn.Module,
        head: nn.Module,
        hidden_size: int,
        critic: Critic | None = None,
        value_scale: ValueScale | None = None,
        correction: nn.Linear | None = None,
    ) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.encoder = encoder
        self.core: Core = core  # type: ignore[assignment]
        self.head: Head = head  # type: ignore[assignment]
        # The numbers of the actions' distribution, then the value, if there is no critic: one product for both.
        self.output = nn.Linear(hidden_size, self.head.outputs + (critic is None))
        self.critic = critic  # None: the value shares encoder and core
        self.value_scale = value_scale  # None: the value's layer gives values in units of the rewards
        self.correction = correction  # auxiliary head of a critic by gradient TD(lambda)
        self.value_trains_core = True  # else the value loss trains only the value's weights of `output`

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw orthogonal weights; actions start nearly uniform (gain 0.01), the value with gain 1.

        A value that is normalised starts at 0, whatever the unit of the rewards.
        """
        self.encoder.reset_parameters(generator)
        self.core.reset_parameters(generator)
        nn.init.orthogonal_(self.output.weight[: self.head.outputs], 0.01, generator=generator)
        nn.init.orthogonal_(self.output.weight[self.head.outputs :], 1.0, generator=generator)
        nn.init.zeros_(self.output.bias)
        if self.critic is not None:
            self.critic.reset_parameters(generator)
        if self.value_scale is not None:
            nn.init.zeros_(self.value_layer.weight[-1])
        if self.correction is not None:  # last, so that the other weights are those of a policy without it
            nn.init.zeros_(self.correction.weight)
            nn.init.zeros_(self.correction.bias)

    @property
    def value_layer(self) -> nn.Linear:
        """The layer whose last output is the value."""
        return self.output if self.critic is None else self.critic.output

    @property
    def states(self) -> int:
        """Number of state vectors of an agent."""
        return self.core.states * (1 if self.critic is None else 2)

    def initial_state(self, batch: int, device: torch.device | str = "cpu") -> Tensor:
        """Return zeros [B, S, H]: the state at the start of an episode. Those of a critic come last."""
        return torch.zeros(batch, self.states, self.hidden_size, dtype=torch.float32, device=device)

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
        return Act(action, log_prob, self.in_reward_units(numbers[:, -1].float()), state)

    @torch.no_grad()
    def value(self, observation: Tensor, state: Tensor) -> Tensor:
        """Return the value [B] of `observation` with `state`; nothing changes."""
        return self.in_reward_units(self.step(observation, state)[0][:, -1].float())

    def in_reward_units(self, value: Tensor) -> Tensor:
        """Return values in units of the rewards, from the value as the network gives it."""
        scaled: Tensor = value if self.value_scale is None else self.value_scale(value)
        return scaled

    def step(self, observation: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the network's outputs [B, outputs + 1] and the state after the step.

        The last output is the value, normalised if there is a `value_scale`.
        """
        own = self.core.states
        hidden, after = self.core.step(self.encoder(observation), state[:, :own])
        if self.critic is None:
            return self.output(hidden), after
        value, after_critic = self.critic.step(observation, state[:, own:])
        return torch.cat((self.output(hidden), value), -1), torch.cat((after, after_critic), 1)

    def unroll(
        self, observation: Tensor, state: Tensor, reset: Tensor, action: Tensor, *, action_mask: Tensor | None = None
    ) -> Unrolled:
        """Rows: observation [B, T, *obs], reset [B, T], action [B, T, *action], action_mask [B, T, sum of sizes].

        `state` [B, S, H] is the state before the first step. Where reset[b, t], an episode starts at t, and the state is
        zeroed before step t.
        """
        # Time comes first from here on, so that each step of the core is contiguous. Gathered rows have that layout in
        # memory already, so nothing is copied here.
        seen, reset, own = observation.transpose(0, 1).flatten(0, 1), reset.t().contiguous(), self.core.states
        hidden = _unroll(self.encoder, self.core, seen, state[:, :own], reset)
        of_head = self.head.outputs
        numbers, value = self.output(hidden).split((of_head, self.output.out_features - of_head), -1)
        if self.critic is not None:
            value = self.critic.output(_unroll(self.critic.encoder, self.critic.core, seen, state[:, own:], reset))
        elif not self.value_trains_core:
            value = nn.functional.linear(hidden.detach(), self.output.weight[-1:], self.output.bias[-1:])
        mask = None if action_mask is None else action_mask.transpose(0, 1)
        log_prob, entropy = self.head.evaluate(numbers, action.transpose(0, 1), mask)
        correction = None
        if self.correction is not None:
            seen_by_value = hidden if self.value_trains_core else hidden.detach()
            correction = self.correction(seen_by_value).squeeze(-1).t().float()
        return Unrolled(log_prob.t(), entropy.t(), self.in_reward_units(value.squeeze(-1).t().float()), correction)

    @torch.no_grad()
    def update_normalizer(self, observation: Tensor, all_reduce: AllReduce | None = None) -> None:
        """Add observations [N, *obs] to the running statistics, if the policy has any.

        Call it between iterations: in the middle of one, rows would no longer unroll as they were collected.
        `all_reduce` sums a tensor over ranks in place (torch.distributed.all_reduce).
        """
        self.encoder.update_normalizer(observation, all_reduce)
        if self.critic is not None:
            self.critic.encoder.update_normalizer(observation, all_reduce)

    @torch.no_grad()
    def update_value_scale(self, target: Tensor, alive: Tensor, all_reduce: AllReduce | None = None) -> Tensor:
        """Add an iteration's targets of the value to its statistics, and rescale its layer: no value changes.

            factor = deviation / new deviation
            w <- w * factor       b <- (b * deviation + mean - new mean) / new deviation

        The layer's gradients are from then on `factor` times what they were; return it, so that an optimizer's moments of
        this layer can follow. Between collecting and training rows unroll as before, to the rounding of float32.
        """
        scale, layer = self.value_scale, self.value_layer
        assert scale is not None
        mean, deviation = scale.mean.clone(), scale.deviation()
        scale.update(target, alive, all_reduce)
        factor = deviation / scale.deviation()
        weight, bias = layer.weight[-1], layer.bias[-1]
        weight.copy_(weight.to(factor.dtype) * factor)
        bias.copy_((bias.to(factor.dtype) * deviation + mean - scale.mean) / scale.deviation())
        return factor


def _unroll(encoder: nn.Module, core: Core, observation: Tensor, state: Tensor, reset: Tensor) -> Tensor:
    """observation [T * B, *obs], state [B, S, H], reset [T, B] -> hidden [T, B, H]"""
    return core.unroll(encoder(observation).view(*reset.shape, -1), state, reset)


def build_policy(
    observation: ObservationSpec,
    action: ActionSpec,
    *,
    encoder: EncoderKind = "auto",
    core: CoreKind = "lstm",
    hidden_size: int = 128,
    normalize_observations: bool = False,
    num_layers: int = 1,
    separate_critic: bool = False,
    normalize_values: bool = False,
    corrects_value: bool = False,
    cell_kinds: int = 16,
    generator: torch.Generator | None = None,
) -> Policy:
    """Build the policy for an environment. Its weights are drawn from `generator` (default: torch's global one).

    `num_layers` is for a MinGRU. `separate_critic` gives the value an encoder and a core of the same sizes;
    `normalize_values` normalises it by the running statistics of returns; `corrects_value` adds the auxiliary head of a
    critic by gradient TD(lambda). `cell_kinds` is for grids whose environment does not declare how many kinds of cells there
    are.
    """
    if hidden_size < 1:
        raise PolicyError(f"policy.hidden_size={hidden_size} must be at least 1")

    def network() -> tuple[ObservationEncoder, nn.Module]:
        reader = ObservationEncoder(observation, hidden_size, encoder, normalize_observations, cell_kinds)
        return reader, make_core(core, hidden_size, num_layers, reader.activation)

    critic = Critic(*network(), hidden_size) if separate_critic else None
    value_scale = ValueScale() if normalize_values else None
    correction = nn.Linear(hidden_size, 1) if corrects_value else None
    policy = Policy(*network(), make_head(action), hidden_size, critic, value_scale, correction)
    policy.reset_parameters(generator)
    return policy


def make_core(kind: CoreKind, hidden_size: int, num_layers: int, activation: nn.Module) -> nn.Module:
    """Build the memory of a policy; without memory it is one more hidden layer."""
    if num_layers != 1 and kind != "mingru":
        raise PolicyError(f"policy.num_layers={num_layers} is for policy.core=mingru; policy.core={kind} has one layer")
    if kind == "lstm":
        return LSTM(hidden_size)
    if kind == "gru":
        return GRU(hidden_size)
    if kind == "mingru":
        return MinGRU(hidden_size, num_layers)
    if kind == "none":
        return Feedforward(hidden_size, activation)
    raise PolicyError(f"policy.core={kind!r} must be one of lstm, gru, mingru, none")


def count_parameters(policy: nn.Module) -> int:
    """Return the number of trainable parameters."""
    return sum(parameter.numel() for parameter in policy.parameters() if parameter.requires_grad)
