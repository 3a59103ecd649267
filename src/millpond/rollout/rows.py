"""Rows of experience: preallocated, in the environment's dtypes, written in place.

    R rows   T horizon   A agents of an env   a agents of a row: A if a row is an env, 1 if it is an agent

Every array is [R, T, a, ...] (or [R, a, ...] if it belongs to the whole row). One env fills `A // a` consecutive rows at a
time, so that [n, A, ...] of n neighbouring envs is a reshape of their rows at a time step. On a device time is first in
memory, so that this reshape is one piece of it, and sequences are gathered as networks read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from millpond.errors import MillpondError
from millpond.rollout.schema import RowField

Array = npt.NDArray[Any]
TORCH = {"bool": torch.bool, "uint8": torch.uint8, "int32": torch.int32, "int64": torch.int64, "float32": torch.float32,
         "int8": torch.int8, "int16": torch.int16, "float64": torch.float64, "float16": torch.float16}  # fmt: skip


class Rows:
    """The arrays of `row_fields`, whose bytes the plan counts."""

    def __init__(
        self,
        fields: Sequence[RowField],
        rows: int,
        horizon: int,
        num_agents: int,
        agents_per_row: int,
        device: str,
        *,
        resets_state: bool = True,
    ) -> None:
        """`resets_state`: the recurrent state is zeroed where an episode begins inside a row."""
        self.rows, self.horizon = rows, horizon
        self.resets_state = resets_state
        self.num_agents, self.agents_per_row = num_agents, agents_per_row
        self.rows_per_env = num_agents // agents_per_row
        self.device = torch.device(device)
        self.fields = {field.name: field for field in fields}
        self.arrays: dict[str, Tensor] = {}
        on_cpu = self.device.type == "cpu"
        for field in fields:
            time = (horizon,) if field.per_step else ()
            lead = (rows, *time) if on_cpu else (*time, rows)
            shape, dtype = (*lead, agents_per_row, *field.shape), TORCH[field.dtype]
            array = torch.zeros(shape, dtype=dtype, device=self.device)
            self.arrays[field.name] = array.transpose(0, 1) if field.per_step and not on_cpu else array
        if not on_cpu:  # written together
            self._ends = torch.zeros((2, horizon, rows, agents_per_row), dtype=torch.bool, device=self.device)
            self.arrays["terminated"], self.arrays["truncated"] = (end.transpose(0, 1) for end in self._ends)
        self.following = np.full(
            rows, -1
        )  # the row in which the agents of a row went on in the same collection; -1: none
        # On the CPU also as NumPy arrays of the same memory, whose small slices cost a fraction of torch's.
        self._views: dict[str, Array] | None = (
            {name: tensor.numpy() for name, tensor in self.arrays.items()} if on_cpu else None
        )

    def __getitem__(self, name: str) -> Tensor:
        return self.arrays[name]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.arrays.values())

    def write(self, name: str, first_row: int, t: int, values: Array | Tensor) -> None:
        """Write [n, A, ...] of n neighbouring envs at time `t` of the rows from `first_row` on."""
        count = values.shape[0] * self.rows_per_env
        if self._views is not None:
            place = self._views[name][first_row : first_row + count, t]
            array = values.numpy() if isinstance(values, Tensor) else values
            place[...] = array.reshape(place.shape)
        else:
            target = self.arrays[name][first_row : first_row + count, t]
            tensor = values if isinstance(values, Tensor) else torch.from_numpy(values)
            target.copy_(tensor.reshape(target.shape))

    def places(self, first_row: int, num_envs: int) -> dict[str, Array] | None:
        """Return views [T, n, A, ...] of the rows that n neighbouring envs fill from `first_row` on; None on a device.

        An assignment to one time step of such a view is `write`, at a fraction of its cost for a few small envs.
        """
        if self._views is None:
            return None
        count, views = num_envs * self.rows_per_env, {}
        for name, field in self.fields.items():
            if field.per_step:  # rows are envs, or agents: one of the two axes that become A is 1
                rows = self._views[name][first_row : first_row + count].swapaxes(0, 1)
                views[name] = (
                    rows
                    if self.rows_per_env == 1
                    else rows[:, :, 0].reshape(self.horizon, num_envs, self.num_agents, *field.shape)
                )
        return views

    def device_places(self, first_row: int, num_envs: int) -> dict[str, Tensor]:
        """Return views [T, n * rows_per_env, a, ...] of the same rows on a device; none if the rows are on the CPU.

        `ends` [2, T, ...] are terminated and truncated together.
        """
        if self._views is not None:
            return {}
        some = slice(first_row, first_row + num_envs * self.rows_per_env)
        per_step = (name for name, field in self.fields.items() if field.per_step)
        places = {name: self.arrays[name].transpose(0, 1)[:, some] for name in per_step}
        return {**places, "ends": self._ends[:, :, some]}

    def write_row(self, name: str, first_row: int, values: Tensor) -> None:
        """Write [n, A, ...] that belong to whole rows."""
        count = values.shape[0] * self.rows_per_env
        target = self.arrays[name][first_row : first_row + count]
        target.copy_(values.reshape(target.shape))

    def drop(self, first_row: int, envs: Array, t: int) -> int:
        """Mark the steps before `t` of these envs' rows as not alive; return the number of agent steps lost by it."""
        dropped = 0
        for env in np.flatnonzero(envs):
            start = first_row + int(env) * self.rows_per_env
            alive = self.arrays["alive"][start : start + self.rows_per_env, :t]
            dropped += int(alive.sum())
            alive[...] = False
        return dropped

    def keep(self, first_row: int, count: int) -> None:
        """Move rows to the front, where the next iteration continues after them."""
        for tensor in self.arrays.values():
            tensor[:count] = tensor[first_row : first_row + count].clone()

    def sequences(self, names: Sequence[str], rows: Tensor, device: torch.device) -> dict[str, Tensor]:
        """Return rows as sequences: [b, T, a, ...] becomes [b * a, T, ...] on `device`, with time first in memory."""
        rows = rows.to(self.device)
        return {
            name: as_sequences(self.arrays[name], rows, device)
            if self.fields[name].per_step
            else self.arrays[name].index_select(0, rows).flatten(0, 1).to(device)
            for name in names
        }

    def write_back(self, rows: Tensor, ratio: Tensor, value: Tensor) -> None:
        """Store newest probability ratios and values [b, T, a] of the rows [b], from which advantages are recomputed.

        Those of steps at which the agent was not alive are never read.
        """
        rows = rows.to(self.device)
        for name, newest in (("ratio", ratio), ("value", value)):
            self.arrays[name].index_copy_(0, rows, newest.to(self.device, torch.float32))

    def state_dict(self, kept: int) -> dict[str, Tensor]:
        """Return the first rows, which wait for the next iteration."""
        return {name: tensor[:kept].clone() for name, tensor in self.arrays.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the rows of `state_dict`; if there are none, their shapes do not matter."""
        for name, tensor in state.items():
            if not len(tensor):
                continue
            target = self.arrays[name][: len(tensor)]
            if target.shape != tensor.shape:
                raise MillpondError(
                    f"the checkpoint holds {len(tensor)} rows that wait to be trained, with {name} of shape "
                    f"{tuple(tensor.shape[1:])}; here it is {tuple(target.shape[1:])}: the environment, or the way its "
                    "observations are laid out, has changed since. Start a new run with these weights: train --from RUN"
                )
            target.copy_(tensor)


def as_sequences(array: Tensor, rows: Tensor, device: torch.device) -> Tensor:
    """[R, T, a, ...] and rows [b] -> [b * a, T, ...] on `device`, with time first in memory."""
    if array.device.type == "cpu":
        time_first = array.index_select(0, rows).to(device).transpose(0, 1).contiguous()
    else:
        time_first = array.transpose(0, 1).index_select(1, rows).to(device)
    return time_first.flatten(1, 2).transpose(0, 1)


def by_row(sequences: Tensor, rows: Rows) -> Tensor:
    """[b * a, T] -> [b, T, a], the same memory."""
    return sequences.view(-1, rows.agents_per_row, rows.horizon).transpose(1, 2)


def resets(terminated: Tensor, truncated: Tensor) -> Tensor:
    """Return where the recurrent state is zeroed before a step: after each end of an episode. [B, T] -> [B, T]"""
    began = torch.zeros_like(terminated)  # in the same memory layout
    torch.logical_or(terminated[:, :-1], truncated[:, :-1], out=began[:, 1:])
    return began
