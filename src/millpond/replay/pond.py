"""A pond: a ring of records on the training device, each observation stored once.

Every lane (env) has its own ring. A record is a step, or the final observation after an episode's last step.
Stacks of frames and next observations are built when transitions are sampled, by the same code as in a lake.

T steps   L lanes   n drawn   s stack
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from millpond.compiled import compiled
from millpond.devices import saved, wide_dtype
from millpond.devices.sending import Sender
from millpond.formatting import plural
from millpond.replay.draw import DrawnTransitions, draw_transitions, plan_at, transition_plan
from millpond.replay.ring_view import RingView
from millpond.replay.schema import (
    ACTION_MASK,
    COLUMNS,
    FINAL,
    FIRST,
    HAS_FINAL,
    TERMINATED,
    TRUNCATED,
    Field,
    LakeError,
    PondFull,
    Schema,
    pond_record_bytes,
)
from millpond.replay.steps import LaneState, Steps, number_episodes, validate
from millpond.replay.transitions import NO_RECORD, Runs, count_transitions

Array = np.ndarray[Any, Any]
log = logging.getLogger(__name__)


@dataclass
class PondBatch:
    """Transitions on the pond's device, with the fields of `LakeBatch`; `column` has provenance and extra fields."""

    observation: Any
    next_observation: Any
    action: torch.Tensor
    reward: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    discount: torch.Tensor
    steps: torch.Tensor
    column: dict[str, torch.Tensor]
    next_action_mask: torch.Tensor | None = None  # [n, actions]; only after `separate_masks`

    def split(self, count: int) -> list[PondBatch]:
        """Return the transitions as `count` batches of one size, in the same memory."""

        def cut(value: Any) -> Sequence[Any]:
            if isinstance(value, dict):
                cuts = {name: cut(one) for name, one in value.items()}
                return [{name: parts[k] for name, parts in cuts.items()} for k in range(count)]
            return [None] * count if value is None else value.split(len(value) // count)

        fields = {name: cut(value) for name, value in vars(self).items()}
        return [PondBatch(**{name: parts[k] for name, parts in fields.items()}) for k in range(count)]


def separate_masks(batch: PondBatch, *, stacked: bool) -> PondBatch:
    """Take the masks out of the observations of a batch, if they have any; `stacked`: observations are stacks of frames."""
    if not isinstance(batch.observation, dict) or set(batch.observation) != {"observation", ACTION_MASK}:
        return batch
    mask = batch.next_observation[ACTION_MASK]
    return replace(
        batch,
        observation=batch.observation["observation"],
        next_observation=batch.next_observation["observation"],
        next_action_mask=mask[:, -1] if stacked else mask,
    )


class Pond:
    """`init / add / sample / can_sample`. All memory is allocated by `init`."""

    def __init__(self, schema: Schema, records: int, lanes: int, device: torch.device, guarded: bool) -> None:
        self.schema, self.lanes, self.device, self.guarded = schema, lanes, device, guarded
        self.capacity, self.ring_size = records, records // lanes
        fields = (*schema.observation, schema.action, *schema.extra)
        self.fields = {schema.column(field): _storage(field, records, device) for field in fields}
        for name, dtype in COLUMNS.items():
            self.fields[name] = _storage(Field(name, (), dtype), records, device)
        self.flags = np.zeros(records, np.uint8)
        self.send = Sender(device)
        self.clear()

    @staticmethod
    def init(
        schema: Schema,
        records: int,
        *,
        lanes: int = 1,
        device: str | torch.device = "cpu",
        guarded: bool = False,
        announce: Callable[[str], None] | None = None,
    ) -> Pond:
        """Make a pond of `records` records, `records / lanes` per lane. Its size is announced before it is allocated.

        `guarded`: steps are poured into a lake, and never overwritten before that.
        """
        if records < lanes or records % lanes:
            fitting = max(records // lanes, 1) * lanes
            raise LakeError(f"records={records:,} is not a multiple of lanes={lanes}; try {fitting:,}")
        width = pond_record_bytes(schema)
        text = f"pond: {plural(records, 'record')} of {width:,} bytes on {device}: {records * width:,} bytes"
        announce(text) if announce else log.info(text)
        return Pond(schema, records, lanes, torch.device(device), guarded)

    def clear(self) -> None:
        """Drop all records; the memory stays allocated."""
        self.heads = np.zeros(self.lanes, np.int64)  # records ever written, by lane
        self.poured = np.zeros(self.lanes, np.int64)
        self._episodes = LaneState.fresh(self.lanes)
        self._runs: Array | None = None  # first slots of the runs that `fill` wrote; None: rings
        self._view: RingView | None = None
        self.content = object()  # another one as soon as records are replaced, not only added

    @property
    def room(self) -> int:
        """Records that fit into the fullest lane before it would overwrite one that is not poured yet."""
        return int(self.ring_size - (self.heads - self.poured).max())

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.fields.values()) + self.flags.nbytes

    def add(self, steps: Steps) -> None:
        """Store `[T, L]` steps. Refused as a whole if it would overwrite steps that must be poured first."""
        if self._runs is not None:
            raise LakeError("the pond was filled from a lake; call clear() before adding steps")
        steps = validate(_on_host(steps), self.schema, self.lanes)
        has_final, count = steps.has_final, len(steps.reward)
        earlier = np.cumsum(has_final, axis=0) - has_final
        place = self.heads + np.arange(count)[:, None] + earlier  # [T, L], counted from the lane's first record ever
        heads = self.heads + count + has_final.sum(axis=0)
        if (heads - self.heads).max() > self.ring_size:
            raise PondFull(f"{count} steps at once do not fit into {self.ring_size} records per lane; add fewer")
        if self.guarded and (heads - self.poured).max() > self.ring_size:
            needed = int((heads - self.heads).max())
            raise PondFull(
                f"the pond has {self.room} records left in its fullest lane and needs {needed}: pour it first"
            )
        _, _, first, self._episodes = number_episodes(steps, self._episodes)
        slots, final_slots = self._slots(place), self._slots(place + 1)[has_final]
        flags = first * FIRST + steps.terminated * TERMINATED + steps.truncated * TRUNCATED + has_final * HAS_FINAL
        self.flags[slots] = flags
        self.flags[final_slots] = FINAL
        self._write(steps, slots, final_slots)
        self.heads, self._view = heads, None

    def _write(self, steps: Steps, slots: Array, final_slots: Array) -> None:
        """Write validated steps into slots [T, L], and their final observations into others [K]."""
        columns, finals = {**steps.columns()}, {}
        for field in self.schema.observation:
            columns[self.schema.column(field)] = steps.observation[field.name]
            if len(final_slots):
                finals[self.schema.column(field)] = steps.final_observation[field.name]
        if self.device.type == "cpu":  # with a few steps numpy takes a tenth of torch's time
            for place, values_by_name in ((slots, columns), (final_slots, finals)):
                for name, values in values_by_name.items():
                    self.fields[name].numpy()[place] = values
            return
        sent = self.send(
            {f"step/{name}": values for name, values in columns.items()}
            | {f"final/{name}": values for name, values in finals.items()}
            | {"slots": slots.reshape(-1), "final_slots": final_slots}
        )
        for path, values in sent.items():
            kind, _, name = path.partition("/")
            if name:
                target, index = self.fields[name], sent["slots" if kind == "step" else "final_slots"]
                target.index_copy_(0, index, values.view(len(index), *target.shape[1:]).to(target.dtype))

    def _slots(self, place: Array) -> Array:
        """Return the slots of places [.., L]: each lane has `ring_size` slots."""
        slots: Array = np.arange(self.lanes) * self.ring_size + place % self.ring_size
        return slots

    def view(self) -> RingView:
        """Return the current records, oldest first in each lane."""
        if self._view is None:
            if self._runs is None:
                begin = np.arange(self.lanes + 1) * self.ring_size
                held = np.minimum(self.heads, self.ring_size)
                oldest = begin[:-1] + np.where(self.heads > self.ring_size, self.heads % self.ring_size, 0)
                newest = np.where(held > 0, begin[:-1] + (self.heads - 1) % self.ring_size, begin[:-1] - 1)
            else:
                begin, held = self._runs, np.diff(self._runs)
                oldest, newest = begin[:-1], begin[1:] - 1
            self._view = RingView(self.flags, Runs(begin, len(held), np.stack([oldest, newest], axis=1)), held)
        return self._view

    def transitions(self, stack: int | None = None, n_step: int = 1) -> int:
        """Return the number of valid transitions."""
        view = self.view()
        return int(count_transitions(view.flags, view.runs, stack or 1, n_step))

    def can_sample(self, n: int = 1, *, stack: int | None = None, n_step: int = 1) -> bool:
        """Return True if there are at least n valid transitions."""
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
        columns: Sequence[str] | None = None,
    ) -> PondBatch:
        """Draw n transitions, exactly uniform over the valid ones; return those in `part`. Arguments as for `Lake.sample`.

        `columns` of the batch are read: None for all.
        """
        (batch,) = self.sample_many(
            1, n, rng, stack=stack, n_step=n_step, gamma=gamma, padding=padding, part=part, columns=columns
        )
        return batch

    def sample_many(
        self,
        count: int,
        n: int,
        rng: np.random.Generator,
        *,
        stack: int | None = None,
        n_step: int = 1,
        gamma: float = 1.0,
        padding: str = "zero",
        part: slice = slice(None),
        columns: Sequence[str] | None = None,
    ) -> list[PondBatch]:
        """Draw `count` batches as `sample` does, one after the other; they are read together and lie side by side in memory."""
        view, repeat = self.view(), padding == "repeat"
        drawn = [
            draw_transitions([view], None, n, rng, stack=stack or 1, n_step=n_step, repeat=repeat).part(part)
            for _ in range(count)
        ]
        names = self._columns() if columns is None else columns
        batch = self._gather(DrawnTransitions.join(drawn), gamma, names, stacked=stack is not None)
        return [batch] if count == 1 else batch.split(count)

    def read(
        self, index: Array, *, stack: int | None = None, n_step: int = 1, gamma: float = 1.0, padding: str = "zero"
    ) -> PondBatch:
        """Return the transitions that begin with records `index` [n] of `view()`. Arguments as for `Lake.sample`."""
        view, stream = self.view(), np.zeros(len(index), np.int32)
        planned = plan_at([view], stream, index, transition_plan(stack or 1, n_step, padding == "repeat"))
        return self._gather(DrawnTransitions(stream, *planned), gamma, self._columns(), stacked=stack is not None)

    def rewards(self, slots: Array) -> Array:
        """Return the rewards stored in slots [n]."""
        if self.device.type == "cpu":
            return self.fields["reward"].numpy()[slots]
        return self._take("reward", self.send({"slots": slots})["slots"]).cpu().numpy()

    def read_steps(self, records: Array, *, stack: int | None = None) -> PondBatch:
        """Return the transitions of one step that begin with these records [n], named by their slots, as `blocks` does."""
        valid, columns = transition_plan(stack or 1, 1, False)(self.view(), records)
        if not valid.all():
            raise LakeError(f"{int((~valid).sum()):,} of {len(records):,} records begin no valid transition")
        drawn = DrawnTransitions(np.zeros(len(records), np.int32), *columns)
        return self._gather(drawn, 1.0, self._columns(), stacked=stack is not None)

    def _columns(self) -> list[str]:
        return [*COLUMNS, *(field.name for field in self.schema.extra)]

    def _gather(self, drawn: DrawnTransitions, gamma: float, columns: Sequence[str], *, stacked: bool) -> PondBatch:
        """Read transitions. Everything that the host has computed is sent to the device in one copy."""
        stack, n_step, first, single = (
            drawn.observed.shape[1],
            drawn.path.shape[1],
            drawn.path[:, 0],
            self.schema.single,
        )
        ends = {name: np.empty(len(first), np.bool_) for name in ("terminated", "truncated")}
        discount = np.empty(len(first), np.float32)
        powers = np.float64(gamma) ** np.arange(n_step + 1)
        find_ends(self.flags, drawn.path, drawn.steps, powers, ends["terminated"], ends["truncated"], discount)
        windows = {"now": drawn.observed, "then": drawn.next_observed}
        if stack > 1:  # frames that both have are read once
            windows = {
                "now": np.concatenate([drawn.observed, drawn.next_observed[:, -1 if n_step == 1 else 0 :]], axis=1)
            }
        arrays = {"first": first, "steps": drawn.steps, "discount": discount, **ends}
        for name, records in windows.items():
            missing = records == NO_RECORD
            if missing.any():
                arrays[f"{name}/missing"] = missing
                records = np.maximum(records, 0)
            arrays[name] = records
        if n_step > 1:
            arrays["path"] = np.maximum(drawn.path, 0)
            wide = np.float64 if wide_dtype(self.device) == torch.float64 else np.float32
            arrays["weight"] = (powers[:n_step] * (drawn.path != NO_RECORD)).astype(wide)
        sent = self.send(arrays)
        observed = {name: self._observations(sent[name], sent.get(f"{name}/missing")) for name in windows}
        if stack > 1:
            both = observed["now"]
            observed["now"] = {name: window[:, :stack] for name, window in both.items()}
            observed["then"] = {name: window[:, -stack:] for name, window in both.items()}
        if not stacked:
            observed = {time: {name: window[:, 0] for name, window in of.items()} for time, of in observed.items()}
        now, then = observed["now"], observed["then"]
        return PondBatch(
            observation=now["observation"] if single else now,
            next_observation=then["observation"] if single else then,
            action=self._take(self.schema.action.name, sent["first"]),
            reward=self._rewards(sent),
            terminated=sent["terminated"],
            truncated=sent["truncated"],
            discount=sent["discount"],
            steps=sent["steps"],
            column={name: self._take(name, sent["first"]) for name in columns},
        )

    def _take(self, name: str, slots: torch.Tensor) -> torch.Tensor:
        """Return the values [..., *field] of slots [...]."""
        source = self.fields[name]
        if self.device.type == "cpu":
            return torch.from_numpy(source.numpy().take(slots.numpy(), axis=0))
        return source.index_select(0, slots.reshape(-1)).view(*slots.shape, *source.shape[1:])

    def _rewards(self, sent: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the sums [n] of the rewards of paths [n, n_step], each step with its weight; or those of single steps."""
        if "path" not in sent:
            return self._take("reward", sent["first"])
        weight = sent["weight"]
        return (self._take("reward", sent["path"]).to(weight.dtype) * weight).sum(1).float()

    def _observations(self, slots: torch.Tensor, missing: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """Return observations [n, k, ...] of slots [n, k]; zeros where they are `missing` [n, k]."""
        observed = {}
        for field in self.schema.observation:
            frames = observed[field.name] = self._take(self.schema.column(field), slots)
            if missing is None:
                continue
            if self.device.type == "cpu":
                frames[missing] = 0
            else:  # an index by booleans would be a sync
                frames.masked_fill_(missing.view(*missing.shape, *[1] * (frames.dim() - 2)), 0)
        return observed

    def state_dict(self) -> dict[str, Any]:
        """Return everything as tensors: safe to load with `weights_only=True`."""
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
        fields = {name: saved(tensor) for name, tensor in self.fields.items()}
        return {"fields": fields, "host": {name: torch.from_numpy(array.copy()) for name, array in host.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of a pond of the same schema and size."""
        for name, tensor in self.fields.items():
            saved = state["fields"].get(name)
            if saved is None or saved.shape != tensor.shape or saved.dtype != tensor.dtype:
                raise LakeError(
                    f"the saved pond has {name}: {getattr(saved, 'shape', None)}; this one {tuple(tensor.shape)}"
                )
            tensor.copy_(saved)
        host = {name: tensor.numpy().copy() for name, tensor in state["host"].items()}
        self.flags, self.heads, self.poured = host["flags"], host["heads"], host["poured"]
        opened = host["open"].astype(bool)
        self._episodes = LaneState(host["episode"], host["episode_step"], opened, int(host["next_episode"]))
        self._runs = host["runs"] if len(host["runs"]) else None
        self._view, self.content = None, object()

    def continue_with(self, episodes: LaneState) -> None:
        """Set the current episodes, after the rings were written by `restore_rings`."""
        self._episodes, self._view = episodes, None

    def set_runs(self, flags: Array, run_begin: Array) -> None:
        """Take slots 0 to `len(flags)`, written by `fill`, as independent runs of records."""
        self.clear()
        self.flags[: len(flags)] = flags
        self._runs = run_begin.astype(np.int64)


@compiled
def find_ends(flags: Any, path: Any, steps: Any, powers: Any, terminated: Any, truncated: Any, discount: Any) -> None:
    """Read how the transitions with paths [n, n_step] of so many steps [n] end; discount = gamma^steps, 0 if terminated."""
    for i in range(len(steps)):
        last = flags[path[i, steps[i] - 1]]
        terminated[i] = last & TERMINATED != 0
        truncated[i] = not terminated[i] and last & TRUNCATED != 0
        discount[i] = 0.0 if terminated[i] else powers[steps[i]]


def _storage(field: Field, records: int, device: torch.device) -> torch.Tensor:
    try:
        dtype = torch.from_numpy(np.empty(0, field.dtype)).dtype
    except TypeError:
        raise LakeError(
            f"field {field.name!r} has dtype {field.dtype}, which torch does not have; use another"
        ) from None
    return torch.zeros((records, *field.shape), dtype=dtype, device=device)


def _on_host(steps: Steps) -> Steps:
    """Return tensors as arrays; those on another device are copied once."""
    if steps.valid_for is not None:
        return steps

    def host(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: host(part) for name, part in value.items()}
        return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value

    return Steps(**{name: host(value) for name, value in vars(steps).items()})
