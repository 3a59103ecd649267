"""Heads: from the network's outputs to actions: choices (one or several), vectors, or both.

Everything is computed in float32, whatever the precision of the network: log-probabilities are compared between rollout and
learning, and differences of 1e-3 would look like a change of the policy.

N steps  A logits, the sizes of all choices together  C choices
"""

from __future__ import annotations

from math import log, pi
from typing import Protocol

import torch
from torch import Tensor, nn

from millpond.devices import precise_dtype
from millpond.envs.spec import ActionSpec
from millpond.policies.device_steps import draw_choices
from millpond.policies.errors import PolicyError


def at_least_float32(outputs: Tensor) -> Tensor:
    """Return the outputs in float32, or unchanged if they are float64."""
    return outputs if outputs.dtype == torch.float64 else outputs.float()


class Head(Protocol):
    """Turns `outputs` numbers per step into a distribution over actions."""

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
        self.outputs = sum(spec.sizes)
        self.several = spec.kind == "multidiscrete"

    def _log_probs(self, logits: Tensor, mask: Tensor | None) -> list[Tensor]:
        """Return the normalised logits of each choice."""
        logits = at_least_float32(logits)
        if mask is not None:
            # The lowest finite number and not -inf: if every action is forbidden, -inf would become NaN.
            logits = logits.masked_fill(~mask, torch.finfo(logits.dtype).min)
        return [choice.log_softmax(-1) for choice in torch.split(logits, list(self.sizes), -1)]

    def sample(
        self, numbers: Tensor, mask: Tensor | None, generator: torch.Generator | None, deterministic: bool
    ) -> tuple[Tensor, Tensor]:
        device = numbers.device
        if device.type != "cpu":
            drawn = None
            if not deterministic:
                shape = len(numbers), len(self.sizes)
                drawn = torch.rand(shape, dtype=precise_dtype(device), device=device, generator=generator)
            action, log_prob = draw_choices(numbers, mask, drawn, list(self.sizes))
            return (action if self.several else action[:, 0]), log_prob
        log_probs = self._log_probs(numbers, mask)
        if deterministic:
            actions = [choice.argmax(-1, keepdim=True) for choice in log_probs]
        else:
            draws = torch.rand(
                len(numbers), len(self.sizes), 1, dtype=torch.float64, device=device, generator=generator
            )
            actions = [_draw(choice, draws[:, k]) for k, choice in enumerate(log_probs)]
        chosen = [choice.gather(-1, action).squeeze(-1) for choice, action in zip(log_probs, actions, strict=True)]
        action = torch.cat(actions, -1) if self.several else actions[0].squeeze(-1)
        return action.int(), sum(chosen[1:], start=chosen[0])

    def evaluate(self, numbers: Tensor, action: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        taken = (action if self.several else action.unsqueeze(-1)).long()
        log_probs = self._log_probs(numbers, mask)
        chosen = [choice.gather(-1, taken[..., k : k + 1]).squeeze(-1) for k, choice in enumerate(log_probs)]
        entropies = [-(choice.exp() * choice).sum(-1) for choice in log_probs]
        return sum(chosen[1:], start=chosen[0]), sum(entropies[1:], start=entropies[0])


def _draw(log_prob: Tensor, draw: Tensor) -> Tensor:
    """log_prob [N, K], draw [N, 1] from [0, 1) -> action [N, 1]: the first whose cumulative probability exceeds the draw."""
    cumulative = log_prob.double().exp().cumsum(-1)
    below = cumulative <= draw * cumulative[:, -1:]
    return below.sum(-1, keepdim=True).clamp(max=log_prob.shape[-1] - 1)


class GaussianHead(nn.Module):
    """A vector of D independent normal numbers, with means from the features and one learned deviation per number.

        action = centre + reach * (mean + exp(log_deviation) * noise)

    centre and reach describe the range [low, high], so that the same weights mean the same in any unit; they are 0 and 1
    where it is unbounded. Actions are neither squashed nor clipped here: the log-probability belongs to the number drawn,
    and a copy of it is clipped to [low, high] for the env. Storing the clipped copy would make the stored
    log-probability that of another action.

    A number that the mask [N, D] forbids is 0, and adds nothing to the log-probability and the entropy.
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

    def _log_prob(self, mean: Tensor, action: Tensor, mask: Tensor | None) -> Tensor:
        spread = self.log_deviation + self.reach.log()
        away = (action - mean) * (-spread).exp()
        if mask is not None:
            return ((-0.5 * away.square() - spread - 0.5 * log(2 * pi)) * mask).sum(-1)
        return -0.5 * away.square().sum(-1) - spread.sum() - 0.5 * log(2 * pi) * self.outputs

    def sample(
        self, numbers: Tensor, mask: Tensor | None, generator: torch.Generator | None, deterministic: bool
    ) -> tuple[Tensor, Tensor]:
        mean = torch.addcmul(self.centre, at_least_float32(numbers), self.reach)
        if deterministic:
            action = mean
        else:
            noise = torch.empty_like(mean).normal_(generator=generator)
            action = torch.addcmul(mean, noise, self.log_deviation.exp() * self.reach)
        if mask is not None:
            action = action * mask
        return action, self._log_prob(mean, action, mask)

    def evaluate(self, numbers: Tensor, action: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        mean = torch.addcmul(self.centre, at_least_float32(numbers), self.reach)
        each = self.log_deviation + self.reach.log() + 0.5 * log(2 * pi) + 0.5
        entropy = each.sum().expand(mean.shape[:-1]) if mask is None else (each * mask).sum(-1)
        return self._log_prob(mean, action, mask), entropy


class MixedHead(nn.Module):
    """Choices and a vector that are independent given the features: log-probabilities and entropies of both add up.

    Outputs, masks and actions have the choices first, then the numbers. A mask may forbid numbers, too: agents that share the
    policy and have fewer of them.
    """

    def __init__(self, spec: ActionSpec) -> None:
        super().__init__()
        self.choices = ChoiceHead(ActionSpec.multidiscrete(spec.sizes)) if spec.sizes else None
        self.vector = GaussianHead(ActionSpec.continuous(spec.low, spec.high))
        self.chosen, self.logits = len(spec.sizes), sum(spec.sizes)
        self.outputs = spec.mask_size

    def sample(
        self, numbers: Tensor, mask: Tensor | None, generator: torch.Generator | None, deterministic: bool
    ) -> tuple[Tensor, Tensor]:
        allowed, used = self.divide(mask)
        vector, log_prob = self.vector.sample(numbers[..., self.logits :], used, generator, deterministic)
        if self.choices is None:
            return vector, log_prob
        choice, of_choice = self.choices.sample(numbers[..., : self.logits], allowed, generator, deterministic)
        return torch.cat((choice.to(vector.dtype), vector), -1), of_choice + log_prob

    def evaluate(self, numbers: Tensor, action: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        allowed, used = self.divide(mask)
        log_prob, entropy = self.vector.evaluate(numbers[..., self.logits :], action[..., self.chosen :], used)
        if self.choices is None:
            return log_prob, entropy
        of_choice = self.choices.evaluate(numbers[..., : self.logits], action[..., : self.chosen], allowed)
        return of_choice[0] + log_prob, of_choice[1] + entropy

    def divide(self, mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Return the masks of the choices and of the vector."""
        return (None, None) if mask is None else (mask[..., : self.logits], mask[..., self.logits :])


def make_head(spec: ActionSpec) -> ChoiceHead | GaussianHead | MixedHead:
    """Build the head for an action space."""
    if spec.kind == "mixed":
        return MixedHead(spec)
    return GaussianHead(spec) if spec.kind == "continuous" else ChoiceHead(spec)
