"""An LSTM's rows from features to gradients in one compiled call for each thread: core, heads, loss, and all the way back.

Between two products of a small network plain torch spends more time on arranging its operations than on computing
them, and holds Python's lock meanwhile. What is computed here is what `Policy.unroll` and `ppo_loss` compute.

T steps  B sequences, b of a thread's share  H hidden  A logits  C choices  N = T * b
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from millpond.compiled import compiled_fast
from millpond.kernels.ppo_loss_compiled import losses_and_gradients
from millpond.policies import products
from millpond.policies.acting import compiled_encoder, is_compiled
from millpond.policies.choice_kernels import weigh_choices, weigh_choices_backward
from millpond.policies.compiled_encoders import CompiledEncoder
from millpond.policies.heads import ChoiceHead
from millpond.policies.lstm import LEAST as LEAST_SEQUENCES
from millpond.policies.lstm import LSTM
from millpond.policies.lstm_kernels import ONE, ZERO, Flags, Floats
from millpond.policies.lstm_rows import BLOCK, rows_backward, rows_forward
from millpond.policies.policy import Policy
from millpond.policies.products import add_product, add_product_transposed, add_transposed_product
from millpond.policies.threads import in_threads
from millpond.rollout.picking import pick_states
from millpond.rollout.rows import Rows
from millpond.trainers.ppo.micro_batch import Coefficients, Estimate, Part

Array = npt.NDArray[Any]
Coefs = tuple[float, float, float, float, float]
Gradients = tuple[Tensor | None, ...]
Found = tuple[Array, "Weights", Sequence[Tensor], Sequence[Tensor | None]]
EVERYTHING = np.zeros((0, 0, 0), np.bool_)  # is allowed
NOTHING = np.zeros((0, 0, 0), np.float32)


class Given(NamedTuple):
    """What was stored of the sequences, each [T, B, ...]; `allowed` [0, 0, 0] where everything is."""

    reset: Flags
    action: npt.NDArray[np.int32]  # [T, B, C]
    allowed: Flags  # [T, B, A]
    log_prob: Floats
    advantage: Floats
    value: Floats
    target: Floats
    weight: Floats


class Weights(NamedTuple):
    """Of the core and of the layer behind it; or their gradients."""

    w_input: Floats
    w_hidden: Floats
    bias: Floats
    w_output: Floats
    b_output: Floats


class Held(NamedTuple):
    """Memory of a thread, each [T, b, ...] but the last two, which are of the steps that are in hand at once [K, b, ...]."""

    inputs: Floats
    hidden: Floats
    gates: Floats
    cell: Floats
    d_hidden: Floats
    d_inputs: Floats  # may be that of `inputs`
    d_gates: Floats
    began: Floats


@compiled_fast
def rows_gradients(
    sgemm: int,
    first: int,
    last: int,
    features: Floats,
    hidden0: Floats,
    cell0: Floats,
    given: Given,
    weights: Weights,
    sizes: npt.NDArray[np.int64],
    coefs: Coefs,
    value_trains_core: bool,
    held: Held,
    d_features: Floats,
    found: Weights,
) -> npt.NDArray[np.float64]:
    """The losses' means [5] of the sequences first..last-1 out of B; their gradients go to `d_features` and `found`.

    `found` comes as zeros, and is of these sequences only. `coefs`: the steps that means are over, and those of the loss.
    A thread that has all sequences holds `features` and `d_features` themselves.
    """
    steps, batch, size = features.shape[0], last - first, hidden0.shape[1]
    alone = batch == features.shape[1]
    count, logits_count = steps * batch, weights.w_output.shape[0] - 1
    if not alone:
        held.inputs[:] = features[:, first:last]
    reset = np.ascontiguousarray(given.reset[:, first:last])
    begun = hidden0[first:last], cell0[first:last]
    layer = weights.w_input, weights.w_hidden, weights.bias
    rows_forward(sgemm, held.inputs, *begun, reset, *layer, held.hidden, held.gates, held.cell)
    flat = held.hidden.reshape(count, size)
    numbers = np.empty((count, logits_count + 1), np.float32)
    for n in range(count):
        numbers[n] = weights.b_output
    add_product_transposed(sgemm, flat, weights.w_output, ONE, numbers)

    logits, value = np.ascontiguousarray(numbers[:, :logits_count]), np.ascontiguousarray(numbers[:, logits_count])
    action = np.ascontiguousarray(given.action[:, first:last]).reshape(count, given.action.shape[2])
    allowed = np.empty((0, 0), np.bool_)
    if given.allowed.shape[0] > 0:
        allowed = np.ascontiguousarray(given.allowed[:, first:last]).reshape(count, logits_count)
    log_prob, entropy = np.empty(count, np.float32), np.empty(count, np.float32)
    log_probs, probs = np.empty_like(logits), np.empty_like(logits)
    weigh_choices(logits, allowed, sizes, action, log_prob, entropy, log_probs, probs)
    d_log_prob, d_value, d_entropy = np.empty_like(log_prob), np.empty_like(log_prob), np.empty_like(log_prob)
    means = losses_and_gradients(
        log_prob,
        np.ascontiguousarray(given.log_prob[:, first:last]).reshape(count),
        np.ascontiguousarray(given.advantage[:, first:last]).reshape(count),
        value,
        np.ascontiguousarray(given.value[:, first:last]).reshape(count),
        np.ascontiguousarray(given.target[:, first:last]).reshape(count),
        entropy,
        np.ascontiguousarray(given.weight[:, first:last]).reshape(count),
        *coefs,
        d_log_prob,
        d_value,
        d_entropy,
    )
    weigh_choices_backward(log_probs, probs, allowed, sizes, action, d_log_prob, d_entropy, logits)
    for n in range(count):
        for k in range(logits_count):
            numbers[n, k] = logits[n, k]
        numbers[n, logits_count] = d_value[n]
        for k in range(logits_count + 1):
            found.b_output[k] += numbers[n, k]
    add_transposed_product(sgemm, numbers, flat, ONE, found.w_output)
    if not value_trains_core:
        numbers[:, logits_count] = 0.0
    add_product(sgemm, numbers, weights.w_output, ZERO, held.d_hidden.reshape(count, size))

    d_hidden0, d_cell0 = np.empty((batch, size), np.float32), np.zeros((batch, size), np.float32)
    kept = held.hidden, held.gates, held.cell, held.inputs, *begun, reset
    d_found = held.d_inputs, d_hidden0, d_cell0, found.w_input, found.w_hidden, found.bias
    in_hand = held.d_gates, held.began
    rows_backward(sgemm, held.d_hidden, *kept, weights.w_input, weights.w_hidden, *d_found, *in_hand)
    if not alone:
        d_features[:, first:last] = held.d_inputs
    return means


def policy_of(unroll: Any) -> Policy | None:
    """The policy of ours that `unroll` is a method of; none where it was compiled, or is of another kind."""
    policy = getattr(unroll, "__self__", None)
    return policy if type(policy) is Policy and unroll.__func__ is Policy.unroll else None


def can_take(policy: Policy, device: torch.device) -> bool:
    """Whether `rows_gradients` computes what the policy's `unroll` does on this device."""
    return device.type == "cpu" and is_compiled(policy)


class RowsCall:
    """The way of one part's rows from observations to gradients. It is made in the thread that shares parts out, so that
    what a thread then does is compiled, or torch's own, and threads hardly wait for Python's lock.
    """

    def __init__(
        self, policy: Policy, parameters: list[nn.Parameter], part: Part, coefficients: Coefficients, living: float
    ) -> None:
        core, head, output = policy.core, policy.head, policy.output
        assert isinstance(core, LSTM)
        assert isinstance(head, ChoiceHead)
        self.policy, self.parameters, self.part = policy, parameters, part
        self.encoder = compiled_encoder(policy)
        self.shared = (core.w_input, core.w_hidden, core.bias, output.weight, output.bias)
        self.weights = Weights(*(weight.detach().numpy() for weight in self.shared))
        self.sequences, self.steps = part.reset.shape
        mask, choices = part.batch.get("action_mask"), (self.steps, self.sequences, len(head.sizes))
        self.given = Given(
            _time_first(part.reset),
            _time_first(part.batch["action"]).reshape(choices),
            EVERYTHING if mask is None else _time_first(mask),
            *map(_time_first, (part.log_prob, part.advantage, part.value, part.target, part.weight)),
        )
        self.begun: tuple[Array, Array] = _state(part, 0), _state(part, 1)
        self.coefs = _coefs(coefficients, living)
        self.sizes = head.choice_sizes
        self.held: Held | None = None  # the memory of a thread that has all sequences

    def retake(
        self,
        rows: Rows,
        estimate: Estimate,
        picked: Tensor,
        weight: npt.NDArray[np.float32],
        coefficients: Coefficients,
        living: float,
    ) -> None:
        """Other rows, as many, into the memory of those before. Where the encoder is compiled."""
        self.part.refill(rows, estimate, picked, weight)
        pick_states(picked.numpy(), rows["initial_state"].numpy(), *self.begun)
        self.coefs = _coefs(coefficients, living)

    def __call__(self) -> tuple[dict[str, Tensor], Gradients]:
        """What is recorded of the losses, and the gradients of `parameters`; means are over `living` steps."""
        means, found, encoding, encoded = self._with_torch() if self.encoder is None else self._compiled(self.encoder)
        gradients: dict[int, Tensor | None] = {
            id(weight): torch.from_numpy(gradient) for weight, gradient in zip(self.shared, found, strict=True)
        }
        gradients.update(zip(map(id, encoding), encoded, strict=True))
        recorded = torch.from_numpy(means.astype(np.float32)).unbind()
        names = "policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction"
        losses = dict(zip(names, recorded, strict=True))
        return losses, tuple(gradients.get(id(parameter)) for parameter in self.parameters)

    def _compiled(self, encoder: CompiledEncoder) -> Found:
        seen = self.part.batch["observation"].transpose(0, 1).flatten(0, 1).contiguous().numpy()
        features, *kept = encoder.forward(seen)
        means, found, d_features = self._core(features)
        encoded = encoder.backward(seen, (features, *kept), d_features.numpy())
        return means, found, encoder.parameters, list(map(torch.from_numpy, encoded))

    def _with_torch(self) -> Found:
        features = self.policy.encoder(self.part.take_observations().transpose(0, 1).flatten(0, 1))
        means, found, d_features = self._core(features.detach().numpy())
        learned = {id(weight) for weight in self.shared}
        encoding = [parameter for parameter in self.parameters if id(parameter) not in learned]
        encoded = torch.autograd.grad(features, encoding, d_features, allow_unused=True) if encoding else ()
        return means, found, encoding, encoded

    def _core(self, features: Floats) -> tuple[Array, Weights, Tensor]:
        """From features [T * B, H] to the losses' means, the gradients of the core's weights, and of the features."""
        inputs = features.reshape(self.steps, self.sequences, -1)
        d_features = torch.empty(features.shape)
        d_inputs = d_features.numpy().reshape(inputs.shape)

        def share(first: int, last: int) -> tuple[Array, Weights]:
            found = Weights(*map(np.zeros_like, self.weights))
            held = self._hold(inputs, d_inputs, last - first)
            means = rows_gradients(
                products.SGEMM,
                first,
                last,
                inputs,
                *self.begun,
                self.given,
                self.weights,
                self.sizes,
                self.coefs,
                self.policy.value_trains_core,
                held,
                d_inputs,
                found,
            )
            return means, found

        # Added up in the order of the sequences, so that a run repeats.
        (means, found), *others = in_threads(share, self.sequences, LEAST_SEQUENCES)
        for more_means, more in others:
            means += more_means
            for gradient, addend in zip(found, more, strict=True):
                gradient += addend
        return means, found, d_features

    def _hold(self, features: Floats, d_features: Floats, count: int) -> Held:
        """Memory for `count` sequences out of those of `features`. It is torch's, whose profiler then sees it."""
        steps, sequences, size = features.shape
        block = min(steps, max(1, BLOCK // count))

        def empty(length: int, vectors: int) -> Floats:
            return torch.empty(length, count, vectors * size).numpy()

        if count == sequences and self.held is not None:
            return self.held._replace(inputs=features, d_inputs=d_features)
        inputs, d_inputs = (features, d_features) if count == sequences else (empty(steps, 1),) * 2
        kept = inputs, empty(steps, 1), empty(steps, 4), empty(steps, 1)
        held = Held(*kept, empty(steps, 1), d_inputs, empty(block, 4), empty(block, 1))
        if count == sequences and self.encoder is not None:
            self.held = held._replace(inputs=NOTHING, d_inputs=NOTHING)  # these are new each time
        return held


def _coefs(coefficients: Coefficients, living: float) -> Coefs:
    limit = inf if coefficients.vf_clip_coef is None else coefficients.vf_clip_coef
    return living, coefficients.clip_coef, limit, coefficients.vf_coef, coefficients.ent_coef


def _state(part: Part, which: int) -> Array:
    """The hidden state or the cell [B, H] that the sequences begin with."""
    return part.state[:, which].contiguous().numpy()


def _time_first(sequences: Tensor) -> Array:
    """[B, T, ...] -> [T, B, ...], one piece of memory."""
    return sequences.transpose(0, 1).contiguous().numpy()
