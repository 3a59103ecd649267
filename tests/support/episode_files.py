"""Writers of episodes in every supported layout, for tests that compare what is read with what was written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from millpond.replay import Field, Lake, Schema, Steps

Array = np.ndarray[Any, Any]

LIBERO_VECTORS = {"gripper_states": 2, "joint_states": 7, "ee_states": 6, "ee_pos": 3, "ee_ori": 3}
LIBERO_IMAGES = ("agentview_rgb", "eye_in_hand_rgb")


@dataclass
class WrittenEpisode:
    """An episode of T steps: fields of T + 1 frames, T actions and rewards, and how it ended."""

    observation: dict[str, Array]
    action: Array
    reward: Array
    terminated: bool = True

    def __len__(self) -> int:
        return len(self.action)


def make_episodes(
    rng: np.random.Generator,
    lengths: Sequence[int],
    fields: Mapping[str, tuple[tuple[int, ...], str]],
    actions: int | None = 2,
) -> list[WrittenEpisode]:
    """Random episodes; `actions` numbers in (-1, 1) per step, or with None one of five discrete actions."""

    def frames(count: int, shape: tuple[int, ...], dtype: str) -> Array:
        if np.dtype(dtype).kind in "iu":
            return rng.integers(0, 256 if dtype == "uint8" else 1000, (count, *shape)).astype(dtype)
        return rng.normal(size=(count, *shape)).astype(dtype)

    return [
        WrittenEpisode(
            {name: frames(length + 1, shape, dtype) for name, (shape, dtype) in fields.items()},
            rng.integers(0, 5, length) if actions is None else rng.uniform(-1, 1, (length, actions)).astype("float32"),
            rng.normal(size=length).astype("float32"),
            bool(rng.integers(2)),
        )
        for length in lengths
    ]


def write_npz(
    path: Path, episodes: Sequence[WrittenEpisode], *, compressed: bool = False, rewards: bool = True
) -> None:
    """Write as `imitation` does. One field is `obs`, several are `obs/NAME`."""
    names = list(episodes[0].observation)
    arrays = {
        "obs" if names == ["obs"] else f"obs/{name}": np.concatenate([e.observation[name] for e in episodes])
        for name in names
    }
    arrays["acts"] = np.concatenate([e.action for e in episodes])
    arrays["indices"] = np.cumsum([len(e) for e in episodes])[:-1]
    arrays["terminal"] = np.array([e.terminated for e in episodes])
    if rewards:
        arrays["rews"] = np.concatenate([e.reward for e in episodes])
    (np.savez_compressed if compressed else np.savez)(path, **arrays)


def write_minari(path: Path, episodes: Sequence[WrittenEpisode]) -> None:
    """Write as Minari writes main_data.hdf5: chunked arrays that can grow."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w", track_order=True) as file:
        for number, episode in enumerate(episodes):
            group = file.create_group(f"episode_{number}")
            group.attrs["id"], group.attrs["total_steps"] = number, len(episode)
            ends = np.arange(len(episode)) == len(episode) - 1
            for name, array in episode.observation.items():
                place = "observations" if list(episode.observation) == ["observations"] else f"observations/{name}"
                group.create_dataset(place, data=array, chunks=True, maxshape=(None, *array.shape[1:]))
            group["actions"], group["rewards"] = episode.action, episode.reward
            group["terminations"], group["truncations"] = ends & episode.terminated, ends & (not episode.terminated)


def write_robomimic(path: Path, episodes: Sequence[WrittenEpisode], *, next_obs: bool = True, **storage: Any) -> None:
    """Write as robomimic does; `storage` are options of every array, such as its compression."""
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["total"] = sum(map(len, episodes))
        data.attrs["env_args"] = json.dumps({"env_name": "Square", "type": 1, "env_kwargs": {}})
        for number, episode in enumerate(episodes):
            demo = data.create_group(f"demo_{number}")
            demo.attrs["num_samples"] = len(episode)
            demo.create_dataset("actions", data=episode.action, **storage)
            demo.create_dataset("rewards", data=episode.reward, **storage)
            demo["dones"] = (np.arange(len(episode)) == len(episode) - 1).astype(np.int64)
            for name, array in episode.observation.items():
                demo.create_dataset(f"obs/{name}", data=array[:-1], **storage)
                if next_obs:
                    demo.create_dataset(f"next_obs/{name}", data=array[1:], **storage)
        names = np.array([f"demo_{number}" for number in range(len(episodes))], "S")
        file["mask/train"], file["mask/valid"] = names[1:], names[:1]


def write_robosuite(path: Path, episodes: Sequence[WrittenEpisode], *, actions: bool = True) -> None:
    """Write as robosuite's collection of human demonstrations does, numbered from 1; old files have `states` alone."""
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env"], data.attrs["repository_version"] = "Lift", "1.4.0"
        for number, episode in enumerate(episodes, start=1):
            demo = data.create_group(f"demo_{number}")
            demo.attrs["model_file"] = "<mujoco/>"
            demo["states"] = episode.observation["states"][:-1]
            if actions:
                demo["actions"] = episode.action


def write_libero(
    path: Path,
    lengths: Sequence[int] = (12, 9, 15),
    *,
    side: int = 128,
    seed: int = 0,
    instruction: str = "open the middle drawer of the cabinet",
) -> None:
    """Write a LIBERO file: every demonstration succeeds, so that each return is 1; the gripper closes over time."""
    rng = np.random.default_rng(seed)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_name"] = "Libero_Tabletop_Manipulation"
        data.attrs["problem_info"] = json.dumps(
            {
                "problem_name": "libero_tabletop_manipulation",
                "domain_name": "robosuite",
                "language_instruction": instruction,
            }
        )
        data.attrs["env_args"] = json.dumps({"type": 1, "env_name": "Libero_Tabletop_Manipulation", "env_kwargs": {}})
        data.attrs["bddl_file_name"], data.attrs["tag"] = "open_the_middle_drawer.bddl", "libero-v1"
        data.attrs["num_demos"], data.attrs["total"] = len(lengths), sum(lengths)
        data.attrs["macros_image_convention"] = "opengl"
        for number, length in enumerate(lengths):
            progress = np.linspace(0, 1, length)[:, None]
            vectors = {
                name: rng.normal(scale=0.05, size=(length, width)) + progress * np.linspace(0.5, 1, width)
                for name, width in LIBERO_VECTORS.items()
            }
            vectors["ee_states"] = np.concatenate([vectors["ee_pos"], vectors["ee_ori"]], axis=1)
            demo = data.create_group(f"demo_{number}")
            demo.attrs["num_samples"], demo.attrs["model_file"] = length, "<mujoco/>"
            for name, array in vectors.items():
                demo[f"obs/{name}"] = array
            for name in LIBERO_IMAGES:
                demo[f"obs/{name}"] = rng.integers(0, 256, (length, side, side, 3), dtype=np.uint8)
            ends = (np.arange(length) == length - 1).astype(np.uint8)
            clock = 0.05 * np.arange(length)[:, None]
            states = np.concatenate([clock, rng.normal(size=(length, 50))], axis=1)
            demo.attrs["init_state"] = states[0]
            demo["states"], demo["robot_states"] = states, rng.normal(size=(length, 9))
            demo["actions"] = rng.uniform(-1, 1, (length, 7))
            demo["rewards"], demo["dones"] = ends, ends


def write_lake(path: Path, episodes: Sequence[WrittenEpisode]) -> None:
    """Write one stream with one lane. Terminated episodes are stored without their final observation."""
    first = episodes[0]
    schema = Schema(
        tuple(Field.of(name, array.shape[1:], array.dtype.name) for name, array in first.observation.items()),
        Field("action", first.action.shape[1:], first.action.dtype.name),
    )
    with Lake.create(path, schema) as lake, lake.writer("agent0", 1) as writer:
        for episode in episodes:
            ends = (np.arange(len(episode)) == len(episode) - 1)[:, None]
            writer.append(
                Steps(
                    observation={name: array[:-1, None] for name, array in episode.observation.items()},
                    action=episode.action[:, None],
                    reward=episode.reward[:, None],
                    terminated=ends & episode.terminated,
                    truncated=ends & (not episode.terminated),
                    final_observation=None
                    if episode.terminated
                    else {name: array[-1:] for name, array in episode.observation.items()},
                )
            )
