"""What a policy does with what it remembers: choose an action, and value the state. N rows of hidden [N, H]."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from millpond.envs.spec import ActionSpec

NEVER = -1e9  # a logit that is never drawn, and finite in every dtype that is computed in
LOG_ROOT_TWO_PI = 0.9189385332046727


@dataclass(frozen=True)
class Scores:
    """Log-probability and entropy of given actions, each [N]."""

    log_prob: Tensor
    entropy: Tensor


class DiscreteHead(nn.Module):
    """One choice, or one of each of several; the joint log-probability is the sum."""

    def __init__(self, spec: ActionSpec, hidden_size: int) -> None:
        super().__init__()
        self.sizes = spec.sizes
        self.several = spec.kind == "multidiscrete"
        self.linear = nn.Linear(hidden_size, sum(spec.sizes))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        nn.init.orthogonal_(self.linear.weight, 0.01, generator=generator)
        nn.init.zeros_(self.linear.bias)

    def _log_probs(self, hidden: Tensor, mask: Tensor | None) -> list[Tensor]:
        logits = self.linear(hidden).float()
        if mask is not None:
            logits = logits.masked_fill(~mask, NEVER)
        return [F.log_softmax(part, dim=-1) for part in logits.split(self.sizes, dim=-1)]

    def act(
        self, hidden: Tensor, mask: Tensor | None, generator: torch.Generator | None, deterministic: bool
    ) -> tuple[Tensor, Tensor]:
        """Actions [N] or [N, choices] and their log-probabilities [N]."""
        chosen, total = [], hidden.new_zeros(hidden.shape[0], dtype=torch.float32)
        for log_probs in self._log_probs(hidden, mask):
            if deterministic:
                action = log_probs.argmax(-1)
            else:  # the exponential race: argmin of Exp(1) / p is drawn with probability p, faster than multinomial
                noise = torch.empty_like(log_probs).exponential_(generator=generator)
                action = (log_probs - noise.log()).argmax(-1)
            chosen.append(action)
            total = total + log_probs.gather(-1, action[:, None])[:, 0]
        actions = torch.stack(chosen, dim=-1) if self.several else chosen[0]
        return actions.to(torch.int32), total

    def score(self, hidden: Tensor, action: Tensor, mask: Tensor | None) -> Scores:
        log_prob = entropy = hidden.new_zeros(hidden.shape[0], dtype=torch.float32)
        actions = action.long().view(hidden.shape[0], len(self.sizes))
        for index, log_probs in enumerate(self._log_probs(hidden, mask)):
            log_prob = log_prob + log_probs.gather(-1, actions[:, index : index + 1])[:, 0]
            entropy = entropy - (log_probs.exp() * log_probs).sum(-1)
        return Scores(log_prob, entropy)


class GaussianHead(nn.Module):
    """A normal distribution with a deviation of its own for each number, the same in every state.

    Actions are not squashed: what lies outside of the action space is clipped by the env, not by the policy.
    """

    def __init__(self, spec: ActionSpec, hidden_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, len(spec.low))
        self.log_deviation = nn.Parameter(torch.zeros(len(spec.low)))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        nn.init.orthogonal_(self.linear.weight, 0.01, generator=generator)
        nn.init.zeros_(self.linear.bias)
        nn.init.zeros_(self.log_deviation)

    def act(
        self, hidden: Tensor, mask: Tensor | None, generator: torch.Generator | None, deterministic: bool
    ) -> tuple[Tensor, Tensor]:
        mean = self.linear(hidden).float()
        action = mean
        if not deterministic:
            noise = torch.empty_like(mean).normal_(generator=generator)
            action = mean + noise * self.log_deviation.exp()
        return action, self._log_prob(mean, action)

    def score(self, hidden: Tensor, action: Tensor, mask: Tensor | None) -> Scores:
        mean = self.linear(hidden).float()
        entropy = (0.5 + LOG_ROOT_TWO_PI + self.log_deviation).sum().expand(mean.shape[0])
        return Scores(self._log_prob(mean, action), entropy)

    def _log_prob(self, mean: Tensor, action: Tensor) -> Tensor:
        away = (action - mean) / self.log_deviation.exp()
        return (-0.5 * away.square() - self.log_deviation - LOG_ROOT_TWO_PI).sum(-1)


def make_head(spec: ActionSpec, hidden_size: int) -> DiscreteHead | GaussianHead:
    """The head that an action space needs."""
    return GaussianHead(spec, hidden_size) if spec.kind == "continuous" else DiscreteHead(spec, hidden_size)
