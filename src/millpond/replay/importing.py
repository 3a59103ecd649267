"""Episodes of others into a stream of a lake: Minari and robomimic HDF5, npz in the layout of `imitation`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from millpond.replay.counted import counted
from millpond.replay.faults import LakeError
from millpond.replay.lake import Lake
from millpond.replay.schema import Field, Schema
from millpond.replay.steps import Steps

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Source:
    """One episode as it was found. `final`: the observation behind the last step, None where there is none."""

    observation: dict[str, Array]
    final: dict[str, Array] | None
    action: Array
    reward: Array | None
    terminated: bool


@dataclass(frozen=True)
class Imported:
    stream: str
    episodes: int
    steps: int
    notes: list[str]


def import_episodes(
    source: str | Path, folder: str | Path, *, stream: str = "imported", progress: Callable[[int], None] | None = None
) -> Imported:
    """Append all episodes of a file (or a Minari folder) to a stream; the lake is made where it is missing."""
    episodes = _read(Path(source))
    first = next(episodes, None)
    if first is None:
        raise LakeError(f"{source} holds no episodes")
    schema = _schema(first)
    steps = count = unrewarded = cut = 0
    with Lake.create(folder, schema) as lake, lake.writer(stream, 1) as writer:
        for episode in _chain(first, episodes):
            taken, was_cut = _steps(episode, schema)
            if taken is not None:
                writer.append(taken)
                steps, count = steps + len(taken.reward), count + 1
            unrewarded, cut = unrewarded + (episode.reward is None), cut + was_cut
            if progress:
                progress(count)
    notes = []
    if unrewarded:
        notes.append(f"{counted(unrewarded, 'episode')} without rewards; 0 is stored")
    if cut:
        notes.append(
            f"{counted(cut, 'episode')} cut off without a final observation: the last observation serves as it"
        )
    return Imported(stream, count, steps, notes)


def _chain(first: Source, rest: Iterator[Source]) -> Iterator[Source]:
    yield first
    yield from rest


def _schema(episode: Source) -> Schema:
    observation = tuple(
        Field.of(name, array.shape[1:], array.dtype.name) for name, array in episode.observation.items()
    )
    return Schema(observation, Field("action", episode.action.shape[1:], episode.action.dtype.name))


def _steps(episode: Source, schema: Schema) -> tuple[Steps | None, bool]:
    """The steps of an episode as one lane. Where a cut-off episode has no final observation, its last one serves."""
    observed, final = episode.observation, episode.final
    count, was_cut = len(episode.action), False
    if final is None and not episode.terminated:
        final = {name: array[-1] for name, array in observed.items()}
        count, was_cut = count - 1, True
    if count < 1:
        return None, was_cut
    ends = np.zeros((count, 1), bool)
    ends[-1] = True
    reward = np.zeros(count, np.float32) if episode.reward is None else np.asarray(episode.reward[:count], np.float32)
    fields = {name: array[:count, None] for name, array in observed.items()}
    finals = None if final is None else {name: array[None] for name, array in final.items()}
    none = np.zeros_like(ends)
    return Steps(
        observation=fields,
        action=episode.action[:count, None],
        reward=reward[:, None],
        terminated=ends if episode.terminated else none,
        truncated=none if episode.terminated else ends,
        final_observation=finals,
        has_final=none if final is None else ends,
    ), was_cut


def _read(source: Path) -> Iterator[Source]:
    if source.is_dir():
        inside = [path for path in (source / "data" / "main_data.hdf5", source / "main_data.hdf5") if path.exists()]
        if not inside:
            raise LakeError(f"{source} is not a Minari dataset: it has no data/main_data.hdf5")
        source = inside[0]
    if not source.exists():
        raise LakeError(f"{source} does not exist")
    if source.suffix == ".npz":
        return _read_npz(source)
    return _read_hdf5(source)


def _read_npz(path: Path) -> Iterator[Source]:
    with np.load(path, allow_pickle=False) as file:
        names = [name for name in file.files if name == "obs" or name.startswith("obs/")]
        missing = {"acts", "terminal", "indices"} - set(file.files)
        if missing or not names:
            raise LakeError(
                f"{path} has {sorted(file.files)}; an npz of episodes has obs, acts, rews, terminal, indices"
            )
        observed = {"observation" if name == "obs" else name[4:]: file[name] for name in names}
        actions, terminal = file["acts"], file["terminal"]
        rewards = file["rews"] if "rews" in file.files else None
        stored = file["final_stored"] if "final_stored" in file.files else np.ones(len(terminal), bool)
        ends = np.append(file["indices"], len(actions))
    for k, (begin, end) in enumerate(zip(np.append(0, ends[:-1]).tolist(), ends.tolist(), strict=True)):
        yield Source(
            {name: array[begin + k : end + k] for name, array in observed.items()},
            {name: array[end + k] for name, array in observed.items()} if stored[k] else None,
            actions[begin:end],
            None if rewards is None else rewards[begin:end],
            bool(terminal[k]),
        )


def _read_hdf5(path: Path) -> Iterator[Source]:
    import h5py

    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise LakeError(f"{path} is not an HDF5 file: {error}") from None
    with file:
        if "data" in file:
            for name in sorted(file["data"], key=_number):
                yield _robomimic(path, name, file["data"][name])
        elif any(name.startswith("episode_") for name in file):
            for name in sorted((name for name in file if name.startswith("episode_")), key=_number):
                yield _minari(file[name])
        else:
            raise LakeError(
                f"{path} has {sorted(file)}; Minari files have episode_0, ..., robomimic files data/demo_0, ..."
            )


def _number(name: str) -> int:
    digits = name.rpartition("_")[2]
    return int(digits) if digits.isdigit() else 0


def _arrays(node: Any, prefix: str = "") -> dict[str, Array]:
    """All arrays below a group, named by their path."""
    if not hasattr(node, "items"):
        return {prefix or "observation": node[()]}
    found: dict[str, Array] = {}
    for name, child in node.items():
        found.update(_arrays(child, f"{prefix}.{name}" if prefix else name))
    return found


def _minari(group: Any) -> Source:
    steps, observed = len(group["rewards"]), _arrays(group["observations"])
    actions = _arrays(group["actions"])
    if list(actions) != ["observation"]:
        raise LakeError(f"{group.name}: actions of several parts ({sorted(actions)}) cannot be stored")
    whole = all(len(array) == steps + 1 for array in observed.values())
    final = {name: array[steps] for name, array in observed.items()} if whole else None
    observed = {name: array[:steps] for name, array in observed.items()}
    return Source(observed, final, actions["observation"], group["rewards"][()], bool(group["terminations"][-1]))


def _robomimic(path: Path, name: str, group: Any) -> Source:
    """`obs`, or the simulator's `states` where there is none; `next_obs` holds the final observation, if it is there."""
    if "obs" in group:
        observed = _arrays(group["obs"])
    elif "states" in group:
        observed = {"observation": group["states"][()]}
    else:
        raise LakeError(f"{path}: data/{name} has neither obs nor states; it has {sorted(group)}")
    final = None
    if "next_obs" in group:
        final = {key: array[-1] for key, array in _arrays(group["next_obs"]).items()}
    rewards = group["rewards"][()] if "rewards" in group else None
    terminated = "dones" in group and bool(group["dones"][-1])
    return Source(observed, final, group["actions"][()], rewards, terminated)
