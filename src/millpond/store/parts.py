"""The objects that a checkpoint is collected from and restored to, and the weights that they accept."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from millpond.errors import MillpondError
from millpond.loop import NonFiniteError
from millpond.store.checkpoint import SKIP, Checkpoint, CheckpointError, one_line

if TYPE_CHECKING:
    import torch

MAX_WEIGHT = 1e12  # float32 ends at 3.4e38: two layers of such weights overflow


class Stateful(Protocol):
    """An object with state."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any, /) -> Any: ...


@dataclass(frozen=True)
class Parts:
    """The objects whose state a checkpoint holds, by the file that their state is stored in.

    weights  modules, and other objects whose state consists of tensors: safetensors
    state    optimisers, samplers, generators, envs: trees of plain values, arrays and tensors
    values   loop, counters, recorder: plain values, as readable JSON

    `may_lack` names parts of the state that are stored only if they have any: a checkpoint without them is complete.
    """

    weights: Mapping[str, Stateful] = field(default_factory=dict)
    state: Mapping[str, Stateful] = field(default_factory=dict)
    values: Mapping[str, Stateful] = field(default_factory=dict)
    may_lack: Collection[str] = ()

    def collect(self, updates: int, score: float | None = None, best: tuple[int, float] | None = None) -> Checkpoint:
        """Return the state of all parts. Raises `NonFiniteError` if a weight is one that no training can go on from."""
        for name, part in self.weights.items():
            _require_usable_weights(name, part, updates)
        weights, state, values = (
            {name: part.state_dict() for name, part in group.items()}
            for group in (self.weights, self.state, self.values)
        )
        state = {name: own for name, own in state.items() if own or name not in self.may_lack}
        return Checkpoint(updates, weights, state, values, score, best)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore the state of every part. A checkpoint with other parts is refused before anything is changed."""
        groups = (
            ("weights", self.weights, checkpoint.weights),
            ("state", self.state, checkpoint.state),
            ("values", self.values, checkpoint.values),
        )
        for kind, owners, stored in groups:
            # A part without tensors does not appear in the stored weights.
            missing = [
                name
                for name in owners
                if name not in stored and name not in self.may_lack and (kind != "weights" or owners[name].state_dict())
            ]
            surplus = [name for name in stored if name not in owners]
            if missing or surplus:
                raise CheckpointError(
                    f"the checkpoint's {kind} are {sorted(stored)}, this run's are {sorted(owners)}; "
                    f"resume with the settings that the run started with"
                )
        source = f"the checkpoint {checkpoint.path}" if checkpoint.path else "the checkpoint"
        require_fitting_weights(self.weights, checkpoint.weights, source)
        for kind, owners, stored in groups:
            _load_states(kind, owners, stored)


def _require_usable_weights(part: str, owner: Stateful, updates: int) -> None:
    """Refuse parameters that are NaN, infinite or so large that products of three overflow, and buffers that are NaN."""
    import torch

    parameters = dict(owner.named_parameters()) if isinstance(owner, torch.nn.Module) else {}
    for name, tensor in owner.state_dict().items():
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point() or not tensor.numel():
            continue
        largest = float(tensor.detach().abs().max())
        if math.isnan(largest) or (name in parameters and not largest < MAX_WEIGHT):
            count = f"{updates:,} update{'' if updates == 1 else 's'}"
            raise NonFiniteError(f"after {count}, no checkpoint is written", f"weight {part}/{name}", largest)


def load_weights(owners: Mapping[str, Stateful], weights: Mapping[str, Any], source: str) -> None:
    """Load the weights of another run. Every part must exist and fit. Errors name the `source` of the weights."""
    missing = [name for name in owners if name not in weights]
    if missing:
        raise CheckpointError(f"{source} has no weights of {missing}; it has {sorted(weights)}")
    require_fitting_weights(owners, weights, source)
    _load_states(f"{source}: weights", owners, weights)


def require_fitting_weights(owners: Mapping[str, Stateful], weights: Mapping[str, Any], source: str) -> None:
    """Refuse tensors of other dtypes, and values that are not finite where those of the new network are.

    A buffer of a custom policy may have infinities of its own, such as a mask of -inf; its parameters have none.
    """
    import torch

    for part, owner in owners.items():
        expected = owner.state_dict()
        buffers = dict(owner.named_buffers()) if isinstance(owner, torch.nn.Module) else {}
        for name, tensor in weights.get(part, {}).items():
            fresh = expected.get(name) if isinstance(expected, Mapping) else None
            if not isinstance(fresh, torch.Tensor) or fresh.shape != tensor.shape:
                continue  # names and shapes are checked by the owner
            # Running means are in float32 on a device that has no float64.
            wide = name in buffers and {fresh.dtype, tensor.dtype} == {torch.float32, torch.float64}
            if fresh.dtype != tensor.dtype and not wide:
                raise CheckpointError(
                    f"{source}: {part}/{name} is {_dtype(tensor)}, this run has {_dtype(fresh)}; {SKIP}"
                )
            if not tensor.is_floating_point():
                continue
            bad = int((~tensor.isfinite() & fresh.to(tensor.device).isfinite()).sum())
            if bad:
                raise CheckpointError(
                    f"{source}: {bad:,} of {tensor.numel():,} values of {part}/{name} are not finite (NaN or infinity), so "
                    f"the network cannot act. Use an older checkpoint: move the folder of this one away, and the one "
                    f"before it is used"
                )


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _load_states(kind: str, owners: Mapping[str, Stateful], stored: Mapping[str, Any]) -> None:
    for name, owner in owners.items():
        try:
            owner.load_state_dict(stored.get(name, {}))
        except MillpondError:
            raise
        except Exception as error:  # a state of a stranger: a part may raise anything
            raise CheckpointError(f"{kind} of {name!r} do not fit: {one_line(error)}") from error
