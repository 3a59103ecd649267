"""Episodes in HDF5 as Minari stores them: one group per episode.

episode_K/observations   [T + 1, ...], or a group of such arrays
episode_K/actions        [T, ...]
episode_K/rewards, terminations, truncations [T], each optional
episode_K/infos/success  optional

An export of a lake has an attribute that marks episodes whose final observation is not a true one, because the
lake had none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from millpond.data.hdf5 import EpisodeGroups, Hdf5File, StoredArray
from millpond.data.source import Array, ArrayField, DataError, EndFlags
from millpond.replay.tools.export import FINAL_STORED

SUCCESS_INFOS = ("success", "is_success")


class MinariSource:
    """Reads shapes when it is opened, and numbers on request."""

    layout = "Minari HDF5"

    def __init__(self, file: Hdf5File) -> None:
        self.path = str(file.path)
        self.task = file.path.parent.parent.name if file.path.stem == "main_data" else file.path.stem
        self.masks: Mapping[str, Sequence[str]] = {}
        self._file = file
        self.names: Sequence[str] = [name for name in file.groups("/") if name.startswith("episode_")]
        self._episodes = EpisodeGroups(file, self.names, self._observations, final_frames=1)
        self.lengths, self.action = self._episodes.lengths, self._episodes.action
        self.missing_actions = self._episodes.missing_actions
        self.fields: Mapping[str, ArrayField] = self._episodes.fields
        self.default_keys: Sequence[str] = list(self.fields)
        self.rewarded: Array = np.array([file.has(f"{name}/rewards") for name in self.names])
        self.has_rewards = bool(self.rewarded.all())

    @cached_property
    def success(self) -> Array | None:
        """True for an episode if the info of any step is true."""
        for info in SUCCESS_INFOS:
            places = [f"{name}/infos/{info}" for name in self.names]
            if all(self._file.has(place) for place in places):
                return np.array([bool(self._file.read(self._file.stored(place)).any()) for place in places])
        return None

    @cached_property
    def action_bounds(self) -> tuple[float, float] | None:
        """From the action space in metadata.json, which Minari writes next to the file."""
        try:
            metadata = json.loads((self._file.path.parent / "metadata.json").read_bytes())
            space = json.loads(metadata["action_space"])
            low, high = float(np.min(space["low"])), float(np.max(space["high"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None  # the audit then infers the range from the actions themselves
        return (low, high) if np.isfinite([low, high]).all() else None

    def final_known(self, names: Sequence[str]) -> Array:
        flags = [self._file.attribute(name, FINAL_STORED) for name in self.names]
        return np.array([flag is None or bool(flag) for flag in flags])

    def frames(self, episode: int, name: str, start: int, stop: int) -> Array:
        return self._episodes.frames(episode, name, start, stop)

    def actions(self, episode: int) -> Array:
        return self._episodes.actions(episode)

    def rewards(self, episode: int) -> Array:
        return self._episodes.per_step(episode, "rewards")

    def ends(self, episode: int) -> EndFlags:
        return EndFlags(self._flags(episode, "terminations"), self._flags(episode, "truncations"))

    def _flags(self, episode: int, name: str) -> Array | None:
        stored = self._file.has(f"{self.names[episode]}/{name}")
        return self._episodes.per_step(episode, name).astype(bool) if stored else None

    def _observations(self, group: str) -> dict[str, StoredArray]:
        arrays = self._file.arrays(f"{group}/observations")
        if not arrays:
            raise DataError(
                f"{self.path}: {group}/observations has no arrays of numbers; expected one, or a group of them"
            )
        return {name or "observations": array for name, array in arrays.items()}
