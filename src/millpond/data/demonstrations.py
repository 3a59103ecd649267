"""Demonstrations in HDF5 as LIBERO, robomimic and robosuite write them: one group per demonstration in `data`.

data/demo_K/actions       [T, A]        missing in old robosuite files
data/demo_K/obs/NAME      [T, ...]      LIBERO and robomimic
data/demo_K/next_obs/NAME [T, ...]      robomimic, optional: its last entry is the final observation
data/demo_K/states        [T, S]        the simulator's state; the only observation of robosuite
data/demo_K/robot_states  [T, R]        LIBERO
data/demo_K/rewards, dones [T]          LIBERO and robomimic
mask/NAME                 [M]           robomimic, optional: names of demonstrations
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from millpond.data.hdf5 import EpisodeGroups, Hdf5File, StoredArray
from millpond.data.source import Array, ArrayField, DataError, EndFlags, require_numbers
from millpond.safe_read import UnreadableFileError, parse_json

DEMO_MEMBERS = ("actions", "obs", "states", "robot_states")  # a group with any of these is a demonstration
STATE_FIELDS = ("states", "robot_states")  # used only if they are requested, or if there is no `obs`
TASK_ATTRIBUTES = ("problem_info", "bddl_file_name", "env_args", "env", "env_name")  # of the group `data`
SUCCESS_ATTRIBUTES = ("success", "successful")


class DemonstrationSource:
    """Reads shapes when it is opened, and numbers on request."""

    action_bounds: tuple[float, float] | None = None

    def __init__(self, file: Hdf5File) -> None:
        self.path = str(file.path)
        self._file = file
        self.names: Sequence[str] = [
            name for name in file.groups("data") if any(file.has(f"data/{name}/{array}") for array in DEMO_MEMBERS)
        ]
        if not self.names:
            raise DataError(
                f"{self.path}: data has {file.names('data')[:5] or 'no groups'}; expected demo_0, demo_1, ..., each with "
                f"obs or states, and actions"
            )
        self._demos = EpisodeGroups(file, [f"data/{name}" for name in self.names], self._observations, final_frames=0)
        self.lengths, self.action = self._demos.lengths, self._demos.action
        self.missing_actions = self._demos.missing_actions
        self.fields: Mapping[str, ArrayField] = self._demos.fields
        self.default_keys: Sequence[str] = [name for name in self.fields if name not in STATE_FIELDS] or list(
            self.fields
        )
        self.rewarded: Array = np.array([file.has(f"data/{name}/rewards") for name in self.names])
        self.has_rewards = bool(self.rewarded.all())
        self.masks: Mapping[str, Sequence[str]] = (
            {name: file.strings(f"mask/{name}") for name in file.names("mask")} if file.has("mask") else {}
        )
        self.layout, self.task = self._layout_and_task()

    @cached_property
    def success(self) -> Array | None:
        """From an attribute of every demonstration; else from sparse rewards: 0 until the task is solved, then 1."""
        for name in SUCCESS_ATTRIBUTES:
            flags = [self._file.flag(f"data/{demo}", name) for demo in self.names]
            if all(flag is not None for flag in flags):
                return np.array(flags, bool)
        if not self.has_rewards:
            return None
        rewards = [self.rewards(episode) for episode in range(len(self.names))]
        sparse = all(np.isin(each, (0, 1)).all() and not (each[0] and len(each) > 1) for each in rewards)
        return np.array([bool(each.any()) for each in rewards]) if sparse else None

    def final_known(self, names: Sequence[str]) -> Array:
        return np.array([all(self._file.has(_next_frames(demo, name)) for name in names) for demo in self.names])

    def frames(self, episode: int, name: str, start: int, stop: int) -> Array:
        length = int(self.lengths[episode])
        frames = self._demos.frames(episode, name, start, min(stop, length))
        if stop <= length:
            return frames
        following = self._file.stored(_next_frames(self.names[episode], name))
        require_numbers(self.path, following.field(following.path))
        if following.shape != (length, *frames.shape[1:]):
            raise DataError(
                f"{self.path}: {following.path} has shape {following.shape}; expected {length} entries, like obs"
            )
        return np.concatenate([frames, self._file.read(following, length - 1, length)])

    def actions(self, episode: int) -> Array:
        return self._demos.actions(episode)

    def rewards(self, episode: int) -> Array:
        return self._demos.per_step(episode, "rewards")

    def ends(self, episode: int) -> EndFlags:
        has_dones = self._file.has(f"data/{self.names[episode]}/dones")
        return EndFlags(self._demos.per_step(episode, "dones").astype(bool) if has_dones else None, None)

    def _observations(self, group: str) -> dict[str, StoredArray]:
        arrays = self._file.arrays(f"{group}/obs") if self._file.has(f"{group}/obs") else {}
        for name in STATE_FIELDS:
            if name not in arrays and self._file.has(f"{group}/{name}"):
                arrays[name] = self._file.stored(f"{group}/{name}")
        if not arrays:
            raise DataError(f"{self.path}: {group} has {self._file.names(group)}; expected obs or states")
        return arrays

    def _layout_and_task(self) -> tuple[str, str]:
        """Infer the program that wrote the file, and the task, from the attributes of `data`."""
        attributes = {name: _text(self._file.attribute("data", name)) for name in TASK_ATTRIBUTES}
        problem = _json_object(attributes["problem_info"])
        if problem or attributes["bddl_file_name"] is not None:
            instruction = problem.get("language_instruction") or attributes["env_name"] or self._file.path.stem
            return "LIBERO HDF5", str(instruction)
        env = _json_object(attributes["env_args"]).get("env_name") or attributes["env"] or attributes["env_name"]
        only_states = all(name in STATE_FIELDS for name in self.fields)
        return "robosuite HDF5" if only_states else "robomimic HDF5", str(env or self._file.path.stem)


def _next_frames(demo: str, name: str) -> str:
    """Path of the frames after each step, which may be missing; those of `states` are never stored."""
    return f"data/{demo}/next_obs/{name}"


def _text(attribute: Any) -> str | None:
    """The text of an attribute; None if it is missing or something else."""
    if isinstance(attribute, bytes):
        return attribute.decode("utf-8", "replace")
    return attribute if isinstance(attribute, str) else None


def _json_object(text: str | None) -> dict[str, Any]:
    """A JSON object in an attribute; an empty one if there is none."""
    try:
        value = parse_json(text, "attribute", finite=False) if text is not None else {}
    except UnreadableFileError:
        return {}
    return value if isinstance(value, dict) else {}
