"""The complete episodes of a lake, and the import of recorded episodes into one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from millpond.data.source import (
    Array,
    ArrayField,
    DataError,
    EndFlags,
    EpisodeSource,
    open_sources,
    require_same_fields,
)
from millpond.replay import Field, Lake, Schema, Steps
from millpond.replay.lake.sample import raise_damage
from millpond.replay.schema import FINAL, TERMINATED, TRUNCATED
from millpond.replay.transitions import complete_episodes, episode_records

UNNAMED_FIELDS = {"obs", "observations", "states"}  # names of the only observation array in layouts without field names


class LakeSource:
    """A snapshot of a lake at the time of opening; unfinished episodes are left out."""

    action_bounds: tuple[float, float] | None = None
    layout = "lake"
    has_rewards = True
    missing_actions = ""
    success: Array | None = None

    def __init__(self, path: Path) -> None:
        self.path, self.task = str(path), path.name
        self.masks: Mapping[str, Sequence[str]] = {}
        self._lake = Lake(path)
        self._places: list[tuple[int, int, int]] = []  # stream, first record, records
        names: list[str] = []
        finals: list[bool] = []
        damaged = self._lake.known_damage()
        if damaged:
            raise DataError(
                f"{damaged[0]}; expected a lake without damage. `millpond lake verify {path}` lists all "
                f"{len(damaged):,} places"
            )
        for number, stream in enumerate(self._lake.streams):
            view = self._lake.view(stream)
            for start, count in zip(*(array.tolist() for array in complete_episodes(view)), strict=True):
                names.append(f"{stream}/{len(names)}")
                finals.append(bool(view.flags[episode_records(view, start, count)[-1]] & FINAL))
                self._places.append((number, start, count))
        if not names:
            raise DataError(f"{path}: the lake has no complete episode yet; expected at least one that has ended")
        self.names: Sequence[str] = names
        self._finals = np.array(finals)
        self.rewarded: Array = np.ones(len(names), bool)
        self.lengths: Array = np.array([count for _, _, count in self._places], np.int64) - self._finals
        schema = self._lake.schema
        self.fields: Mapping[str, ArrayField] = {
            field.name: ArrayField(field.name, field.shape, np.dtype(field.dtype)) for field in schema.observation
        }
        self.default_keys: Sequence[str] = list(self.fields)
        self.action: ArrayField | None = ArrayField(
            schema.action.name, schema.action.shape, np.dtype(schema.action.dtype)
        )

    def final_known(self, names: Sequence[str]) -> Array:
        return self._finals

    def frames(self, episode: int, name: str, start: int, stop: int) -> Array:
        stream, records = self._record_indices(episode)
        compressed = any(field.name == name for field in self._lake.schema.compressed)
        read = self._lake.assembler().frames if compressed else self._lake.assembler().windows
        fields, damaged = read(stream, records[None, start:stop])
        raise_damage([damage for _, damage in damaged], self.path)
        frames: Array = fields[name][0]
        return frames

    def actions(self, episode: int) -> Array:
        return np.ascontiguousarray(self._records(episode)[self._lake.schema.action.name])

    def rewards(self, episode: int) -> Array:
        return np.ascontiguousarray(self._records(episode)["reward"])

    def ends(self, episode: int) -> EndFlags:
        flags = self._records(episode)["flags"]
        return EndFlags((flags & TERMINATED) > 0, (flags & TRUNCATED) > 0)

    def _records(self, episode: int) -> Array:
        stream, indices = self._record_indices(episode)
        records, damaged = self._lake.assembler().records(stream, indices[None, : int(self.lengths[episode])])
        raise_damage([damage for _, damage in damaged], self.path)
        steps: Array = records[0]
        return steps

    def _record_indices(self, episode: int) -> tuple[Array, Array]:
        number, start, count = self._places[episode]
        view = self._lake.view(self._lake.streams[number])
        return np.full(1, number, np.int32), episode_records(view, start, count)


@dataclass(frozen=True)
class Imported:
    """Result of an import."""

    stream: str
    episodes: int
    steps: int
    notes: list[str]


def import_episodes(
    path: str | Path, folder: str | Path, *, stream: str = "imported", progress: Callable[[int], None] | None = None
) -> Imported:
    """Append all episodes of a path, as `open_episodes` takes it, to a stream; create the lake if it is missing.

    The complete observation is stored, images included; the simulator's states only if there is nothing else.
    """
    sources = open_sources(path)
    first = sources[0]
    names = _stored_names(first.default_keys)
    for other in sources[1:]:
        require_same_fields(first, other, [first.fields[name] for name in names])
    schema = _schema(sources, names)
    steps = count = without_reward = without_final = 0
    with Lake.create(folder, schema) as lake, lake.writer(stream, 1) as writer:
        for source in sources:
            known = source.final_known(list(names))
            for episode in range(len(source.names)):
                episode_steps, last_is_final = _steps(source, episode, names, final_known=bool(known[episode]))
                if episode_steps is not None:
                    writer.append(episode_steps)
                    steps, count = steps + len(episode_steps.reward), count + 1
                without_reward += not source.rewarded[episode]
                without_final += last_is_final
                if progress:
                    progress(count)
    notes = []
    if without_reward:
        notes.append(f"{without_reward} episodes have no rewards; 0 is stored")
    if without_final:
        notes.append(
            f"{without_final} episodes were truncated without a final observation: their last observation takes its place"
        )
    return Imported(stream, count, steps, notes)


def _stored_names(keys: Sequence[str]) -> dict[str, str]:
    """Map fields of a file to names in the lake: `observation` for the only array of a layout that does not name it."""
    if len(keys) == 1 and keys[0] in UNNAMED_FIELDS:
        return {keys[0]: "observation"}
    return {name: name.replace("/", ".") for name in keys}


def _schema(sources: Sequence[EpisodeSource], names: dict[str, str]) -> Schema:
    """The schema of the first file, which the others share; refuse files without actions."""
    fields = sources[0].fields
    observation = tuple(Field.of(stored, fields[name].shape, fields[name].dtype.name) for name, stored in names.items())
    actions = []
    for source in sources:
        if source.action is None:
            raise DataError(
                f"{source.path}: {source.missing_actions} is missing; a lake stores transitions, which need actions. "
                f"Episodes without actions can be learned from directly: `millpond train reward data.path={source.path} "
                f"reward.objective=progress`"
            )
        actions.append(source.action)
    return Schema(observation, Field("action", actions[0].shape, actions[0].dtype.name))


def _steps(
    source: EpisodeSource, episode: int, names: dict[str, str], *, final_known: bool
) -> tuple[Steps | None, bool]:
    """The steps of an episode as one lane, and True if its last observation serves as the final one.

    That is so for a truncated episode whose final observation is not stored. None if no step remains.
    """
    count, last_is_final = int(source.lengths[episode]), False
    observations: dict[str, Array] = {
        stored: source.frames(episode, name, 0, count + final_known) for name, stored in names.items()
    }
    flags = source.ends(episode).terminated
    terminated = flags is not None and bool(flags[-1])
    if not final_known and not terminated:
        final_known, last_is_final, count = True, True, count - 1
    if count < 1:
        return None, last_is_final
    ends, none = np.zeros((count, 1), bool), np.zeros((count, 1), bool)
    ends[-1] = True
    reward = source.rewards(episode)[:count] if source.rewarded[episode] else np.zeros(count)
    return Steps(
        observation={name: frames[:count, None] for name, frames in observations.items()},
        action=source.actions(episode)[:count, None],
        reward=np.asarray(reward, np.float32)[:, None],
        terminated=ends if terminated else none,
        truncated=none if terminated else ends,
        final_observation={name: frames[count : count + 1] for name, frames in observations.items()}
        if final_known
        else None,
        has_final=ends if final_known else none,
    ), last_is_final
