"""What sampling gives."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from millpond.replay.draw import Picked, PickedSequences
from millpond.replay.errors import LakeDamaged
from millpond.replay.lake.read import Damage, SpanReader, read_frames, read_records
from millpond.replay.lake.stream import View
from millpond.replay.schema import TERMINATED, TRUNCATED, Schema
from millpond.replay.walk import NO_ROW

Array = np.ndarray[Any, Any]
Observation = Any  # an array, or a dict of arrays where the schema has several fields


@dataclass
class LakeBatch:
    """Transitions. With n steps, R = sum of gamma^k r_k over `steps` of them, and the target is

        R + discount * max_a Q(next_observation, a)        discount = gamma^steps, 0 where terminated

    observation, next_observation  [n, (stack,) ...]   `next_observation` is zeros behind a terminated step whose
                                                       final observation was not stored: its discount is 0
    action [n, ...]   reward, discount float32 [n]   terminated, truncated bool [n]   steps int32 [n]
    stream int32 [n]  number of the stream, in the order of their names
    record [n]        the whole record of the first step: lane, episode, agent, round, epsilon, ... and extra fields
    row int64 [n]     where in the stream it was found
    """

    observation: Observation
    next_observation: Observation
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    discount: Array
    steps: Array
    stream: Array
    row: Array
    record: Array

    def __len__(self) -> int:
        return len(self.reward)

    def put(self, where: Array, other: LakeBatch) -> None:
        """Replace transitions by others."""
        for field in fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            if isinstance(mine, dict):
                for name in mine:
                    mine[name][where] = theirs[name]
            else:
                mine[where] = theirs


@dataclass
class Sequences:
    """Contiguous steps of one episode each: `burn_in` of them before, `length` to train on.

    observation [n, burn_in + length, ...]   action, reward, terminated, truncated [n, burn_in + length, ...]
    mask        [n, burn_in + length]        False in front of the episode's beginning, where all is zeros
    next_observation [n, ...]                behind the last step
    """

    observation: Observation
    next_observation: Observation
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    mask: Array
    stream: Array
    row: Array
    record: Array


@dataclass
class LakeEpisode:
    """A whole episode of T steps: T + 1 observations where the final one was stored, else T.

    `record` [T] are the steps' records, with reward, flags, provenance and extra fields.
    """

    stream: str
    observation: Observation
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    record: Array

    @property
    def has_final(self) -> bool:
        first = next(iter(self.observation.values())) if isinstance(self.observation, dict) else self.observation
        return len(first) == len(self.reward) + 1

    @property
    def episode_return(self) -> float:
        return float(self.reward.sum(dtype=np.float64))


# -- From drawn rows to batches: read, check, decode, and lay out as the learner wants them.
#
# # n drawn   s stack   W rows of one window   N n_step

DamageList = list[tuple[int, Damage]]


@dataclass(frozen=True)
class Assembler:
    """Reads rows of several streams at once. Holds no state but open files; several threads may use it."""

    views: list[View]
    schema: Schema
    reader: SpanReader

    def records(self, stream: Array, rows: Array) -> tuple[Array, DamageList]:
        """Records of `rows` [n, W]; and what is damaged, by place in the first axis."""
        groups = self._by_stream(stream)
        if len(groups) == 1:
            part, bad = read_records(self.views[groups[0][0]], self.schema, self.reader, rows.reshape(-1))
            return part.reshape(rows.shape), [(k // rows.shape[1], what) for k, what in bad]
        out = np.zeros(rows.shape, self.schema.record)
        damaged: DamageList = []
        for number, mine in groups:
            part, bad = read_records(self.views[number], self.schema, self.reader, rows[mine].reshape(-1))
            out[mine] = part.reshape(-1, rows.shape[1])
            damaged += [(int(mine[k // rows.shape[1]]), what) for k, what in bad]
        return out, damaged

    def frames(self, stream: Array, rows: Array) -> tuple[dict[str, Array], DamageList]:
        """Compressed fields of `rows` [n, W], by name: [n, W, ...]."""
        count, width = rows.shape
        flat = {field.name: np.empty(count * width * field.nbytes, np.uint8) for field in self.schema.compressed}
        damaged: DamageList = []
        if flat:
            slots = np.arange(count * width).reshape(count, width)
            for number, mine in self._by_stream(stream):
                places, wanted = slots[mine].reshape(-1), rows[mine].reshape(-1)
                bad = read_frames(self.views[number], self.schema, self.reader, wanted, places, flat)
                damaged += [(int(mine[k // width]), what) for k, what in bad]
        shaped = {
            field.name: flat[field.name].view(field.stored_dtype).reshape(count, width, *field.shape)
            for field in self.schema.compressed
        }
        return shaped, damaged

    def _by_stream(self, stream: Array) -> list[tuple[int, Array]]:
        """Each stream that is present, and where."""
        if len(self.views) == 1:
            return [(0, np.arange(len(stream)))]
        present = np.unique(stream).tolist()
        if len(present) == 1:
            return [(present[0], np.arange(len(stream)))]
        return [(number, np.flatnonzero(stream == number)) for number in present]

    def windows(self, stream: Array, rows: Array, records: Array | None = None) -> tuple[dict[str, Array], DamageList]:
        """All fields of the observations at `rows` [n, W], fixed ones from their records."""
        observed, damaged = self.frames(stream, rows)
        fixed = [field for field in self.schema.observation if field.storage == "fixed"]
        if fixed and records is None:
            records, bad = self.records(stream, rows)
            damaged += bad
        for field in fixed:
            assert records is not None
            observed[field.name] = np.ascontiguousarray(records[self.schema.column(field)])
        return observed, damaged

    def observation(self, fields: dict[str, Array]) -> Observation:
        return fields["observation"] if self.schema.single else fields

    def transitions(self, picked: Picked, *, stacked: bool, gamma: float) -> tuple[LakeBatch, DamageList]:
        """`stacked`: observations have an axis of frames."""
        stack, n_step = picked.observed.shape[1], picked.path.shape[1]
        if n_step == 1:  # both stacks are views of one window of stack + 1 frames
            rows = np.concatenate([picked.observed, picked.next_observed[:, -1:]], axis=1)
        else:
            rows = np.concatenate([picked.observed, picked.next_observed], axis=1)
        has_fixed = len(self.schema.compressed) < len(self.schema.observation)
        damaged: DamageList = []
        if has_fixed and n_step == 1:
            window, damaged = self.records(picked.stream, rows)
            observed, bad = self.windows(picked.stream, rows, window)
            path = window[:, stack - 1 : stack]
        else:
            observed, damaged = self.windows(picked.stream, rows)
            path, bad = self.records(picked.stream, picked.path)
        damaged += bad
        now = {name: array[:, :stack] if stacked else array[:, 0] for name, array in observed.items()}
        then = {name: array[:, -stack:] if stacked else array[:, -1] for name, array in observed.items()}
        last = path["flags"][np.arange(len(path)), picked.steps - 1]
        terminated = (last & TERMINATED) > 0
        powers = gamma ** np.arange(n_step + 1)
        reward = (path["reward"] * powers[:n_step] * (picked.path != NO_ROW)).sum(axis=1)
        batch = LakeBatch(
            observation=self.observation(now),
            next_observation=self.observation(then),
            action=np.ascontiguousarray(path[self.schema.action.name][:, 0]),
            reward=reward.astype(np.float32),
            terminated=terminated,
            truncated=((last & TRUNCATED) > 0) & ~terminated,
            discount=np.where(terminated, 0.0, powers[picked.steps]).astype(np.float32),
            steps=picked.steps,
            stream=picked.stream,
            row=picked.observed[:, -1],
            record=path[:, 0],
        )
        return batch, damaged

    def sequences(self, picked: PickedSequences) -> tuple[Sequences, DamageList]:
        rows = np.concatenate([picked.path, picked.behind[:, None]], axis=1)
        records, damaged = self.records(picked.stream, rows)
        observed, bad = self.windows(picked.stream, rows, records)
        steps = records[:, :-1]
        result = Sequences(
            observation=self.observation({name: array[:, :-1] for name, array in observed.items()}),
            next_observation=self.observation({name: array[:, -1] for name, array in observed.items()}),
            action=np.ascontiguousarray(steps[self.schema.action.name]),
            reward=np.ascontiguousarray(steps["reward"]),
            terminated=(steps["flags"] & TERMINATED) > 0,
            truncated=(steps["flags"] & TRUNCATED) > 0,
            mask=picked.path != NO_ROW,
            stream=picked.stream,
            row=picked.path[:, 0],
            record=steps,
        )
        return result, damaged + bad

    def episode(self, number: int, rows: Array, steps: int, name: str) -> tuple[LakeEpisode, DamageList]:
        """One episode from its rows; `steps` of them are steps, one more is the final observation."""
        stream = np.full(1, number, np.int32)
        records, damaged = self.records(stream, rows[None])
        observed, bad = self.windows(stream, rows[None], records)
        taken = records[0, :steps]
        episode = LakeEpisode(
            stream=name,
            observation=self.observation({field: array[0] for field, array in observed.items()}),
            action=np.ascontiguousarray(taken[self.schema.action.name]),
            reward=np.ascontiguousarray(taken["reward"]),
            terminated=(taken["flags"] & TERMINATED) > 0,
            truncated=(taken["flags"] & TRUNCATED) > 0,
            record=taken,
        )
        return episode, damaged + bad


def raise_damage(damaged: DamageList, lake: Any) -> None:
    """An error that says what is damaged, and what to do."""
    if damaged:
        first = "; ".join(str(what) for _, what in damaged[:3])
        more = f" and {len(damaged) - 3} more" if len(damaged) > 3 else ""
        raise LakeDamaged(
            f"{first}{more}. `millpond lake verify {lake}` lists everything that is damaged; "
            'sample with on_damage="skip" to go on without it.'
        )
