"""Open recorded episodes: a file, a folder of files, a lake, or a packaged dataset."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from millpond.data.episodes import MEMORY_BYTES, Episodes
from millpond.data.source import DataError, EpisodeSource

IN_PACKAGE = {"pendulum": "pendulum.npz", "lift": "lift.hdf5", "handover": "handover.hdf5"}
HDF5_SUFFIXES = (".hdf5", ".h5")


def open_episodes(
    path: str | Path,
    keys: Sequence[str] = (),
    images: bool = False,
    *,
    drop_columns: Sequence[str] = (),
    memory_bytes: int = MEMORY_BYTES,
) -> Episodes:
    """Open recorded episodes. Only their sizes are read at first.

    path          a file (.hdf5, .h5, .npz), a folder of such files, a lake, or a name in IN_PACKAGE
    keys          fields of an observation to use, in this order; none: all vectors (and images, with `images`)
    drop_columns  columns to drop from the vectors, such as `states:0`
    memory_bytes  limit on frames held in memory; the rest is read when it is sampled
    """
    return Episodes(
        str(path), open_sources(path), keys=keys, images=images, drop_columns=drop_columns, memory_bytes=memory_bytes
    )


def open_sources(path: str | Path) -> list[EpisodeSource]:
    """Open all files of a path; at least one."""
    return [_open(file) for file in _files(path)]


def data_exists(path: str | Path) -> bool:
    """True if a path is a file, a folder, or the name of a packaged dataset."""
    try:
        return str(path) in IN_PACKAGE or Path(path).exists()
    except (OSError, ValueError):  # too long, has a NUL, or is in a folder without permission
        return False


def _files(path: str | Path) -> list[Path]:
    """The files of a path, in order of their names."""
    if str(path) in IN_PACKAGE:  # always; a user's file of that name is ./pendulum
        return [Path(str(files("millpond.data") / "files" / IN_PACKAGE[str(path)]))]
    location = Path(path)
    if not data_exists(path):
        raise DataError(
            f"{path}: no such file or folder; data.path is one, or the name of a packaged dataset: "
            f"{', '.join(IN_PACKAGE)}"
        )
    if location.is_file():
        return [location]
    if (location / "lake.json").exists():
        return [location]
    episode_files = sorted(
        file for file in location.rglob("*") if file.suffix in (*HDF5_SUFFIXES, ".npz") and file.is_file()
    )
    if not episode_files:
        raise DataError(f"{path}: no episodes in this folder; expected .hdf5, .h5 or .npz files, or a lake")
    return episode_files


def _open(path: Path) -> EpisodeSource:
    """The reader of a file or lake. Only the libraries of that layout are imported."""
    if path.is_dir():
        from millpond.data.lake import LakeSource

        return LakeSource(path)
    if path.suffix == ".npz":
        from millpond.data.npz import NpzSource

        return NpzSource(path)
    if path.suffix not in HDF5_SUFFIXES:
        raise DataError(f"{path}: expected a file that ends in .hdf5, .h5 or .npz, a folder of them, or a lake")
    return _open_hdf5(path)


def _open_hdf5(path: Path) -> EpisodeSource:
    """The reader of an HDF5 file, whose layout is recognised by the names of its groups."""
    from millpond.data.demonstrations import DemonstrationSource
    from millpond.data.hdf5 import Hdf5File, MinariSource

    file = Hdf5File(path)
    if file.has("data"):
        return DemonstrationSource(file)
    names = file.names("/")
    if any(name.startswith("episode_") for name in names):
        return MinariSource(file)
    raise DataError(
        f"{path}: / has {names[:8]}; expected the group data with demo_0, demo_1, ... (LIBERO, robomimic, robosuite), or "
        f"groups episode_0, episode_1, ... (Minari)"
    )
