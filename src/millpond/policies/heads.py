"""From H features to actions: choices (one or several) and vectors.

All of it is in float32, whatever the precision of the network: log-probabilities are compared between rollout and
learning, and differences of 1e-3 would pass for a change of the policy.

N steps  A logits, the sizes of all choices together
"""

from __future__ import annotations

from math import log, pi
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from millpond.envs.spec import ActionSpec
from millpond.policies.choice_kernels import draw_choices, weigh_choices, weigh_choices_backward
from millpond.policies.errors import PolicyError
from millpond.policies.precision import is_fused_for, is_fused_now

EVERYTHING = np.zeros((0, 0), np.bool_)  # is allowed


def precise(numbers: Tensor) -> Tensor:
    """float32, or float64 where that is what came."""
    return numbers if numbers.dtype == torch.float64 else numbers.float()


class Head(Protocol):
    """Turns `outputs` numbers a step into a distribution over actions."""

    outputs: int

    def sample(
        self, numbers: Tensor, mask: Tensor | None, generator: torch.Generator | None, deterministic: bool
    ) -> tuple[Tensor, Tensor]:
        """numbers [N, outputs] -> action [N, *action], log_prob [N]."""

    def evaluate(self, numbers: Tensor, action: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """numbers [..., outputs], action [..., *action] -> log_prob [...], entropy [...]."""


class ChoiceHead(nn.Module):
    """One choice, or several at once that are independent given the features.

    log pi(a) = sum over choices of log softmax(logits)[a], and entropies add up likewise. An action that the mask
    [N, A] forbids has probability 0, and adds nothing to the entropy.
    """

    def __init__(self, spec: ActionSpec) -> None:
        super().__init__()
        if not spec.sizes or min(spec.sizes) < 1:
            raise PolicyError(f"{spec.kind} actions have sizes {spec.sizes}; each must be at least 1")
        self.sizes = spec.sizes
        self.choice_sizes = np.array(spec.sizes, np.int64)
        self.outputs = sum(spec.sizes)
        self.several = spec.kind == "multidiscrete"

    def _log_probs(self, logits: Tensor, mask: Tensor | None) -> list[Tensor]:
        """Normalised logits of each choice."""
        logits = precise(logits)
        if mask is not None:
            # The least finite number and not -inf: where all were forbidden, -inf would become NaN.
            logits = logits.masked_fill(~mask, torch.finfo(logits.dtype).min)
        return [choice.log_softmax(-1) for choice in torch.split(logits, list(self.sizes), -1)]

    def sample(
        self, numbers: Tensor, mask: Tensor | None, generator: torch.Generator | None, deterministic: bool
    ) -> tuple[Tensor, Tensor]:
        if not deterministic and is_fused_now(numbers):
            return self._draw_fused(numbers, mask, generator)
        actions, chosen = [], []
        for choice in self._log_probs(numbers, mask):
            if deterministic:
                picked = choice.argmax(-1, keepdim=True)
            else:
                # The first of independent exponential clocks with rates p is k with probability p_k.
                clocks = torch.empty_like(choice).exponential_(generator=generator)
                picked = (choice.exp() / clocks).argmax(-1, keepdim=True)
            actions.append(picked)
            chosen.append(choice.gather(-1, picked).squeeze(-1))
        action = torch.cat(actions, -1) if self.several else actions[0].squeeze(-1)
        return action.int(), sum(chosen[1:], start=chosen[0])

    def _draw_fused(
        self, logits: Tensor, mask: Tensor | None, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        steps, choices = len(logits), len(self.sizes)
        draws = torch.rand(steps, choices, dtype=torch.float64, generator=generator)
        action, log_prob = torch.empty(steps, choices, dtype=torch.int32), torch.empty(steps)
        allowed = EVERYTHING if mask is None else mask.numpy()
        draw_choices(logits.numpy(), allowed, self.choice_sizes, draws.numpy(), action.numpy(), log_prob.numpy())
        return action if self.several else action.view(steps), log_prob

    def evaluate(self, numbers: Tensor, action: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        logits, taken = precise(numbers), action if self.several else action.unsqueeze(-1)
        if is_fused_for(logits) and not torch.compiler.is_compiling():
            return _Weighed.apply(logits, taken, mask, self.choice_sizes)  # type: ignore[no-any-return, no-untyped-call]
        choices = self._log_probs(logits, mask)
        chosen = [choice.gather(-1, taken[..., k : k + 1].long()).squeeze(-1) for k, choice in enumerate(choices)]
        spreads = [-(choice.exp() * choice).sum(-1) for choice in choices]
        return sum(chosen[1:], start=chosen[0]), sum(spreads[1:], start=spreads[0])


class _Weighed(torch.autograd.Function):
    """`weigh_choices` as one step of torch's graph: in plain torch it is a dozen, forth and back."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, action: Tensor, mask: Tensor | None, sizes: Any) -> tuple[Tensor, Tensor]:
        flat = logits.detach().reshape(-1, logits.shape[-1])
        ctx.sizes, ctx.shape = sizes, logits.shape
        ctx.taken = action.reshape(-1, len(sizes)).int().numpy()
        ctx.allowed = EVERYTHING if mask is None else mask.reshape(flat.shape).numpy()
        ctx.log_probs, ctx.probs = np.empty(flat.shape, np.float32), np.empty(flat.shape, np.float32)
        log_prob, entropy = torch.empty(logits.shape[:-1]), torch.empty(logits.shape[:-1])
        found = log_prob.numpy().reshape(-1), entropy.numpy().reshape(-1)
        weigh_choices(flat.numpy(), ctx.allowed, sizes, ctx.taken, *found, ctx.log_probs, ctx.probs)
        return log_prob, entropy

    @staticmethod
    def backward(ctx: Any, d_log_prob: Tensor, d_entropy: Tensor) -> tuple[Tensor, None, None, None]:
        d_logits = torch.empty(ctx.shape)
        weigh_choices_backward(
            ctx.log_probs,
            ctx.probs,
            ctx.allowed,
            ctx.sizes,
            ctx.taken,
            d_log_prob.reshape(-1).numpy(),
            d_entropy.reshape(-1).numpy(),
            d_logits.numpy().reshape(ctx.probs.shape),
        )
        return d_logits, None, None, None


class GaussianHead(nn.Module):
    """A vector, each of whose D numbers is normal with a mean from the features and a deviation of its own.

        action = centre + reach * (mean + exp(log_deviation) * noise)

    centre and reach describe the range [low, high], so that the same weights mean the same in any unit; they are 0 and 1
    where it is not bounded. Actions are not squashed, and not clipped here: the log-probability is that of the number
    drawn, and whoever steps the env clips a copy to [low, high]. Storing what was clipped would make the stored
    log-probability that of another action.
    """

    centre: Tensor
    reach: Tensor

    def __init__(self, spec: ActionSpec) -> None:
        super().__init__()
        if len(spec.shape) != 1 or spec.shape[0] < 1 or not len(spec.low) == len(spec.high) == spec.shape[0]:
            raise PolicyError(
                f"continuous actions have shape {spec.shape}, {len(spec.low)} lows and {len(spec.high)} highs; "
                "there must be one axis, and one low and one high for each number"
            )
        self.outputs = spec.shape[0]
        self.log_deviation = nn.Parameter(torch.zeros(self.outputs))
        low, high = torch.tensor(spec.low), torch.tensor(spec.high)
        bounded = low.isfinite() & high.isfinite() & (high > low)
        self.register_buffer("centre", ((low + high) / 2).where(bounded, torch.zeros(())), persistent=False)
        self.register_buffer("reach", ((high - low) / 2).where(bounded, torch.ones(())), persistent=False)

    def _log_prob(self, mean: Tensor, action: Tensor) -> Tensor:
        spread = self.log_deviation + self.reach.log()
        away = (action - mean) * (-spread).exp()
        return -0.5 * away.square().sum(-1) - spread.sum() - 0.5 * log(2 * pi) * self.outputs

    def sample(
        self, numbers: Tensor, mask: Tensor | None, generator: torch.Generator | None, deterministic: bool
    ) -> tuple[Tensor, Tensor]:
        mean = torch.addcmul(self.centre, precise(numbers), self.reach)
        if deterministic:
            action = mean
        else:
            noise = torch.empty_like(mean).normal_(generator=generator)
            action = torch.addcmul(mean, noise, self.log_deviation.exp() * self.reach)
        return action, self._log_prob(mean, action)

    def evaluate(self, numbers: Tensor, action: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        mean = torch.addcmul(self.centre, precise(numbers), self.reach)
        each = self.log_deviation + self.reach.log() + 0.5 * log(2 * pi) + 0.5
        return self._log_prob(mean, action), each.sum().expand(mean.shape[:-1])


def make_head(spec: ActionSpec) -> ChoiceHead | GaussianHead:
    return GaussianHead(spec) if spec.kind == "continuous" else ChoiceHead(spec)
