"""Episodes in HDF5 as Minari stores them: one group an episode.

episode_K/observations   [T + 1, ...], or a group of such arrays
episode_K/actions        [T, ...]
episode_K/rewards, terminations, truncations [T], each perhaps
episode_K/infos/success  perhaps

An export of a lake says in an attribute where the last observation is not a true one, because the lake had none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from millpond.data.hdf5 import EpisodeGroups, Hdf5File, StoredArray
from millpond.data.source import Array, ArrayField, DataError, EndFlags
from millpond.replay.exporting import FINAL_STORED

SUCCESS = ("success", "is_success")


class MinariSource:
    """Reads shapes when it is opened, and numbers when they are asked for."""

    layout = "Minari HDF5"

    def __init__(self, file: Hdf5File) -> None:
        self.path = str(file.path)
        self.task = file.path.parent.parent.name if file.path.stem == "main_data" else file.path.stem
        self.masks: Mapping[str, Sequence[str]] = {}
        self._file = file
        self.names: Sequence[str] = [name for name in file.groups("/") if name.startswith("episode_")]
        self._episodes = EpisodeGroups(file, self.names, self._observations, behind=1)
        self.lengths, self.action = self._episodes.lengths, self._episodes.action
        self.without_actions = self._episodes.without_actions
        self.fields: Mapping[str, ArrayField] = self._episodes.fields
        self.default_keys: Sequence[str] = list(self.fields)
        self.rewarded: Array = np.array([file.has(f"{name}/rewards") for name in self.names])
        self.has_rewards = bool(self.rewarded.all())

    @cached_property
    def success(self) -> Array | None:
        """Whether any step's info says so."""
        for word in SUCCESS:
            places = [f"{name}/infos/{word}" for name in self.names]
            if all(self._file.has(place) for place in places):
                return np.array([bool(self._file.read(self._file.stored(place)).any()) for place in places])
        return None

    @cached_property
    def action_bounds(self) -> tuple[float, float] | None:
        """From the action space in metadata.json, which Minari writes beside the file."""
        try:
            metadata = json.loads((self._file.path.parent / "metadata.json").read_bytes())
            space = json.loads(metadata["action_space"])
            low, high = float(np.min(space["low"])), float(np.max(space["high"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None  # the audit then judges by the actions themselves
        return (low, high) if np.isfinite([low, high]).all() else None

    def final_known(self, names: Sequence[str]) -> Array:
        told = [self._file.attribute(name, FINAL_STORED) for name in self.names]
        return np.array([each is None or bool(each) for each in told])

    def frames(self, episode: int, name: str, start: int, stop: int) -> Array:
        return self._episodes.frames(episode, name, start, stop)

    def actions(self, episode: int) -> Array:
        return self._episodes.actions(episode)

    def rewards(self, episode: int) -> Array:
        return self._episodes.per_step(episode, "rewards")

    def ends(self, episode: int) -> EndFlags:
        return EndFlags(self._flags(episode, "terminations"), self._flags(episode, "truncations"))

    def _flags(self, episode: int, what: str) -> Array | None:
        stored = self._file.has(f"{self.names[episode]}/{what}")
        return self._episodes.per_step(episode, what).astype(bool) if stored else None

    def _observations(self, group: str) -> dict[str, StoredArray]:
        found = self._file.arrays(f"{group}/observations")
        if not found:
            raise DataError(
                f"{self.path}: {group}/observations has no arrays of numbers; expected one, or a group of them"
            )
        return {name or "observations": array for name, array in found.items()}
