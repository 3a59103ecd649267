"""Export complete episodes of a lake to common formats: a Minari dataset (HDF5), or one npz file.

Minari: `PATH/data/main_data.hdf5` with a group `episode_K` for each episode (observations of T + 1 steps; actions,
rewards, terminations, truncations of T; infos) and `PATH/data/metadata.json`, as `minari.MinariDataset` reads it.

npz: `obs` (T + 1 per episode, concatenated), `acts`, `rews`, `terminal` [episodes], `indices` (where `acts` is cut
into episodes): the layout of the `imitation` project, and beside it `final_stored` [episodes].

Both layouts require an observation after the last step. If the lake has none, which is possible for terminated episodes
only, the last one is repeated and a flag marks it: the attribute `final_observation_stored` of a Minari episode, and
`final_stored` in npz. Millpond's readers then treat it as missing; to others it is a step that changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from millpond.replay.lake.lake import Lake
from millpond.replay.lake.sample import LakeEpisode
from millpond.replay.schema import Field, LakeError, Schema

Array = np.ndarray[Any, Any]
FINAL_STORED = "final_observation_stored"  # attribute of a Minari episode: its last observation is not a repetition
PROVENANCE = ("agent", "round", "policy_version", "epsilon", "lane", "episode")


@dataclass(frozen=True)
class Exported:
    """`without_final`: episodes whose last observation is repeated."""

    path: str
    episodes: int
    steps: int
    without_final: int


def export(
    folder: str | Path, target: str | Path, *, stream: str | None = None, progress: Callable[[int], None] | None = None
) -> Exported:
    """Write all complete episodes, to npz if the name of `target` ends with that, else as a Minari dataset."""
    target = Path(target)
    if target.exists():
        raise LakeError(f"{target} exists already; export to another path")
    with Lake(folder) as lake:
        if stream is not None and stream not in lake.streams:
            raise LakeError(f"{folder} has no stream {stream!r}; it has {lake.streams}")
        write = _write_npz if target.suffix == ".npz" else _write_minari
        return write(lake, target, stream, progress)


def _observations(episode: LakeEpisode, schema: Schema) -> dict[str, Array]:
    """Return T + 1 observations by field."""
    fields = episode.observation if isinstance(episode.observation, Mapping) else {"observation": episode.observation}
    if episode.has_final:
        return dict(fields)
    return {name: np.concatenate([array, array[-1:]]) for name, array in fields.items()}


def _write_minari(lake: Lake, target: Path, stream: str | None, progress: Callable[[int], None] | None) -> Exported:
    import h5py

    schema, steps, without_final, largest_action, count = lake.schema, 0, 0, 0, 0
    (target / "data").mkdir(parents=True)
    with h5py.File(target / "data" / "main_data.hdf5", "w", track_order=True) as file:
        for count, episode in enumerate(lake.episodes(stream), start=1):
            group = file.create_group(f"episode_{count - 1}")
            group.attrs["id"], group.attrs["total_steps"] = count - 1, len(episode.reward)
            group.attrs[FINAL_STORED] = episode.has_final
            observed = _observations(episode, schema)
            if schema.single:
                group.create_dataset(
                    "observations", data=observed["observation"], compression="gzip", compression_opts=1
                )
            else:
                for name, array in observed.items():
                    group.create_dataset(f"observations/{name}", data=array, compression="gzip", compression_opts=1)
            actions = episode.action.astype(np.int64) if _is_discrete(schema.action) else episode.action
            group["actions"], group["rewards"] = actions, episode.reward
            group["terminations"] = episode.terminated
            group["truncations"] = episode.truncated & ~episode.terminated
            for name in (*PROVENANCE, *(field.name for field in schema.extra)):
                group[f"infos/{name}"] = episode.record[name]
            steps, without_final = steps + len(episode.reward), without_final + (not episode.has_final)
            if _is_discrete(schema.action):
                largest_action = max(largest_action, int(actions.max()))
            if progress:
                progress(count)
    metadata = {
        "dataset_id": f"millpond/{lake.folder.name}-v0",
        "total_episodes": count,
        "total_steps": steps,
        "data_format": "hdf5",
        "jpeg_encoding": False,
        "observation_space": json.dumps(_observation_space(schema)),
        "action_space": json.dumps(_action_space(schema.action, largest_action)),
        "minari_version": "0.5.3",
        "author": ["millpond"],
        "author_email": [],
        "final_observations_missing": without_final,
    }
    (target / "data" / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n", encoding="utf-8")
    return Exported(str(target), count, steps, without_final)


def _is_discrete(action: Field) -> bool:
    return action.shape == () and np.dtype(action.dtype).kind in "iu"


def _observation_space(schema: Schema) -> dict[str, Any]:
    if schema.single:
        return _box(schema.observation[0])
    return {"type": "Dict", "subspaces": {field.name: _box(field) for field in schema.observation}}


def _action_space(action: Field, largest: int) -> dict[str, Any]:
    """Return the action space; the number of discrete actions is taken from the largest one that occurs."""
    if _is_discrete(action):
        return {"type": "Discrete", "dtype": "int64", "start": 0, "n": largest + 1}
    return _box(action)


def _box(field: Field) -> dict[str, Any]:
    dtype = np.dtype(field.dtype)
    low, high = (float("-inf"), float("inf")) if dtype.kind == "f" else (0, 1)
    if dtype.kind in "iu":
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    bounds = {name: np.full(field.shape, value).tolist() for name, value in (("low", low), ("high", high))}
    return {"type": "Box", "dtype": field.dtype, "shape": list(field.shape), **bounds}


def _write_npz(lake: Lake, target: Path, stream: str | None, progress: Callable[[int], None] | None) -> Exported:
    episodes = []
    for count, episode in enumerate(lake.episodes(stream), start=1):
        episodes.append(episode)
        if progress:
            progress(count)
    if not episodes:
        raise LakeError(f"{lake.folder} has no complete episode; an npz file needs at least one")
    observed = [_observations(episode, lake.schema) for episode in episodes]
    names = [field.name for field in lake.schema.observation]
    keys = {"observation": "obs"} if lake.schema.single else {name: f"obs/{name}" for name in names}
    arrays = {keys[name]: np.concatenate([each[name] for each in observed]) for name in names}
    lengths = [len(episode.reward) for episode in episodes]
    arrays["acts"] = np.concatenate([episode.action for episode in episodes])
    arrays["rews"] = np.concatenate([episode.reward for episode in episodes])
    arrays["terminal"] = np.array([bool(episode.terminated[-1]) for episode in episodes])
    arrays["indices"] = np.cumsum(lengths)[:-1]
    arrays["final_stored"] = np.array([episode.has_final for episode in episodes])
    np.savez_compressed(target, allow_pickle=False, **arrays)
    return Exported(str(target), len(episodes), sum(lengths), sum(not episode.has_final for episode in episodes))
