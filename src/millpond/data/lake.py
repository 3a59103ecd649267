"""The complete episodes of a lake."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from millpond.data.opening import open_sources
from millpond.data.source import Array, ArrayField, DataError, EndFlags, EpisodeSource, require_same_fields
from millpond.replay import Field, Lake, Schema, Steps
from millpond.replay.assemble import raise_damage
from millpond.replay.episodes import episode_rows, whole_episodes
from millpond.replay.index import DAMAGED
from millpond.replay.schema import FINAL, TERMINATED, TRUNCATED


class LakeSource:
    """A lake as it was when this was opened; episodes that are still open are left out."""

    action_bounds: tuple[float, float] | None = None
    layout = "lake"
    has_rewards = True
    without_actions = ""
    success: Array | None = None

    def __init__(self, path: Path) -> None:
        self.path, self.task = str(path), path.name
        self.masks: Mapping[str, Sequence[str]] = {}
        self._lake = Lake(path)
        self._places: list[tuple[int, int, int]] = []  # stream, first row, rows
        names: list[str] = []
        finals: list[bool] = []
        for number, stream in enumerate(self._lake.streams):
            view = self._lake.view(stream)
            damaged = int(np.count_nonzero(view.flags & DAMAGED))
            if damaged:
                raise DataError(
                    f"{path}: stream {stream} has {damaged:,} damaged records; expected none. `millpond lake verify {path}` "
                    f"lists them"
                )
            for start, rows in zip(*(array.tolist() for array in whole_episodes(view)), strict=True):
                names.append(f"{stream}/{len(names)}")
                finals.append(bool(view.flags[episode_rows(view, start, rows)[-1]] & FINAL))
                self._places.append((number, start, rows))
        if not names:
            raise DataError(f"{path}: the lake has no complete episode yet; expected at least one that has ended")
        self.names: Sequence[str] = names
        self._finals = np.array(finals)
        self.rewarded: Array = np.ones(len(names), bool)
        self.lengths: Array = np.array([rows for _, _, rows in self._places], np.int64) - self._finals
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
        stream, rows = self._rows(episode)
        compressed = any(field.name == name for field in self._lake.schema.compressed)
        read = self._lake.assembler().frames if compressed else self._lake.assembler().windows
        fields, damaged = read(stream, rows[None, start:stop])
        raise_damage(damaged, self.path)
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
        stream, rows = self._rows(episode)
        records, damaged = self._lake.assembler().records(stream, rows[None, : int(self.lengths[episode])])
        raise_damage(damaged, self.path)
        steps: Array = records[0]
        return steps

    def _rows(self, episode: int) -> tuple[Array, Array]:
        number, start, rows = self._places[episode]
        view = self._lake.view(self._lake.streams[number])
        return np.full(1, number, np.int32), episode_rows(view, start, rows)


# -- Recorded episodes of others into a stream of a lake.

UNNAMED = {"obs", "observations", "states"}  # what a layout calls the one array that is the whole observation


@dataclass(frozen=True)
class Imported:
    stream: str
    episodes: int
    steps: int
    notes: list[str]


def import_episodes(
    path: str | Path, folder: str | Path, *, stream: str = "imported", progress: Callable[[int], None] | None = None
) -> Imported:
    """Append all episodes of a path, as `open_episodes` takes it, to a stream; the lake is made where it is missing.

    All that is observed is taken, images too; the simulator's states only where there is nothing else.
    """
    sources = open_sources(path)
    first = sources[0]
    names = _names(first.default_keys)
    for other in sources[1:]:
        require_same_fields(first, other, [first.fields[name] for name in names])
    schema = _schema(sources, names)
    steps = count = unrewarded = cut = 0
    with Lake.create(folder, schema) as lake, lake.writer(stream, 1) as writer:
        for source in sources:
            known = source.final_known(list(names))
            for episode in range(len(source.names)):
                taken, was_cut = _steps(source, episode, names, final_known=bool(known[episode]))
                if taken is not None:
                    writer.append(taken)
                    steps, count = steps + len(taken.reward), count + 1
                unrewarded, cut = unrewarded + (not source.rewarded[episode]), cut + was_cut
                if progress:
                    progress(count)
    notes = []
    if unrewarded:
        notes.append(f"{unrewarded} episodes have no rewards; 0 is stored")
    if cut:
        notes.append(f"{cut} episodes were cut off without a final observation: their last observation serves as it")
    return Imported(stream, count, steps, notes)


def _names(keys: Sequence[str]) -> dict[str, str]:
    """Fields of a file, and what the lake calls them: `observation` where there is but one array without a name."""
    if len(keys) == 1 and keys[0] in UNNAMED:
        return {keys[0]: "observation"}
    return {name: name.replace("/", ".") for name in keys}


def _schema(sources: Sequence[EpisodeSource], names: dict[str, str]) -> Schema:
    """Return the schema of the first file, which the others share; refuse files without actions."""
    fields = sources[0].fields
    observation = tuple(Field.of(stored, fields[name].shape, fields[name].dtype.name) for name, stored in names.items())
    actions = []
    for source in sources:
        if source.action is None:
            raise DataError(
                f"{source.path}: {source.without_actions} is missing; a lake stores transitions, which need actions. "
                f"Episodes without them can be read where they are: `millpond train reward data.path={source.path} "
                f"reward.objective=progress`"
            )
        actions.append(source.action)
    return Schema(observation, Field("action", actions[0].shape, actions[0].dtype.name))


def _steps(
    source: EpisodeSource, episode: int, names: dict[str, str], *, final_known: bool
) -> tuple[Steps | None, bool]:
    """The steps of an episode as one lane. Where a cut-off episode has no final observation, its last one serves."""
    count, was_cut = int(source.lengths[episode]), False
    observed: dict[str, Array] = {
        stored: source.frames(episode, name, 0, count + final_known) for name, stored in names.items()
    }
    flags = source.ends(episode).terminated
    terminated = flags is not None and bool(flags[-1])
    if not final_known and not terminated:
        final_known, was_cut, count = True, True, count - 1
    if count < 1:
        return None, was_cut
    ends, none = np.zeros((count, 1), bool), np.zeros((count, 1), bool)
    ends[-1] = True
    reward = source.rewards(episode)[:count] if source.rewarded[episode] else np.zeros(count)
    return Steps(
        observation={name: frames[:count, None] for name, frames in observed.items()},
        action=source.actions(episode)[:count, None],
        reward=np.asarray(reward, np.float32)[:, None],
        terminated=ends if terminated else none,
        truncated=none if terminated else ends,
        final_observation={name: frames[count : count + 1] for name, frames in observed.items()}
        if final_known
        else None,
        has_final=ends if final_known else none,
    ), was_cut
