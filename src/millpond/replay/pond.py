"""A pond: a ring of transitions on the training device, each observation stored once.

Every lane (env) has a ring of its own. A row of it is a step, or the final observation behind an episode's last step.
Stacks of frames and next observations are put together when transitions are sampled, by the same walk as in a lake.

# T steps   L lanes   C rows of a lane's ring   n drawn   s stack
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from millpond.plurals import plural
from millpond.replay.draw import Picked, draw_transitions
from millpond.replay.errors import LakeError, PondFull
from millpond.replay.schema import COLUMNS, FINAL, FIRST, HAS_FINAL, TERMINATED, TRUNCATED, Field, Schema, row_bytes
from millpond.replay.steps import LaneState, Steps, number_episodes, validate
from millpond.replay.walk import NO_ROW, count_transitions

Array = np.ndarray[Any, Any]
log = logging.getLogger(__name__)


@dataclass
class PondBatch:
    """Transitions on the pond's device; the fields are those of `LakeBatch`. `column` holds provenance and extra fields."""

    observation: Any
    next_observation: Any
    action: torch.Tensor
    reward: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    discount: torch.Tensor
    steps: torch.Tensor
    column: dict[str, torch.Tensor]


@dataclass(frozen=True)
class RingRows:
    """A pond's rows, oldest first in each run, as the walk wants them; `slot` says where each is stored."""

    flags: Array
    run_begin: Array
    slot: Array

    @property
    def rows(self) -> int:
        return len(self.flags)

    @property
    def lanes(self) -> int:
        """Every run is a lane of its own: nothing lies before or behind it."""
        return len(self.run_begin) - 1


class Pond:
    """`init / add / sample / can_sample`. All memory is taken by `init`."""

    def __init__(self, schema: Schema, rows: int, lanes: int, device: torch.device, guarded: bool) -> None:
        self.schema, self.lanes, self.device, self.guarded = schema, lanes, device, guarded
        self.rows, self.ring = rows, rows // lanes
        self.fields = {schema.column(field): _storage(field, rows, device) for field in _fields(schema)}
        for name, dtype in COLUMNS.items():
            self.fields[name] = _storage(Field(name, (), dtype), rows, device)
        self.flags = np.zeros(rows, np.uint8)
        self.clear()

    @staticmethod
    def init(
        schema: Schema,
        rows: int,
        *,
        lanes: int = 1,
        device: str | torch.device = "cpu",
        guarded: bool = False,
        announce: Callable[[str], None] | None = None,
    ) -> Pond:
        """A pond of `rows` observations. What it will take is announced before it is taken.

        `guarded`: steps are to be poured into a lake, and are never overwritten before they are.
        """
        if rows < lanes or rows % lanes:
            raise LakeError(f"rows={rows:,} is not a multiple of lanes={lanes}; try {max(rows // lanes, 1) * lanes:,}")
        text = f"pond: {plural(rows, 'row')} of {row_bytes(schema):,} bytes on {device}: {rows * row_bytes(schema):,} bytes"
        announce(text) if announce else log.info(text)
        return Pond(schema, rows, lanes, torch.device(device), guarded)

    def clear(self) -> None:
        """Forget everything; the memory stays."""
        self.heads = np.zeros(self.lanes, np.int64)  # rows ever written, by lane
        self.poured = np.zeros(self.lanes, np.int64)
        self._episodes = LaneState.fresh(self.lanes)
        self._runs: Array | None = None  # first slots of what `fill` laid down; None: rings
        self._view: RingRows | None = None

    @property
    def room(self) -> int:
        """RecordView that the fullest lane can take before it would overwrite what was not poured yet."""
        return int(self.ring - (self.heads - self.poured).max())

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.fields.values()) + self.flags.nbytes

    def add(self, steps: Steps) -> None:
        """Store `[T, L]` steps. Refused as a whole where it would overwrite steps that must be poured first."""
        if self._runs is not None:
            raise LakeError("the pond was filled from a lake; clear() it before steps are added")
        steps = validate(_on_host(steps), self.schema, self.lanes)
        has_final, count = steps.has_final, len(steps.reward)
        earlier = np.cumsum(has_final, axis=0) - has_final
        place = self.heads + np.arange(count)[:, None] + earlier  # [T, L], counted from the beginning
        heads = self.heads + count + has_final.sum(axis=0)
        if (heads - self.heads).max() > self.ring:
            raise PondFull(f"{count} steps at once do not fit into {self.ring} rows a lane; add fewer")
        if self.guarded and (heads - self.poured).max() > self.ring:
            raise PondFull(
                f"the pond has {self.room} rows left in its fullest lane and {int((heads - self.heads).max())} are needed: "
                "pour it first"
            )
        _, _, first, self._episodes = number_episodes(steps, self._episodes)
        slots, final_slots = self._slots(place), self._slots(place + 1)[has_final]
        flags = first * FIRST + steps.terminated * TERMINATED + steps.truncated * TRUNCATED + has_final * HAS_FINAL
        self.flags[slots] = flags
        self.flags[final_slots] = FINAL
        where, final_where = self._index(slots), self._index(final_slots)
        for name, values in steps.columns().items():
            self._put(name, where, values)
        for field in self.schema.observation:
            column = self.schema.column(field)
            self._put(column, where, steps.observation[field.name])
            self._put(column, final_where, steps.final_observation[field.name])
        self.heads, self._view = heads, None

    def _slots(self, place: Array) -> Array:
        """Where the rows of [.., L] places lie: each lane has `ring` slots of its own."""
        slots: Array = np.arange(self.lanes) * self.ring + place % self.ring
        return slots

    def _index(self, slots: Array) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(slots.reshape(-1), np.int64)).to(self.device)

    def _put(self, name: str, where: torch.Tensor, values: Array) -> None:
        target = self.fields[name]
        source = torch.from_numpy(np.ascontiguousarray(values)).to(self.device, target.dtype)
        target[where] = source.reshape(len(where), *target.shape[1:])

    def view(self) -> RingRows:
        """The rows that are held now, oldest first in each lane."""
        if self._view is None:
            if self._runs is not None:
                slot = np.arange(int(self._runs[-1]))
                self._view = RingRows(self.flags[slot], self._runs, slot)
            else:
                held = np.minimum(self.heads, self.ring)
                parts = [
                    lane * self.ring + np.arange(head - count, head) % self.ring
                    for lane, (head, count) in enumerate(zip(self.heads.tolist(), held.tolist(), strict=True))
                ]
                slot = np.concatenate(parts)
                self._view = RingRows(self.flags[slot], np.append(0, np.cumsum(held)), slot)
        return self._view

    def transitions(self, stack: int | None = None, n_step: int = 1) -> int:
        """How many valid transitions `sample` chooses from."""
        view = self.view()
        return int(count_transitions(view.flags, view.run_begin, view.lanes, stack or 1, n_step))

    def can_sample(self, n: int = 1, *, stack: int | None = None, n_step: int = 1) -> bool:
        """Whether there are at least n valid transitions."""
        return self.transitions(stack, n_step) >= n

    def sample(
        self,
        n: int,
        rng: np.random.Generator,
        *,
        stack: int | None = None,
        n_step: int = 1,
        gamma: float = 1.0,
        padding: str = "zero",
        part: slice = slice(None),
    ) -> PondBatch:
        """n transitions, exactly uniform over the valid ones, or a part of these n; arguments as for `Lake.sample`."""
        view = self.view()
        repeat = padding == "repeat"
        picked = draw_transitions([view], None, n, rng, stack=stack or 1, n_step=n_step, repeat=repeat)
        return self._gather(view, picked.part(part), gamma, stacked=stack is not None)

    def _gather(self, view: RingRows, picked: Picked, gamma: float, *, stacked: bool) -> PondBatch:
        stack, n_step = picked.observed.shape[1], picked.path.shape[1]
        windows = [picked.observed, picked.next_observed[:, -1:] if n_step == 1 else picked.next_observed]
        rows = np.concatenate(windows, axis=1)
        where = torch.from_numpy(view.slot[np.maximum(rows, 0)]).to(self.device)
        empty = torch.from_numpy(rows == NO_ROW).to(self.device)
        observed = {}
        for field in self.schema.observation:
            window = self.fields[self.schema.column(field)][where]
            observed[field.name] = window.masked_fill_(empty.reshape(*empty.shape, *(1 for _ in field.shape)), 0)
        now = {name: window[:, :stack] if stacked else window[:, 0] for name, window in observed.items()}
        then = {name: window[:, -stack:] if stacked else window[:, -1] for name, window in observed.items()}
        last = view.flags[picked.path[np.arange(len(picked.path)), picked.steps - 1]]
        terminated = (last & TERMINATED) > 0
        powers = gamma ** np.arange(n_step + 1)
        path = torch.from_numpy(view.slot[np.maximum(picked.path, 0)]).to(self.device)
        weight = torch.from_numpy(powers[:n_step] * (picked.path != NO_ROW)).to(self.device)
        first = path[:, 0]
        names = [*COLUMNS, *(field.name for field in self.schema.extra)]
        single = self.schema.single
        return PondBatch(
            observation=now["observation"] if single else now,
            next_observation=then["observation"] if single else then,
            action=self.fields[self.schema.action.name][first],
            reward=(self.fields["reward"][path].double() * weight).sum(1).float(),
            terminated=self._send(terminated),
            truncated=self._send(((last & TRUNCATED) > 0) & ~terminated),
            discount=self._send(np.where(terminated, 0.0, powers[picked.steps]).astype(np.float32)),
            steps=self._send(picked.steps),
            column={name: self.fields[name][first] for name in names},
        )

    def _send(self, array: Array) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)

    def state_dict(self) -> dict[str, Any]:
        """Everything, as tensors: safe to load with `weights_only=True`."""
        episodes = self._episodes
        host: dict[str, Array] = {
            "flags": self.flags,
            "heads": self.heads,
            "poured": self.poured,
            "episode": episodes.episode,
            "episode_step": episodes.episode_step,
            "open": episodes.open,
            "next_episode": np.array(episodes.next_episode),
            "runs": np.empty(0, np.int64) if self._runs is None else self._runs,
        }
        fields = {name: tensor.clone() for name, tensor in self.fields.items()}
        return {"fields": fields, "host": {name: torch.from_numpy(array.copy()) for name, array in host.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the state of a pond of the same schema and size."""
        for name, tensor in self.fields.items():
            there = state["fields"].get(name)
            if there is None or there.shape != tensor.shape or there.dtype != tensor.dtype:
                raise LakeError(
                    f"the saved pond has {name}: {getattr(there, 'shape', None)}; this one {tuple(tensor.shape)}"
                )
            tensor.copy_(there)
        host = {name: tensor.numpy().copy() for name, tensor in state["host"].items()}
        self.flags, self.heads, self.poured = host["flags"], host["heads"], host["poured"]
        opened = host["open"].astype(bool)
        self._episodes = LaneState(host["episode"], host["episode_step"], opened, int(host["next_episode"]))
        self._runs = host["runs"] if len(host["runs"]) else None
        self._view = None

    def continue_with(self, episodes: LaneState) -> None:
        """Go on with these episodes, after the rings were written from elsewhere."""
        self._episodes, self._view = episodes, None

    def lay_down(self, flags: Array, run_begin: Array) -> None:
        """Take rows 0 to `len(flags)` as they were written by `fill`, in runs that have nothing to do with each other."""
        self.clear()
        self.flags[: len(flags)] = flags
        self._runs = run_begin.astype(np.int64)


def _fields(schema: Schema) -> tuple[Field, ...]:
    return (*schema.observation, schema.action, *schema.extra)


def _storage(field: Field, rows: int, device: torch.device) -> torch.Tensor:
    try:
        dtype = torch.from_numpy(np.empty(0, field.dtype)).dtype
    except TypeError:
        raise LakeError(
            f"field {field.name!r} has dtype {field.dtype}, which torch does not have; store another"
        ) from None
    return torch.zeros((rows, *field.shape), dtype=dtype, device=device)


def _on_host(steps: Steps) -> Steps:
    """Return tensors as arrays; those on another device are copied once."""
    if steps.valid_for is not None:
        return steps

    def host(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: host(part) for name, part in value.items()}
        return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value

    return Steps(**{name: host(value) for name, value in vars(steps).items()})
