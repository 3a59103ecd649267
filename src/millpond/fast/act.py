"""Acting on the CPU for a collection: arrays in, arrays out.

For an LSTM or a GRU everything after the encoder is one compiled call: the step, the output layer, and drawing. With small
batches torch's bookkeeping around each of some forty calls takes longer than the arithmetic. Policies without memory on
vectors have their own actor, in `feedforward`.

B observations  H hidden  S state vectors  A logits
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from millpond.compiled import compiled_fast
from millpond.fast.choices import ALL_ALLOWED
from millpond.fast.encoders import array_encoder
from millpond.fast.gemm import SGEMM
from millpond.fast.gru import act_step as gru_step
from millpond.fast.heads import ActionBuffers, HeadArrays, ValueNumbers, draw_actions, head_arrays, value_numbers
from millpond.fast.images import freeze_images
from millpond.fast.limits import MIN_IMAGES_PER_THREAD, MIN_OBSERVATIONS_PER_THREAD
from millpond.fast.lstm import NO_PANELS, Flags, Floats
from millpond.fast.lstm import act_step as lstm_step
from millpond.fast.network import with_compiled_parts
from millpond.fast.products import is_packed, panels_of_transposed, product_transposed
from millpond.policies.cores import GRU, LSTM
from millpond.policies.policy import Policy
from millpond.rollout.collector import Acted
from millpond.threads import in_threads, threads_for, torch_threads

Array = npt.NDArray[Any]


@compiled_fast
def draw_outputs(
    sgemm: int,
    hidden: Floats,
    w_output: Floats,
    b_output: Floats,
    scale: ValueNumbers,
    head: HeadArrays,
    drawn: bool,
    allowed: Flags,
    draws: npt.NDArray[np.float64],
    noise: Floats,
    choice: npt.NDArray[np.int32],
    vector: Floats,
    log_prob: Floats,
    value: Floats,
) -> None:
    """hidden [B, H] -> value [B]; and if actions are `drawn`, as by `draw_actions`, actions and log_prob [B]."""
    batch, outputs = len(hidden), len(b_output) - 1
    both = np.empty((batch, outputs + 1), np.float32)
    for row in range(batch):
        both[row] = b_output
    product_transposed(sgemm, hidden, w_output, True, both)
    for row in range(batch):
        value[row] = scale.mean + scale.deviation * both[row, outputs]
    if drawn:
        numbers = np.ascontiguousarray(both[:, :outputs])
        draw_actions(numbers, head, allowed, draws, noise, choice, vector, log_prob)


@compiled_fast
def act_lstm(
    sgemm: int,
    features: Floats,
    w_input: Floats,
    w_hidden: Floats,
    bias: Floats,
    w_output: Floats,
    b_output: Floats,
    input_panels: Floats,
    hidden_panels: Floats,
    state: Floats,
    scale: ValueNumbers,
    head: HeadArrays,
    drawn: bool,
    allowed: Flags,
    draws: npt.NDArray[np.float64],
    noise: Floats,
    choice: npt.NDArray[np.int32],
    vector: Floats,
    log_prob: Floats,
    value: Floats,
) -> None:
    """features [B, H], state [B, 2, H] (updated in place), panels as for `lstm_step`; the rest as for `draw_outputs`."""
    lstm_step(sgemm, features, w_input, w_hidden, bias, input_panels, hidden_panels, state, state)
    hidden = np.ascontiguousarray(state[:, 0])
    results = choice, vector, log_prob, value
    draw_outputs(sgemm, hidden, w_output, b_output, scale, head, drawn, allowed, draws, noise, *results)


@compiled_fast
def act_gru(
    sgemm: int,
    features: Floats,
    w_input: Floats,
    w_hidden: Floats,
    bias: Floats,
    bias_share: Floats,
    w_output: Floats,
    b_output: Floats,
    input_panels: Floats,
    hidden_panels: Floats,
    state: Floats,
    scale: ValueNumbers,
    head: HeadArrays,
    drawn: bool,
    allowed: Flags,
    draws: npt.NDArray[np.float64],
    noise: Floats,
    choice: npt.NDArray[np.int32],
    vector: Floats,
    log_prob: Floats,
    value: Floats,
) -> None:
    """`act_lstm` for a GRU: state [B, 1, H]."""
    gru_step(sgemm, features, w_input, w_hidden, bias, bias_share, input_panels, hidden_panels, state)
    hidden = np.ascontiguousarray(state[:, 0])
    results = choice, vector, log_prob, value
    draw_outputs(sgemm, hidden, w_output, b_output, scale, head, drawn, allowed, draws, noise, *results)


class NetworkActor:
    """Acts with a policy whose parts are compiled; each thread computes a share of the batch.

    Weights may change in place, and must not be replaced or moved.
    """

    def __init__(self, policy: Policy, autocast: bool) -> None:
        self.policy, self.autocast = with_compiled_parts(policy, autocast), autocast
        self.frozen = with_compiled_parts(policy, autocast)  # for collections; `policy` follows the weights
        images = "pixels" in getattr(policy.encoder, "kinds", ())  # a custom encoder need not have any
        self.min_per_thread = MIN_IMAGES_PER_THREAD if images else MIN_OBSERVATIONS_PER_THREAD

    def freeze_weights(self) -> None:
        """Pack the weights of convolutions, which stay unchanged until the next call. Torch packs no others."""
        freeze_images(self.frozen)

    def act(
        self, observation: Array, state: Tensor, action_mask: Array | None, generator: torch.Generator | None
    ) -> Acted:
        """observation [B, *obs], state [B, S, H] (updated in place), action_mask [B, A]."""
        with torch.inference_mode():
            numbers, after = self._step(torch.from_numpy(observation), state)
            mask = None if action_mask is None else torch.from_numpy(action_mask)
            action, log_prob = self.policy.head.sample(numbers[:, :-1], mask, generator, False)
            state.copy_(after)
            return Acted(action.numpy(), log_prob, self.policy.in_reward_units(numbers[:, -1].float()))

    def value(self, observation: Array, state: Tensor) -> Tensor:
        """Return the value [B]; nothing changes."""
        with torch.inference_mode():
            numbers, _ = self._step(torch.from_numpy(observation), state)
            return self.policy.in_reward_units(numbers[:, -1].float())

    def _step(self, observation: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the network's outputs [B, outputs + 1] and the state after the step."""
        if threads_for(len(observation), self.min_per_thread) == 1:
            with torch_threads(1):
                return self.frozen.step(observation, state)

        def share(start: int, stop: int) -> tuple[Tensor, Tensor]:
            casting: AbstractContextManager[Any] = nullcontext()
            if self.autocast:
                casting = torch.autocast("cpu", dtype=torch.bfloat16)
            with torch.inference_mode(), casting:  # modes are per thread
                return self.frozen.step(observation[start:stop], state[start:stop])

        numbers, after = zip(*in_threads(share, len(observation), self.min_per_thread), strict=True)
        return torch.cat(numbers), torch.cat(after)


class RecurrentActor:
    """Acts for an LSTM or a GRU: one compiled call after the encoder, or from the observation on.

    Results are overwritten by the next call with a batch of the same size.
    """

    def __init__(self, policy: Policy) -> None:
        core = policy.core
        assert isinstance(core, LSTM | GRU)
        self._torch = NetworkActor(policy, autocast=False)
        self.policy = self._torch.policy
        self._plain_head, self._head = policy.head, head_arrays(policy.head)
        self._scale = value_numbers(policy)
        biases = (core.bias,) if isinstance(core, LSTM) else (core.bias, core.bias_share)
        layers = core.w_input, core.w_hidden, *biases, policy.output.weight, policy.output.bias
        self._kernel: Any = act_lstm if isinstance(core, LSTM) else act_gru
        self._weights: list[Any] = [layer.detach().numpy() for layer in layers]
        self._panels = [NO_PANELS, NO_PANELS]
        self._encoder = array_encoder(policy.encoder)
        self._buffers: dict[int, ActionBuffers] = {}

    def freeze_weights(self) -> None:
        """Pack the weights, which stay unchanged until the next call, and read the value's scale."""
        self._torch.freeze_weights()
        self._scale = value_numbers(self.policy)
        weights = self._weights[:2]
        packed = is_packed(*(weight.shape[1] for weight in weights))
        self._panels = [panels_of_transposed(weight, packed) for weight in weights]

    def act(
        self, observation: Array, state: Tensor, action_mask: Array | None, generator: torch.Generator | None
    ) -> Acted:
        """observation [B, *obs], state [B, S, H] (updated in place), action_mask [B, A]; all contiguous.

        Draws from `generator` as `Policy.act` does, so that both act alike.
        """
        batch, min_per_thread = len(observation), self._torch.min_per_thread
        buffers = self._buffers.get(batch)
        if buffers is None:
            buffers = self._buffers[batch] = ActionBuffers.allocate(self._plain_head, batch)
        buffers.draw(generator)
        arrays = observation, state.numpy(), action_mask, buffers
        if threads_for(batch, min_per_thread) == 1:
            with torch_threads(1):
                self._act_share(0, batch, *arrays)
        else:
            in_threads(lambda start, stop: self._act_share(start, stop, *arrays), batch, min_per_thread)
        return Acted(buffers.action, buffers.log_prob, buffers.value)

    def value(self, observation: Array, state: Tensor) -> Tensor:
        """Return the value [B]; nothing changes."""
        return self._torch.value(observation, state)

    def _act_share(
        self, start: int, stop: int, observation: Array, state: Array, mask: Array | None, buffers: ActionBuffers
    ) -> None:
        some = slice(start, stop)
        self._kernel(
            SGEMM,
            self._features(observation[some]),
            *self._weights,
            *self._panels,
            state[some],
            self._scale,
            self._head,
            True,
            ALL_ALLOWED if mask is None else mask[some],
            buffers.draws[some],
            buffers.noise[some],
            buffers.choice[some],
            buffers.vector[some],
            buffers.log_prob[some],
            buffers.value[some],
        )

    def _features(self, observation: Array) -> Any:
        if self._encoder is not None:
            return self._encoder.forward(observation)[0]
        with torch.inference_mode():
            return self._torch.frozen.encoder(torch.from_numpy(observation)).contiguous().numpy()
