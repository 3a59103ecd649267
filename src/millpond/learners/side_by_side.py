"""Q of several equal networks: in one operation a layer for all of them, or one network after the other.

One operation for all saves the fixed cost of an operation, which is what small networks on plain vectors spend their
time with. Convolutions and tables of grids and tokens are busy with numbers instead, and gain nothing
(benchmarks/learning/side_by_side.py).

a networks of a unit   N observations of each   H hidden
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from millpond.learners.errors import LearnerError
from millpond.learners.flat import FlatParameters
from millpond.learners.q_network import QNetwork
from millpond.policies.vector import VectorEncoder


class SideBySide:
    """`units` are the slices of networks that are asked together: all of them, or each for itself."""

    def __init__(self, networks: Sequence[QNetwork], parameters: FlatParameters, batched: bool | None) -> None:
        self.networks, self.parameters = list(networks), parameters
        can = set(networks[0].encoder.kinds) == {"vector"}
        if batched and not can:
            kinds = ", ".join(sorted(networks[0].encoder.kinds))
            raise LearnerError(f"batched=True is for plain vectors; these observations are read as {kinds}")
        self.batched = can and len(networks) > 1 if batched is None else batched
        if self.batched:
            self.units = [slice(0, len(networks))]
            self.stacked = parameters.stacked()
        else:
            self.units = [slice(agent, agent + 1) for agent in range(len(networks))]

    def __call__(self, unit: slice, observation: Tensor) -> Tensor:
        """observation [a, N, *obs] -> Q [a, N, actions]."""
        if not self.batched:
            q: Tensor = self.networks[unit.start](observation[0])
            return q.unsqueeze(0)
        return self._all(observation)

    def backward(self, loss: Tensor) -> None:
        """From the losses [a] of one unit to the gradients of its networks."""
        if self.batched:
            self.parameters.put_gradients(torch.autograd.grad(loss.sum(), list(self.stacked.values())))
        else:
            loss.sum().backward()  # type: ignore[no-untyped-call]

    def _all(self, observation: Tensor) -> Tensor:
        """The layers of `QNetwork` on plain vectors, for all networks at once."""
        one, (agents, count) = self.networks[0], observation.shape[:2]
        hidden = self.stacked["encoder.bias"].unsqueeze(1)
        for part, (reader, encoder) in enumerate(zip(one.encoder.readers, one.encoder.encoders, strict=True)):
            assert isinstance(encoder, VectorEncoder)
            numbers = encoder.scaled(reader(observation.flatten(0, 1))).view(agents, count, -1)
            weight = self.stacked[f"encoder.encoders.{part}.linear.weight"]
            hidden = torch.baddbmm(hidden, numbers, weight.transpose(1, 2))
        hidden = self._norm("encoder.norm", hidden).relu_()
        if isinstance(one.hidden, nn.Sequential):
            hidden = self._norm("hidden.1", self._linear("hidden.0", hidden)).relu_()
        return self._linear("output", hidden)

    def _linear(self, name: str, numbers: Tensor) -> Tensor:
        weight, bias = self.stacked[f"{name}.weight"], self.stacked[f"{name}.bias"]
        return torch.baddbmm(bias.unsqueeze(1), numbers, weight.transpose(1, 2))

    def _norm(self, name: str, numbers: Tensor) -> Tensor:
        weight, bias = self.stacked[f"{name}.weight"], self.stacked[f"{name}.bias"]
        normal = F.layer_norm(numbers, numbers.shape[-1:])
        return torch.addcmul(bias.unsqueeze(1), normal, weight.unsqueeze(1))
