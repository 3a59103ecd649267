"""Acting on the CPU for a collection: arrays in, arrays out.

For an LSTM with choices everything after the encoder is one compiled call: the step, the output layer, and drawing. With small
batches torch's bookkeeping around each of some forty calls takes longer than the arithmetic.

B observations  H hidden  S state vectors  A logits  C choices
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from millpond.compiled import compiled_fast
from millpond.fast.choices import ALL_ALLOWED, draw_choices
from millpond.fast.encoders import array_encoder
from millpond.fast.gemm import SGEMM, add_product_transposed
from millpond.fast.limits import MIN_IMAGES_PER_THREAD, MIN_OBSERVATIONS_PER_THREAD
from millpond.fast.lstm import NO_PANELS, ONE, Flags, Floats, act_step
from millpond.fast.network import with_compiled_parts
from millpond.fast.packed_gemm import is_packed, panels_of_transposed
from millpond.policies.cores import LSTM
from millpond.policies.heads import ChoiceHead
from millpond.policies.policy import Policy
from millpond.rollout.collector import Acted
from millpond.threads import in_threads, threads_for, torch_threads

Array = npt.NDArray[Any]


@compiled_fast
def act_choices(
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
    allowed: Flags,
    sizes: npt.NDArray[np.int64],
    draws: npt.NDArray[np.float64],
    after: Floats,
    action: npt.NDArray[np.int32],
    log_prob: Floats,
    value: Floats,
) -> None:
    """features [B, H], state [B, 2, H], panels as for `act_step`; allowed, sizes and draws as for `draw_choices`
    -> state after [B, 2, H], action [B, C], log_prob and value [B].
    """
    batch, logits = len(features), len(b_output) - 1
    act_step(sgemm, features, w_input, w_hidden, bias, input_panels, hidden_panels, state, after)
    hidden, numbers = np.ascontiguousarray(after[:, 0]), np.empty((batch, logits + 1), np.float32)
    for row in range(batch):
        numbers[row] = b_output
    add_product_transposed(sgemm, hidden, w_output, ONE, numbers)
    for row in range(batch):
        value[row] = numbers[row, logits]
    draw_choices(numbers[:, :logits], allowed, sizes, draws, action, log_prob)


class NetworkActor:
    """Acts with a policy whose parts are compiled; each thread computes a share of the batch.

    Weights may change in place, and must not be replaced or moved.
    """

    def __init__(self, policy: Policy, autocast: bool) -> None:
        self.policy, self.autocast = with_compiled_parts(policy, autocast), autocast
        images = "pixels" in getattr(policy.encoder, "kinds", ())  # a custom encoder need not have any
        self.min_per_thread = MIN_IMAGES_PER_THREAD if images else MIN_OBSERVATIONS_PER_THREAD

    def freeze_weights(self) -> None:
        """Do nothing: torch packs no weights."""

    def act(
        self, observation: Array, state: Tensor, action_mask: Array | None, generator: torch.Generator | None
    ) -> Acted:
        """observation [B, *obs], state [B, S, H] (updated in place), action_mask [B, A]."""
        with torch.inference_mode():
            numbers, after = self._step(torch.from_numpy(observation), state)
            mask = None if action_mask is None else torch.from_numpy(action_mask)
            action, log_prob = self.policy.head.sample(numbers[:, :-1], mask, generator, False)
            state.copy_(after)
            return Acted(action.numpy(), log_prob, numbers[:, -1].float())

    def value(self, observation: Array, state: Tensor) -> Tensor:
        """Return the value [B]; nothing changes."""
        with torch.inference_mode():
            return self._step(torch.from_numpy(observation), state)[0][:, -1].float()

    def _step(self, observation: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Return the network's outputs [B, outputs + 1] and the state after the step."""
        if threads_for(len(observation), self.min_per_thread) == 1:
            with torch_threads(1):
                return self.policy.step(observation, state)

        def share(start: int, stop: int) -> tuple[Tensor, Tensor]:
            casting: AbstractContextManager[Any] = nullcontext()
            if self.autocast:
                casting = torch.autocast("cpu", dtype=torch.bfloat16)
            with torch.inference_mode(), casting:  # modes are per thread
                return self.policy.step(observation[start:stop], state[start:stop])

        numbers, after = zip(*in_threads(share, len(observation), self.min_per_thread), strict=True)
        return torch.cat(numbers), torch.cat(after)


class _Buffers(NamedTuple):
    """Outputs of a batch of one size."""

    draws: Tensor
    draws_array: Array
    action: Array
    log_prob: Array
    value: Array


class ChoiceActor:
    """Acts for an LSTM with choices: one compiled call after the encoder, or from the observation on.

    Results are overwritten by the next call with a batch of the same size.
    """

    def __init__(self, policy: Policy) -> None:
        core, head = policy.core, policy.head
        assert isinstance(core, LSTM)
        assert isinstance(head, ChoiceHead)
        self._torch = NetworkActor(policy, autocast=False)
        self.policy = self._torch.policy
        self._sizes, self._several = np.array(head.sizes, np.int64), head.several
        layers = core.w_input, core.w_hidden, core.bias, policy.output.weight, policy.output.bias
        self._weights: list[Any] = [layer.detach().numpy() for layer in layers]
        self._panels = [NO_PANELS, NO_PANELS]
        self._encoder = array_encoder(policy.encoder)
        self._buffers: dict[int, _Buffers] = {}

    def freeze_weights(self) -> None:
        """Pack the weights, which stay unchanged until the next call."""
        weights = self._weights[:2]
        packed = is_packed(*(weight.shape[1] for weight in weights))
        self._panels = [panels_of_transposed(weight, packed) for weight in weights]

    def act(
        self, observation: Array, state: Tensor, action_mask: Array | None, generator: torch.Generator | None
    ) -> Acted:
        """observation [B, *obs], state [B, 2, H] (updated in place), action_mask [B, A]; all contiguous.

        Draws from `generator` as `Policy.act` does, so that both act alike.
        """
        batch, min_per_thread = len(observation), self._torch.min_per_thread
        buffers = self._buffers.get(batch) or self._allocate(batch)
        torch.rand(buffers.draws.shape, dtype=torch.float64, generator=generator, out=buffers.draws)
        arrays = observation, state.numpy(), action_mask, buffers
        if threads_for(batch, min_per_thread) == 1:
            with torch_threads(1):
                self._act_share(0, batch, *arrays)
        else:
            in_threads(lambda start, stop: self._act_share(start, stop, *arrays), batch, min_per_thread)
        action = buffers.action if self._several else buffers.action[:, 0]
        return Acted(action, buffers.log_prob, buffers.value)

    def value(self, observation: Array, state: Tensor) -> Tensor:
        """Return the value [B]; nothing changes."""
        return self._torch.value(observation, state)

    def _act_share(
        self, start: int, stop: int, observation: Array, state: Array, mask: Array | None, buffers: _Buffers
    ) -> None:
        some = slice(start, stop)
        act_choices(  # type: ignore[call-arg]
            SGEMM,
            self._features(observation[some]),
            *self._weights,
            *self._panels,
            state[some],
            ALL_ALLOWED if mask is None else mask[some],
            self._sizes,
            buffers.draws_array[some],
            state[some],
            buffers.action[some],
            buffers.log_prob[some],
            buffers.value[some],
        )

    def _features(self, observation: Array) -> Any:
        if self._encoder is not None:
            return self._encoder.forward(observation)[0]
        with torch.inference_mode():
            return self.policy.encoder(torch.from_numpy(observation)).contiguous().numpy()

    def _allocate(self, batch: int) -> _Buffers:
        choices = len(self._sizes)
        draws = torch.empty(batch, choices, dtype=torch.float64)
        action = np.empty((batch, choices), np.int32)
        outputs = np.empty(batch, np.float32), np.empty(batch, np.float32)
        buffers = self._buffers[batch] = _Buffers(draws, draws.numpy(), action, *outputs)
        return buffers
