"""Acting without torch in between: arrays in, arrays out, for policies whose core and heads are compiled.

Where a batch is small, torch's own bookkeeping around each of some forty calls takes longer than the arithmetic.

B observations  H hidden  C choices
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from millpond.policies import products
from millpond.policies.act_rows import act_choices
from millpond.policies.compiled_encoders import CompiledEncoder
from millpond.policies.heads import EVERYTHING, ChoiceHead
from millpond.policies.lstm import LSTM
from millpond.policies.lstm_rows import NO_PANELS, is_packed
from millpond.policies.packed import panels_of_transposed
from millpond.policies.precision import is_fused_for
from millpond.policies.threads import in_threads, threads_for, torch_threads

if TYPE_CHECKING:
    from millpond.policies.policy import Policy

Array = npt.NDArray[Any]


class Acted(NamedTuple):
    """action [B, C] (or [B]), log_prob [B], value [B]; written over when the same actor acts on as many again."""

    action: Array
    log_prob: Array
    value: Array


class _Place(NamedTuple):
    """Where what belongs to a batch of one size is written."""

    draws: torch.Tensor
    draws_array: Array
    action: Array
    log_prob: Array
    value: Array


def is_compiled(policy: Policy) -> bool:
    """Whether all behind the encoder is compiled: an LSTM and choices in float32 on the CPU, with a BLAS to call."""
    return (
        bool(products.SGEMM)
        and isinstance(policy.core, LSTM)
        and isinstance(policy.head, ChoiceHead)
        and is_fused_for(policy.core.bias)
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def compiled_encoder(policy: Policy) -> CompiledEncoder | None:
    """An encoder of one's own need not have any."""
    found: CompiledEncoder | None = getattr(policy.encoder, "compiled", lambda: None)()
    return found


def is_encoder_compiled(policy: Policy) -> bool:
    """Whether there is one."""
    return bool(getattr(policy.encoder, "is_compiled", lambda: False)())


class CompiledActor:
    """Acts with the weights that the policy has; they may change in place until they settle, and must not be replaced or
    moved.
    """

    def __init__(self, policy: Policy) -> None:
        core, head = policy.core, policy.head
        assert isinstance(core, LSTM)
        assert isinstance(head, ChoiceHead)
        self.policy, self._sizes, self._several = policy, head.choice_sizes, head.several
        layers = core.w_input, core.w_hidden, core.bias, policy.output.weight, policy.output.bias
        self._weights: list[Any] = [layer.detach().numpy() for layer in layers]
        self._panels = [NO_PANELS, NO_PANELS]
        self._encoder = compiled_encoder(policy)
        self._places: dict[int, _Place] = {}

    def settle(self) -> None:
        """From now on weights stay as they are, so that it pays to pack them."""
        of_core = self._weights[:2]
        packed = is_packed(*(weight.shape[1] for weight in of_core))
        self._panels = [panels_of_transposed(weight, packed) for weight in of_core]

    def act(
        self, observation: Array, state: Array, after: Array, mask: Array | None, generator: torch.Generator | None
    ) -> Acted:
        """observation [B, *obs], state [B, 2, H], mask [B, A]; the state after goes to `after`, which may be `state`.

        All arrays are contiguous. Draws from `generator` as `Policy.act` does, so that both act alike.
        """
        batch = len(observation)
        place = self._places.get(batch) or self._make_place(batch)
        torch.rand(place.draws.shape, dtype=torch.float64, generator=generator, out=place.draws)
        least = self.policy.least_for_a_thread()
        if threads_for(batch, least) == 1:
            with torch_threads(1):
                self._act_for(0, batch, observation, state, after, mask, place)
        else:
            given = observation, state, after, mask, place
            in_threads(lambda start, stop: self._act_for(start, stop, *given), batch, least)
        return Acted(place.action if self._several else place.action[:, 0], place.log_prob, place.value)

    def _act_for(
        self, start: int, stop: int, observation: Array, state: Array, after: Array, mask: Array | None, place: _Place
    ) -> None:
        some = slice(start, stop)
        act_choices(  # type: ignore[call-arg]
            products.SGEMM,
            self._features(observation[some]),
            *self._weights,
            *self._panels,
            state[some],
            EVERYTHING if mask is None else mask[some],
            self._sizes,
            place.draws_array[some],
            after[some],
            place.action[some],
            place.log_prob[some],
            place.value[some],
        )

    def _features(self, observation: Array) -> Any:
        if self._encoder is not None:
            return self._encoder.forward(observation)[0]
        with torch.inference_mode():
            return self.policy.encoder(torch.from_numpy(observation)).contiguous().numpy()

    def _make_place(self, batch: int) -> _Place:
        choices = len(self._sizes)
        draws = torch.empty(batch, choices, dtype=torch.float64)
        action = np.empty((batch, choices), np.int32)
        found = np.empty(batch, np.float32), np.empty(batch, np.float32)
        made = self._places[batch] = _Place(draws, draws.numpy(), action, *found)
        return made
