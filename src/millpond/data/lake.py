"""The complete episodes of a lake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from millpond.data.errors import DataError
from millpond.data.source import Array, Ends, Field
from millpond.replay import Lake
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
        self.fields: Mapping[str, Field] = {
            field.name: Field(field.name, field.shape, np.dtype(field.dtype)) for field in schema.observation
        }
        self.default_keys: Sequence[str] = list(self.fields)
        self.action: Field | None = Field(schema.action.name, schema.action.shape, np.dtype(schema.action.dtype))

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

    def ends(self, episode: int) -> Ends:
        flags = self._records(episode)["flags"]
        return Ends((flags & TERMINATED) > 0, (flags & TRUNCATED) > 0)

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
