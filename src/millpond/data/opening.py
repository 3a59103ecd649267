"""Open whatever holds episodes: a file, a folder of files, a lake, or data that is in the package."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from millpond.data.episodes import MEMORY_BYTES, Episodes
from millpond.data.source import DataError, EpisodeSource

IN_PACKAGE = {"pendulum": "pendulum.npz", "lift": "lift.hdf5", "handover": "handover.hdf5"}
HDF5_NAMES = (".hdf5", ".h5")


def open_episodes(
    path: str | Path,
    keys: Sequence[str] = (),
    images: bool = False,
    *,
    drop_columns: Sequence[str] = (),
    memory_bytes: int = MEMORY_BYTES,
) -> Episodes:
    """Open recorded episodes. Nothing but their sizes is read yet.

    path          a file (.hdf5, .h5, .npz), a folder of such files, a lake, or a name of IN_PACKAGE
    keys          fields of an observation to use, in this order; none: all vectors (and images, where `images`)
    drop_columns  columns to leave out of the vectors, such as `states:0`
    memory_bytes  what does not fit into so many is read as it is drawn
    """
    return Episodes(
        str(path), open_sources(path), keys=keys, images=images, drop_columns=drop_columns, memory_bytes=memory_bytes
    )


def open_sources(path: str | Path) -> list[EpisodeSource]:
    """Open all files that a path stands for; at least one."""
    return [_open(file) for file in _files(path)]


def is_there(path: str | Path) -> bool:
    """True if a path is a file, a folder, or data that is in the package."""
    try:
        return str(path) in IN_PACKAGE or Path(path).exists()
    except (OSError, ValueError):  # too long, a NUL in it, or a folder that must not be looked into
        return False


def _files(path: str | Path) -> list[Path]:
    """Return the files that a path stands for, in order of their names."""
    if str(path) in IN_PACKAGE:  # always; a file of one's own by that name is ./pendulum
        return [Path(str(files("millpond.data") / "files" / IN_PACKAGE[str(path)]))]
    place = Path(path)
    if not is_there(path):
        raise DataError(
            f"{path}: no such file or folder; data.path is one, or a name of what is in the package: "
            f"{', '.join(IN_PACKAGE)}"
        )
    if place.is_file():
        return [place]
    if (place / "lake.json").exists():
        return [place]
    found = sorted(each for each in place.rglob("*") if each.suffix in (*HDF5_NAMES, ".npz") and each.is_file())
    if not found:
        raise DataError(f"{path}: no episodes in this folder; expected .hdf5, .h5 or .npz files, or a lake")
    return found


def _open(path: Path) -> EpisodeSource:
    """The reader of a file or lake. Libraries are loaded only for the kind that is read."""
    if path.is_dir():
        from millpond.data.lake import LakeSource

        return LakeSource(path)
    if path.suffix == ".npz":
        from millpond.data.npz import NpzSource

        return NpzSource(path)
    if path.suffix not in HDF5_NAMES:
        raise DataError(f"{path}: expected a file that ends in .hdf5, .h5 or .npz, a folder of them, or a lake")
    return _open_hdf5(path)


def _open_hdf5(path: Path) -> EpisodeSource:
    """The layout is known by the names of its groups."""
    from millpond.data.demonstrations import DemonstrationSource
    from millpond.data.hdf5 import Hdf5File
    from millpond.data.minari import MinariSource

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
