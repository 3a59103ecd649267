"""From drawn record numbers to batches, sequences and episodes: read, check, decode, arrange.

n drawn   s stack   W records of one window   N n_step   T burn-in + length
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from millpond.replay.draw import DrawnSequences, DrawnTransitions
from millpond.replay.lake.read import DamageList, SpanReader, read_frames, read_records
from millpond.replay.lake.stream import Damage, View
from millpond.replay.schema import TERMINATED, TRUNCATED, LakeDamaged, Schema
from millpond.replay.transitions import NO_RECORD

Array = np.ndarray[Any, Any]
Observation = Any  # an array, or a dict of arrays where the schema has several fields


@dataclass
class LakeBatch:
    """Transitions of a lake. With n steps, R = sum of gamma^k r_k over `steps` of them, and the target is

        R + discount * max_a Q(next_observation, a)        discount = gamma^steps, 0 where terminated

    observation, next_observation  [n, (stack,) ...]   `next_observation` is zeros after a terminated step whose
                                                       final observation was not stored: its discount is 0
    action [n, ...]   reward, discount float32 [n]   terminated, truncated bool [n]   steps int32 [n]
    stream int32 [n]  number of the stream, in the order of names
    record [n]        the whole record of the first step: lane, episode, agent, round, epsilon, ... and extra fields
    index int64 [n]   number of that record in its stream
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
    index: Array
    record: Array

    def __len__(self) -> int:
        return len(self.reward)

    def put(self, where: Array, other: LakeBatch) -> None:
        """Replace the transitions at `where` by those of another batch."""
        for field in fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            if isinstance(mine, dict):
                for name in mine:
                    mine[name][where] = theirs[name]
            else:
                mine[where] = theirs


@dataclass
class Sequences:
    """Consecutive steps of one episode each: `burn_in` of them before, `length` to train on.

    observation [n, burn_in + length, ...]   action, reward, terminated, truncated [n, burn_in + length, ...]
    mask        [n, burn_in + length]        False before the episode's beginning, where all is zeros
    next_observation [n, ...]                after the last step
    """

    observation: Observation
    next_observation: Observation
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    mask: Array
    stream: Array
    index: Array
    record: Array


@dataclass
class LakeEpisode:
    """A complete episode of T steps: T + 1 observations if the final one was stored, else T.

    `record` [T]: the records of the steps, with reward, flags, provenance and extra fields.
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


@dataclass(frozen=True)
class Assembler:
    """Reads records of several streams at once. Its only state is open files; several threads may use it."""

    views: list[View]
    schema: Schema
    reader: SpanReader

    def records(self, stream: Array, numbers: Array) -> tuple[Array, DamageList]:
        """Return the records `numbers` [n, W]; and what is damaged, by place in the first axis."""
        groups, width = self._by_stream(stream), numbers.shape[1]
        if len(groups) == 1:
            part, bad = read_records(self.views[groups[0][0]], self.schema, self.reader, numbers.reshape(-1))
            return part.reshape(numbers.shape), [(k // width, damage) for k, damage in bad]
        out = np.zeros(numbers.shape, self.schema.record)
        damaged: DamageList = []
        for which, mine in groups:
            part, bad = read_records(self.views[which], self.schema, self.reader, numbers[mine].reshape(-1))
            out[mine] = part.reshape(-1, width)
            damaged += [(int(mine[k // width]), damage) for k, damage in bad]
        return out, damaged

    def frames(self, stream: Array, numbers: Array) -> tuple[dict[str, Array], DamageList]:
        """Return the compressed fields of records `numbers` [n, W], by name: [n, W, ...]."""
        count, width = numbers.shape
        flat = {field.name: np.empty(count * width * field.nbytes, np.uint8) for field in self.schema.compressed}
        damaged: DamageList = []
        if flat:
            slots = np.arange(count * width).reshape(count, width)
            for which, mine in self._by_stream(stream):
                view, places = self.views[which], slots[mine].reshape(-1)
                bad = read_frames(view, self.schema, self.reader, numbers[mine].reshape(-1), places, flat)
                damaged += [(int(mine[k // width]), damage) for k, damage in bad]
        shaped = {
            field.name: flat[field.name].view(field.stored_dtype).reshape(count, width, *field.shape)
            for field in self.schema.compressed
        }
        return shaped, damaged

    def _by_stream(self, stream: Array) -> list[tuple[int, Array]]:
        """Return each stream that occurs in `stream`, and where."""
        if len(self.views) == 1:
            return [(0, np.arange(len(stream)))]
        present = np.unique(stream).tolist()
        if len(present) == 1:
            return [(present[0], np.arange(len(stream)))]
        return [(number, np.flatnonzero(stream == number)) for number in present]

    def windows(
        self, stream: Array, numbers: Array, records: Array | None = None
    ) -> tuple[dict[str, Array], DamageList]:
        """Return all fields of the observations of records `numbers` [n, W]; `records` if they were read before."""
        observed, damaged = self.frames(stream, numbers)
        fixed = [field for field in self.schema.observation if field.storage == "fixed"]
        if fixed and records is None:
            records, bad = self.records(stream, numbers)
            damaged += bad
        for field in fixed:
            assert records is not None
            observed[field.name] = np.ascontiguousarray(records[self.schema.column(field)])
        return observed, damaged

    def observation(self, fields: dict[str, Array]) -> Observation:
        return fields["observation"] if self.schema.single else fields

    def transitions(self, drawn: DrawnTransitions, *, stacked: bool, gamma: float) -> tuple[LakeBatch, DamageList]:
        """Return drawn transitions as a batch. `stacked`: observations have an axis of frames."""
        stack, n_step = drawn.observed.shape[1], drawn.path.shape[1]
        if n_step == 1:  # both stacks are views of one window of stack + 1 frames
            numbers = np.concatenate([drawn.observed, drawn.next_observed[:, -1:]], axis=1)
        else:
            numbers = np.concatenate([drawn.observed, drawn.next_observed], axis=1)
        has_fixed = len(self.schema.compressed) < len(self.schema.observation)
        damaged: DamageList = []
        if has_fixed and n_step == 1:
            window, damaged = self.records(drawn.stream, numbers)
            observed, bad = self.windows(drawn.stream, numbers, window)
            path = window[:, stack - 1 : stack]
        else:
            observed, damaged = self.windows(drawn.stream, numbers)
            path, bad = self.records(drawn.stream, drawn.path)
        damaged += bad
        now = {name: array[:, :stack] if stacked else array[:, 0] for name, array in observed.items()}
        then = {name: array[:, -stack:] if stacked else array[:, -1] for name, array in observed.items()}
        last = path["flags"][np.arange(len(path)), drawn.steps - 1]
        terminated = (last & TERMINATED) > 0
        powers = gamma ** np.arange(n_step + 1)
        reward = (path["reward"] * powers[:n_step] * (drawn.path != NO_RECORD)).sum(axis=1)
        batch = LakeBatch(
            observation=self.observation(now),
            next_observation=self.observation(then),
            action=np.ascontiguousarray(path[self.schema.action.name][:, 0]),
            reward=reward.astype(np.float32),
            terminated=terminated,
            truncated=((last & TRUNCATED) > 0) & ~terminated,
            discount=np.where(terminated, 0.0, powers[drawn.steps]).astype(np.float32),
            steps=drawn.steps,
            stream=drawn.stream,
            index=drawn.observed[:, -1],
            record=path[:, 0],
        )
        return batch, damaged

    def sequences(self, drawn: DrawnSequences) -> tuple[Sequences, DamageList]:
        numbers = np.concatenate([drawn.path, drawn.following[:, None]], axis=1)
        records, damaged = self.records(drawn.stream, numbers)
        observed, bad = self.windows(drawn.stream, numbers, records)
        steps = records[:, :-1]
        result = Sequences(
            observation=self.observation({name: array[:, :-1] for name, array in observed.items()}),
            next_observation=self.observation({name: array[:, -1] for name, array in observed.items()}),
            action=np.ascontiguousarray(steps[self.schema.action.name]),
            reward=np.ascontiguousarray(steps["reward"]),
            terminated=(steps["flags"] & TERMINATED) > 0,
            truncated=(steps["flags"] & TRUNCATED) > 0,
            mask=drawn.path != NO_RECORD,
            stream=drawn.stream,
            index=drawn.path[:, 0],
            record=steps,
        )
        return result, damaged + bad

    def episode(self, which: int, numbers: Array, steps: int, name: str) -> tuple[LakeEpisode, DamageList]:
        """Return an episode of stream `which` from its records; the first `steps` are steps, one more is the final one."""
        stream = np.full(1, which, np.int32)
        records, damaged = self.records(stream, numbers[None])
        observed, bad = self.windows(stream, numbers[None], records)
        of_steps = records[0, :steps]
        episode = LakeEpisode(
            stream=name,
            observation=self.observation({field: array[0] for field, array in observed.items()}),
            action=np.ascontiguousarray(of_steps[self.schema.action.name]),
            reward=np.ascontiguousarray(of_steps["reward"]),
            terminated=(of_steps["flags"] & TERMINATED) > 0,
            truncated=(of_steps["flags"] & TRUNCATED) > 0,
            record=of_steps,
        )
        return episode, damaged + bad


def raise_damage(damaged: list[Damage], lake: Path | str) -> None:
    """Raise an error that names what is damaged and how to continue, if anything is."""
    if damaged:
        first = "; ".join(str(damage) for damage in damaged[:3])
        more = f" and {len(damaged) - 3} more" if len(damaged) > 3 else ""
        raise LakeDamaged(
            f"{first}{more}. `millpond lake verify {lake}` lists everything that is damaged; "
            'sample with on_damage="skip" to continue without it.'
        )
