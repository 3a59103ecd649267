"""Choices on the CPU in float32: drawing them, and the probability and entropy of those taken, one pass over a batch each.

The plain version is `millpond.policies.heads.ChoiceHead`.

N steps  C choices  A logits of all choices together
"""

from __future__ import annotations

from math import exp, log
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from millpond.compiled import compiled
from millpond.policies.heads import ChoiceHead, at_least_float32

Floats = npt.NDArray[np.float32]
LOWEST = np.finfo(np.float32).min  # logit of a forbidden action; finite, so that all forbidden gives no NaN
ALL_ALLOWED = np.zeros((0, 0), np.bool_)


@compiled
def draw_choices(
    logits: Floats,
    allowed: npt.NDArray[np.bool_],
    sizes: npt.NDArray[np.int64],
    draws: npt.NDArray[np.float64],
    action: npt.NDArray[np.int32],
    log_prob: Floats,
) -> None:
    """logits [N, A], allowed [N, A] (or [0, 0]: all are), draws [N, C] from [0, 1) -> action [N, C], log_prob [N].

    Choice k is drawn if the cumulative probability first exceeds the draw at k. If nothing is allowed, all are equally likely.
    """
    masked = allowed.shape[0] > 0
    mass = np.empty(logits.shape[1], np.float64)
    for n in range(logits.shape[0]):
        first, log_probability = 0, 0.0
        for c in range(len(sizes)):
            last = first + sizes[c]
            none = masked and not allowed[n, first:last].any()
            top = -np.inf
            for k in range(first, last):
                mass[k] = 0.0 if none else -np.inf if masked and not allowed[n, k] else logits[n, k]
                top = max(top, mass[k])
            total = 0.0
            for k in range(first, last):
                mass[k] = exp(mass[k] - top)
                total += mass[k]
            threshold, reached, chosen = draws[n, c] * total, 0.0, first
            for k in range(first, last):
                if mass[k] > 0.0:
                    reached += mass[k]
                    chosen = k
                    if reached > threshold:
                        break
            action[n, c] = chosen - first
            log_probability += log(mass[chosen] / total)
            first = last
        log_prob[n] = log_probability


@compiled
def evaluate_choices(
    logits: Floats,
    allowed: npt.NDArray[np.bool_],
    sizes: npt.NDArray[np.int64],
    action: npt.NDArray[np.int32],
    log_prob: Floats,
    entropy: Floats,
    log_probs: Floats,
    probs: Floats,
) -> None:
    """logits and allowed as above, action [N, C] -> log_prob and entropy [N]; for the backward pass log_probs, probs [N, A]."""
    masked = allowed.shape[0] > 0
    for n in range(logits.shape[0]):
        first, chosen, spread = 0, 0.0, 0.0
        for c in range(len(sizes)):
            last = first + sizes[c]
            top = -np.inf
            for k in range(first, last):
                log_probs[n, k] = LOWEST if masked and not allowed[n, k] else logits[n, k]
                top = max(top, log_probs[n, k])
            total = 0.0
            for k in range(first, last):
                log_probs[n, k] -= top
                probs[n, k] = exp(log_probs[n, k])
                total += probs[n, k]
            shift = log(total)
            for k in range(first, last):
                log_probs[n, k] -= shift
                probs[n, k] /= total
                spread -= probs[n, k] * log_probs[n, k]
            chosen += log_probs[n, first + action[n, c]]
            first = last
        log_prob[n] = chosen
        entropy[n] = spread


@compiled
def evaluate_choices_backward(
    log_probs: Floats,
    probs: Floats,
    allowed: npt.NDArray[np.bool_],
    sizes: npt.NDArray[np.int64],
    action: npt.NDArray[np.int32],
    d_log_prob: Floats,
    d_entropy: Floats,
    d_logits: Floats,
) -> None:
    """d log p_a / d z_k = 1[k = a] - p_k, and dH / d z_k = -p_k (log p_k + H), for each choice; 0 where not allowed."""
    masked = allowed.shape[0] > 0
    for n in range(probs.shape[0]):
        first = 0
        for c in range(len(sizes)):
            last = first + sizes[c]
            spread = 0.0
            for k in range(first, last):
                spread -= probs[n, k] * log_probs[n, k]
            for k in range(first, last):
                share = d_log_prob[n] + d_entropy[n] * (log_probs[n, k] + spread)
                d_logits[n, k] = (d_log_prob[n] if k == first + action[n, c] else 0.0) - probs[n, k] * share
                if masked and not allowed[n, k]:
                    d_logits[n, k] = 0.0
            first = last


class EvaluateChoices(torch.autograd.Function):
    """`evaluate_choices` as one node of torch's graph, which is a dozen in plain torch."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, action: Tensor, mask: Tensor | None, sizes: Any) -> tuple[Tensor, Tensor]:
        flat = logits.detach().reshape(-1, logits.shape[-1])
        ctx.sizes, ctx.shape = sizes, logits.shape
        ctx.taken = action.reshape(-1, len(sizes)).int().numpy()
        ctx.allowed = ALL_ALLOWED if mask is None else mask.reshape(flat.shape).numpy()
        ctx.log_probs, ctx.probs = np.empty(flat.shape, np.float32), np.empty(flat.shape, np.float32)
        log_prob, entropy = torch.empty(logits.shape[:-1]), torch.empty(logits.shape[:-1])
        out = log_prob.numpy().reshape(-1), entropy.numpy().reshape(-1)
        evaluate_choices(flat.numpy(), ctx.allowed, sizes, ctx.taken, *out, ctx.log_probs, ctx.probs)
        return log_prob, entropy

    @staticmethod
    def backward(ctx: Any, d_log_prob: Tensor, d_entropy: Tensor) -> tuple[Tensor, None, None, None]:
        d_logits = torch.empty(ctx.shape)
        evaluate_choices_backward(
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


class FastChoices(nn.Module):
    """A plain ChoiceHead, computed by the compiled code above."""

    def __init__(self, plain: ChoiceHead) -> None:
        super().__init__()
        self.plain, self.outputs = plain, plain.outputs
        self.sizes = np.array(plain.sizes, np.int64)

    def sample(
        self, numbers: Tensor, mask: Tensor | None, generator: torch.Generator | None, deterministic: bool
    ) -> tuple[Tensor, Tensor]:
        """numbers [N, A] -> action [N, C] (or [N]), log_prob [N]; without gradients."""
        if deterministic:
            return self.plain.sample(numbers, mask, generator, deterministic)
        steps, choices = len(numbers), len(self.sizes)
        draws = torch.rand(steps, choices, dtype=torch.float64, generator=generator)
        action, log_prob = torch.empty(steps, choices, dtype=torch.int32), torch.empty(steps)
        allowed = ALL_ALLOWED if mask is None else mask.numpy()
        logits = at_least_float32(numbers).numpy()
        draw_choices(logits, allowed, self.sizes, draws.numpy(), action.numpy(), log_prob.numpy())
        return action if self.plain.several else action.view(steps), log_prob

    def evaluate(self, numbers: Tensor, action: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """numbers [..., A], action [..., C] (or [...]) -> log_prob [...], entropy [...]."""
        taken = action if self.plain.several else action.unsqueeze(-1)
        return EvaluateChoices.apply(at_least_float32(numbers), taken, mask, self.sizes)  # type: ignore[no-any-return, no-untyped-call]
