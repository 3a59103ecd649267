"""The output layer, the head and the loss on the CPU in float32: from hidden states to gradients in one compiled call.

Actions are choices, or vectors of normal numbers: one `HeadArrays` describes either, and its unused arrays are empty.

N steps  H hidden  O outputs of the head  C choices  D numbers of a vector
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from millpond.compiled import compiled_fast
from millpond.fast.choices import draw_choices, evaluate_choices, evaluate_choices_backward
from millpond.fast.gaussian import draw_vectors, evaluate_vectors, evaluate_vectors_backward
from millpond.fast.ppo_loss import LossArguments, ppo_losses
from millpond.fast.products import product, product_transposed, transposed_product
from millpond.policies.heads import ChoiceHead, GaussianHead
from millpond.policies.policy import Policy

Floats = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]
ONE, ZERO = np.float32(1.0), np.float32(0.0)
NO_FLOATS = np.zeros(0, np.float32)


class HeadArrays(NamedTuple):
    """A head. Choices have `sizes` [C], vectors the other three [D]."""

    sizes: npt.NDArray[np.int64]
    log_deviation: Floats
    centre: Floats
    reach: Floats


class ValueNumbers(NamedTuple):
    """value = mean + deviation * what the network gives; see `millpond.policies.value_scale`."""

    mean: np.float32
    deviation: np.float32


class TrainedSteps(NamedTuple):
    """Stored arrays of N steps that the loss needs. `choice` or `vector` has no columns; `allowed` [0, 0] if all is.

    The last two are results: probability ratios, and values in units of the rewards. They are empty if nobody needs them.
    """

    choice: npt.NDArray[np.int32]  # [N, C]
    vector: Floats  # [N, D]
    allowed: Flags  # [N, O]
    log_prob: Floats
    advantage: Floats
    value: Floats
    target: Floats
    weight: Floats
    ratio: Floats
    new_value: Floats


class OutputGradients(NamedTuple):
    """Gradients of the output layer and the head; they are added to."""

    weight: Floats
    bias: Floats
    log_deviation: Floats


def has_compiled_head(head: nn.Module) -> bool:
    """True if the head is one of the built-in ones."""
    return type(head) in (ChoiceHead, GaussianHead)


def head_arrays(head: Any) -> HeadArrays:
    """Return a head's arrays, which share its memory."""
    if isinstance(head, ChoiceHead):
        return HeadArrays(np.array(head.sizes, np.int64), NO_FLOATS, NO_FLOATS, NO_FLOATS)
    assert isinstance(head, GaussianHead)
    arrays = (tensor.detach().numpy() for tensor in (head.log_deviation, head.centre, head.reach))
    return HeadArrays(np.zeros(0, np.int64), *arrays)


def value_numbers(policy: Policy) -> ValueNumbers:
    """Return the current scale of a policy's value."""
    scale = policy.value_scale
    if scale is None:
        return ValueNumbers(ZERO, ONE)
    return ValueNumbers(np.float32(scale.mean.item()), np.float32(scale.deviation().item()))


@compiled_fast
def draw_actions(
    numbers: Floats,
    head: HeadArrays,
    allowed: Flags,
    draws: npt.NDArray[np.float64],
    noise: Floats,
    choice: npt.NDArray[np.int32],
    vector: Floats,
    log_prob: Floats,
) -> None:
    """numbers [N, O], allowed [N, O] or [0, 0], draws [N, C] or noise [N, D] -> choice [N, C] or vector [N, D], log_prob."""
    if len(head.sizes):
        draw_choices(numbers, allowed, head.sizes, draws, choice, log_prob)
    else:
        draw_vectors(numbers, head.log_deviation, head.centre, head.reach, noise, vector, log_prob)


class ActionBuffers(NamedTuple):
    """Random numbers and results of acting for a batch of one size. One of `draws` and `noise` is empty, as of the actions."""

    random: Tensor
    draws: Any  # [N, C], the memory of `random` if actions are choices
    noise: Any  # [N, D], if they are vectors
    choice: Any
    vector: Any
    log_prob: Any
    value: Any
    action: Any  # `choice` or `vector`, in the shape of an action

    @staticmethod
    def allocate(head: Any, batch: int) -> ActionBuffers:
        draws, noise = np.zeros((batch, 0)), np.zeros((batch, 0), np.float32)
        choice, vector = np.empty((batch, 0), np.int32), np.empty((batch, 0), np.float32)
        log_prob, value = np.empty(batch, np.float32), np.empty(batch, np.float32)
        if isinstance(head, ChoiceHead):
            random = torch.empty(batch, len(head.sizes), dtype=torch.float64)
            draws, choice = random.numpy(), np.empty((batch, len(head.sizes)), np.int32)
            action: Any = choice if head.several else choice[:, 0]
        else:
            random = torch.empty(batch, head.outputs)
            noise, vector = random.numpy(), np.empty((batch, head.outputs), np.float32)
            action = vector
        return ActionBuffers(random, draws, noise, choice, vector, log_prob, value, action)

    def draw(self, generator: torch.Generator | None) -> None:
        """Draw random numbers as `Head.sample` does, so that both act alike."""
        if self.random.dtype == torch.float64:
            self.random.uniform_(generator=generator)  # the numbers of torch.rand, in a third of its time
        else:
            self.random.normal_(generator=generator)


@compiled_fast
def loss_gradients(
    numbers: Floats,
    value: Floats,
    steps: TrainedSteps,
    head: HeadArrays,
    arguments: LossArguments,
    d_log_deviation: Floats,
) -> npt.NDArray[np.float64]:
    """numbers [N, O], value [N] -> the losses' means [5]; both are replaced by their gradients. Adds to `d_log_deviation`."""
    count = len(value)
    log_prob, entropy = np.empty(count, np.float32), np.empty(count, np.float32)
    log_probs, probs = np.empty_like(numbers), np.empty_like(numbers)  # or, of vectors, the distances and nothing
    if len(head.sizes):
        evaluate_choices(numbers, steps.allowed, head.sizes, steps.choice, log_prob, entropy, log_probs, probs)
    else:
        described = head.log_deviation, head.centre, head.reach
        evaluate_vectors(numbers, *described, steps.vector, log_prob, entropy, log_probs)
    d_log_prob, d_value, d_entropy = np.empty_like(value), np.empty_like(value), np.empty_like(value)
    means = ppo_losses(
        log_prob,
        steps.log_prob,
        steps.advantage,
        value,
        steps.value,
        steps.target,
        entropy,
        steps.weight,
        *arguments,
        d_log_prob,
        d_value,
        d_entropy,
    )
    if len(steps.ratio):
        value_mean, value_factor = arguments[9], arguments[10]
        for n in range(count):
            steps.ratio[n] = np.exp(log_prob[n] - steps.log_prob[n])
            steps.new_value[n] = value[n] / value_factor + value_mean
    if len(head.sizes):
        choices = steps.allowed, head.sizes, steps.choice
        evaluate_choices_backward(log_probs, probs, *choices, d_log_prob, d_entropy, numbers)
    else:
        taken = log_probs, d_log_prob, d_entropy
        evaluate_vectors_backward(head.log_deviation, *taken, numbers, d_log_deviation)
    value[:] = d_value
    return means


@compiled_fast
def output_gradients(
    sgemm: int,
    hidden: Floats,
    steps: TrainedSteps,
    weight: Floats,
    bias: Floats,
    head: HeadArrays,
    arguments: LossArguments,
    value_trains_core: bool,
    gradients: OutputGradients,
    d_hidden: Floats,
) -> npt.NDArray[np.float64]:
    """hidden [N, H], weight [O + 1, H] -> the losses' means [5]; adds to `gradients`, and writes d_hidden [N, H]."""
    count, outputs = len(hidden), weight.shape[0] - 1
    both = np.empty((count, outputs + 1), np.float32)
    for n in range(count):
        for k in range(outputs + 1):
            both[n, k] = bias[k]
    product_transposed(sgemm, hidden, weight, True, both)
    numbers, value = np.ascontiguousarray(both[:, :outputs]), np.ascontiguousarray(both[:, outputs])
    means = loss_gradients(numbers, value, steps, head, arguments, gradients.log_deviation)
    for n in range(count):
        for k in range(outputs):
            both[n, k] = numbers[n, k]
        both[n, outputs] = value[n]
        for k in range(outputs + 1):
            gradients.bias[k] += both[n, k]
    transposed_product(sgemm, both, hidden, True, gradients.weight)
    if not value_trains_core:
        both[:, outputs] = ZERO
    product(sgemm, both, weight, False, d_hidden)
    return means
