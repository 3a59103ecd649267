"""Demonstrations in HDF5 as LIBERO, robomimic and robosuite write them: one group a demonstration in `data`.

data/demo_K/actions       [T, A]        missing in old robosuite files
data/demo_K/obs/NAME      [T, ...]      LIBERO and robomimic
data/demo_K/next_obs/NAME [T, ...]      robomimic, perhaps: its last one is the final observation
data/demo_K/states        [T, S]        the simulator's state; all that robosuite has
data/demo_K/robot_states  [T, R]        LIBERO
data/demo_K/rewards, dones [T]          LIBERO and robomimic
mask/NAME                 [M]           robomimic, perhaps: names of demonstrations
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from millpond.data.hdf5 import EpisodeGroups, Hdf5File, StoredArray
from millpond.data.source import Array, ArrayField, DataError, EndFlags

OF_A_DEMO = ("actions", "obs", "states", "robot_states")  # a group with any of these is a demonstration
BESIDE = ("states", "robot_states")  # beside `obs`: used when they are asked for, or when there is no `obs`
TOLD = ("problem_info", "bddl_file_name", "env_args", "env", "env_name")  # attributes of `data`
SAYS_SUCCESS = ("success", "successful")


class DemonstrationSource:
    """Reads shapes when it is opened, and numbers when they are asked for."""

    action_bounds: tuple[float, float] | None = None

    def __init__(self, file: Hdf5File) -> None:
        self.path = str(file.path)
        self._file = file
        self.names: Sequence[str] = [
            name for name in file.groups("data") if any(file.has(f"data/{name}/{array}") for array in OF_A_DEMO)
        ]
        if not self.names:
            raise DataError(
                f"{self.path}: data has {file.names('data')[:5] or 'no groups'}; expected demo_0, demo_1, ..., each with "
                f"obs or states, and actions"
            )
        self._demos = EpisodeGroups(file, [f"data/{name}" for name in self.names], self._observations, behind=0)
        self.lengths, self.action = self._demos.lengths, self._demos.action
        self.without_actions = self._demos.without_actions
        self.fields: Mapping[str, ArrayField] = self._demos.fields
        self.default_keys: Sequence[str] = [name for name in self.fields if name not in BESIDE] or list(self.fields)
        self.rewarded: Array = np.array([file.has(f"data/{name}/rewards") for name in self.names])
        self.has_rewards = bool(self.rewarded.all())
        self.masks: Mapping[str, Sequence[str]] = (
            {name: file.strings(f"mask/{name}") for name in file.names("mask")} if file.has("mask") else {}
        )
        self.layout, self.task = self._kind()

    @cached_property
    def success(self) -> Array | None:
        """As the attributes of all demonstrations say; else, where rewards are 0 until the task is done and then 1."""
        for word in SAYS_SUCCESS:
            told = [self._file.attribute(f"data/{name}", word) for name in self.names]
            if all(each is not None for each in told):
                return np.array([bool(each) for each in told])
        if not self.has_rewards:
            return None
        rewards = [self.rewards(episode) for episode in range(len(self.names))]
        sparse = all(np.isin(each, (0, 1)).all() and not (each[0] and len(each) > 1) for each in rewards)
        return np.array([bool(each.any()) for each in rewards]) if sparse else None

    def final_known(self, names: Sequence[str]) -> Array:
        return np.array([all(self._file.has(_behind(demo, name)) for name in names) for demo in self.names])

    def frames(self, episode: int, name: str, start: int, stop: int) -> Array:
        length = int(self.lengths[episode])
        frames = self._demos.frames(episode, name, start, min(stop, length))
        if stop <= length:
            return frames
        behind = self._file.stored(_behind(self.names[episode], name))
        if behind.shape != (length, *frames.shape[1:]):
            raise DataError(f"{self.path}: {behind.path} has shape {behind.shape}; expected {length} rows, like obs")
        return np.concatenate([frames, self._file.read(behind, length - 1, length)])

    def actions(self, episode: int) -> Array:
        return self._demos.actions(episode)

    def rewards(self, episode: int) -> Array:
        return self._demos.per_step(episode, "rewards")

    def ends(self, episode: int) -> EndFlags:
        has_dones = self._file.has(f"data/{self.names[episode]}/dones")
        return EndFlags(self._demos.per_step(episode, "dones").astype(bool) if has_dones else None, None)

    def _observations(self, group: str) -> dict[str, StoredArray]:
        found = self._file.arrays(f"{group}/obs") if self._file.has(f"{group}/obs") else {}
        for name in BESIDE:
            if name not in found and self._file.has(f"{group}/{name}"):
                found[name] = self._file.stored(f"{group}/{name}")
        if not found:
            raise DataError(f"{self.path}: {group} has {self._file.names(group)}; expected obs or states")
        return found

    def _kind(self) -> tuple[str, str]:
        """What wrote the file, and which task it says it is of."""
        told = {name: self._file.attribute("data", name) for name in TOLD}
        problem = _json(told["problem_info"])
        if problem or told["bddl_file_name"] is not None:
            return "LIBERO HDF5", str(problem.get("language_instruction") or told["env_name"] or self._file.path.stem)
        env = _json(told["env_args"]).get("env_name") or told["env"] or told["env_name"]
        only_states = all(name in BESIDE for name in self.fields)
        return "robosuite HDF5" if only_states else "robomimic HDF5", str(env or self._file.path.stem)


def _behind(demo: str, name: str) -> str:
    """Where the frames after each step are, if they are stored; of `states` they never are."""
    return f"data/{demo}/next_obs/{name}"


def _json(text: Any) -> dict[str, Any]:
    """A JSON object in an attribute; an empty one where it is none."""
    try:
        value = json.loads(text) if isinstance(text, (str, bytes)) else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
