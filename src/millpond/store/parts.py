"""Everything that a checkpoint is made of, named once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from millpond.store.checkpoint import Checkpoint
from millpond.store.errors import CheckpointError


class Stateful(Protocol):
    """Whoever owns state."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any, /) -> Any: ...


@dataclass(frozen=True)
class Parts:
    """The owners of state, by where their state is stored.

    weights  modules, and anything else whose state is tensors: safetensors, for others to load
    state    optimisers, samplers, generators, environments: trees of plain values, arrays and tensors
    values   loop, counters, recorder: plain values, as JSON to be read by people
    """

    weights: Mapping[str, Stateful] = field(default_factory=dict)
    state: Mapping[str, Stateful] = field(default_factory=dict)
    values: Mapping[str, Stateful] = field(default_factory=dict)

    def collect(self, updates: int, score: float | None = None, best: tuple[int, float] | None = None) -> Checkpoint:
        weights, state, values = (
            {name: part.state_dict() for name, part in group.items()}
            for group in (self.weights, self.state, self.values)
        )
        return Checkpoint(updates, weights, state, values, score, best)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Give every part its state back. A checkpoint with other parts is refused before anything is changed."""
        groups = (
            ("weights", self.weights, checkpoint.weights),
            ("state", self.state, checkpoint.state),
            ("values", self.values, checkpoint.values),
        )
        for kind, owners, stored in groups:
            # A part without any tensor leaves no trace among the weights.
            missing = [
                name for name in owners if name not in stored and (kind != "weights" or owners[name].state_dict())
            ]
            surplus = [name for name in stored if name not in owners]
            if missing or surplus:
                raise CheckpointError(
                    f"the checkpoint's {kind} are {sorted(stored)}, this run's are {sorted(owners)}; "
                    f"resume with the settings that the run began with"
                )
        for kind, owners, stored in groups:
            _give(kind, owners, stored)


def load_weights(owners: Mapping[str, Stateful], weights: Mapping[str, Any], source: str) -> None:
    """Begin with another run's weights. Every part must be there and fit. Errors say that they are from `source`."""
    missing = [name for name in owners if name not in weights]
    if missing:
        raise CheckpointError(f"{source} has no weights of {missing}; it has {sorted(weights)}")
    _give(f"{source}: weights", owners, weights)


def _give(kind: str, owners: Mapping[str, Stateful], stored: Mapping[str, Any]) -> None:
    for name, owner in owners.items():
        try:
            owner.load_state_dict(stored.get(name, {}))
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(f"{kind} of {name!r} do not fit: {error}") from error
