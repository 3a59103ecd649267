"""Damaged, truncated and foreign files raise an error that names the file and what was expected."""

from __future__ import annotations

import contextlib
import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millpond.data import DataError, audit, open_episodes
from millpond.errors import MillpondError
from tests.support.episode_files import (
    make_episodes,
    write_lake,
    write_libero,
    write_minari,
    write_npz,
    write_robomimic,
)

Writer = Callable[[Path], None]


def _robomimic(path: Path) -> None:
    fields = {"position": ((3,), "float32"), "view": ((4, 4, 3), "uint8")}
    write_robomimic(path, make_episodes(np.random.default_rng(0), [6, 4], fields), compression="gzip")


def _minari(path: Path) -> None:
    write_minari(path, make_episodes(np.random.default_rng(0), [6, 4], {"observations": ((3,), "float64")}))


def _npz(path: Path) -> None:
    write_npz(path, make_episodes(np.random.default_rng(0), [6, 4], {"obs": ((3,), "float32")}))


def _npz_compressed(path: Path) -> None:
    write_npz(path, make_episodes(np.random.default_rng(0), [6, 4], {"obs": ((3,), "float32")}), compressed=True)


def _libero(path: Path) -> None:
    write_libero(path, (6, 4), side=4)


FILES: dict[str, tuple[Writer, str]] = {
    "libero": (_libero, "a.hdf5"),
    "robomimic": (_robomimic, "a.hdf5"),
    "minari": (_minari, "a.h5"),
    "npz": (_npz, "a.npz"),
    "npz compressed": (_npz_compressed, "a.npz"),
}


def read_everything(path: Path) -> None:
    """Read sizes, every episode whole and by steps, and audit."""
    data = open_episodes(path, images=True, memory_bytes=0)
    for episode in range(len(data)):
        data.read(episode)
        data.gather(np.array([episode]), np.arange(data.lengths[episode])[None])
    audit(data)


@pytest.mark.parametrize("kind", FILES)
@given(fraction=st.floats(0, 1, exclude_max=True))
@settings(max_examples=25)
def test_a_file_truncated_anywhere_is_refused(
    kind: str, fraction: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    write, name = FILES[kind]
    path = tmp_path_factory.mktemp("truncated") / name
    write(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(fraction * len(whole))])
    with pytest.raises(DataError, match=name):
        read_everything(path)


@pytest.mark.parametrize("kind", ["npz", "npz compressed"])
@given(seed=st.integers(0, 2**32 - 1))
@example(seed=27769)  # a name in the archive that is not UTF-8
@settings(max_examples=40)
def test_a_file_with_wrong_bytes_never_raises_anything_else(
    kind: str, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Memory-mapped numbers are not checked, so wrong ones may be read; a wrong structure is an error.

    HDF5 is left out: its library can loop forever over a damaged heap of strings.
    """
    write, name = FILES[kind]
    path = tmp_path_factory.mktemp("wrong") / name
    write(path)
    rng = np.random.default_rng(seed)
    content = bytearray(path.read_bytes())
    for place in rng.integers(0, len(content), 8):
        content[place] = rng.integers(256)
    path.write_bytes(bytes(content))
    with contextlib.suppress(MillpondError):
        read_everything(path)


def write_changed_npz(path: Path, **arrays: Any) -> Path:
    """Write the npz file with some arrays replaced, or removed where None."""
    _npz(path)
    with np.load(path) as file:
        content = {**dict(file), **arrays}
    np.savez(path, **{name: array for name, array in content.items() if array is not None})
    return path


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"terminal": None}, r"has the arrays .*, and lacks terminal; expected the imitation layout"),
        ({"obs": None}, r", and lacks obs"),
        ({"indices": np.array([11])}, "indices must increase"),
        ({"indices": np.array([3, 3])}, "indices must increase"),
        ({"obs": np.zeros((10, 3))}, r"obs has 10 frames; 10 acts in 2 episodes need 12"),
        ({"rews": np.zeros(9)}, r"rews has shape \(9,\), not \(10,\)"),
        ({"terminal": np.zeros(3, bool)}, r"terminal has shape \(3,\), not \(2,\)"),
        ({"obs": np.array([{"a": 1}] * 12, object)}, r"array obs cannot be read: it has Python objects"),
        ({"acts": np.float32(1)}, r"array acts cannot be read: shape \(\) must have"),
        ({"obs": np.array(["left"] * 12)}, r"obs is <U4\[\]; expected numbers"),
        ({"indices": np.array([2.5])}, r"indices is float64\[\]; expected integers"),
    ],
)
def test_a_foreign_npz_file_is_refused(arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.npz.*" + message):
        read_everything(write_changed_npz(tmp_path / "a.npz", **arrays))


def test_an_array_with_a_false_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    _npz(path)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40, 1 << 30)})
    with zipfile.ZipFile(path) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    members["obs.npy"] = header.getvalue() + b"1234"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(DataError, match="array obs cannot be read: it has 4 bytes"):
        open_episodes(path)


def write_edited(path: Path, edit: Callable[[h5py.File], None], write: Writer = _robomimic) -> Path:
    write(path)
    with h5py.File(path, "r+") as file:
        edit(file)
    return path


def _without(place: str) -> Callable[[h5py.File], None]:
    return lambda file: file.__delitem__(place)


def _set(place: str, array: Any) -> Callable[[h5py.File], None]:
    def edit(file: h5py.File) -> None:
        del file[place]
        file[place] = array

    return edit


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_without("data"), r"/ has \['mask'\]; expected the group data with demo_0"),
        (_set("data", np.zeros(3)), "data cannot be read|data is an array"),
        (_without("data/demo_1/obs/view"), r"data/demo_1 observes \['position'\]; data/demo_0 has"),
        (_set("data/demo_1/obs", np.zeros((4, 3))), "data/demo_1"),
        (_set("data/demo_1/obs/position", np.zeros((3, 3), "f4")), r"demo_1/obs/position has shape \(3, 3\); .* 4 entries"),
        (_set("data/demo_1/obs/position", np.zeros((4, 2), "f4")), r"position is float32\[2\] per step; expected .*3"),
        (_set("data/demo_1/actions", np.zeros((4, 9), "f4")), r"demo_1/actions is float32\[9\] per step"),
        (_set("data/demo_1/actions", np.zeros((0, 2), "f4")), "demo_1/actions has no steps"),
        (_set("data/demo_0/actions", np.array([b"left"] * 6)), r"demo_0/actions is \|S4\[\]; expected numbers"),
        (_set("data/demo_0/rewards", np.zeros(5)), r"demo_0/rewards has shape \(5,\); expected \(6,\)"),
        (_set("data/demo_0/next_obs/position", np.zeros((2, 3), "f4")), r"next_obs/position has shape \(2, 3\)"),
    ],
)  # fmt: skip
def test_a_foreign_hdf5_file_is_refused(edit: Callable[[h5py.File], None], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.hdf5.*(" + message + ")"):
        read_everything(write_edited(tmp_path / "a.hdf5", edit))


def test_a_minari_file_without_the_final_frame_is_refused(tmp_path: Path) -> None:
    path = write_edited(tmp_path / "a.hdf5", _set("episode_1/observations", np.zeros((4, 3))), _minari)
    with pytest.raises(DataError, match=r"episode_1/observations has shape \(4, 3\); expected 5 entries for 4 actions"):
        open_episodes(path)


def test_an_array_that_was_never_written_is_refused(tmp_path: Path) -> None:
    def edit(file: h5py.File) -> None:
        del file["data/demo_0/actions"]
        file.create_dataset("data/demo_0/actions", (1 << 40, 2), "f4", chunks=(64, 2))

    with pytest.raises(DataError, match=r"demo_0/actions claims shape .* of which 0 are stored"):
        read_everything(write_edited(tmp_path / "a.hdf5", edit))


def test_a_broken_external_link_is_refused(tmp_path: Path) -> None:
    def edit(file: h5py.File) -> None:
        del file["data/demo_0/actions"]
        file["data/demo_0/actions"] = h5py.ExternalLink("/nowhere.hdf5", "x")

    with pytest.raises(DataError, match=r"a\.hdf5: data/demo_0"):
        read_everything(write_edited(tmp_path / "a.hdf5", edit))


def test_paths_without_episodes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.hdf5").write_text("not HDF5")
    (tmp_path / "b.txt").write_text("text")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"a\.hdf5: / cannot be read .*expected a complete HDF5 file"):
        open_episodes(tmp_path / "a.hdf5")
    with pytest.raises(DataError, match=r"b\.txt: expected a file that ends in"):
        open_episodes(tmp_path / "b.txt")
    with pytest.raises(DataError, match="no episodes in this folder"):
        open_episodes(tmp_path / "empty")
    with pytest.raises(DataError, match=r"no such file or folder; .*pendulum, lift, handover"):
        open_episodes(tmp_path / "nowhere")


def test_a_damaged_lake_is_named_in_the_error(tmp_path: Path) -> None:
    write_lake(tmp_path / "lake", make_episodes(np.random.default_rng(0), [6, 4], {"observation": ((3,), "float32")}))
    steps = next((tmp_path / "lake").rglob("*.steps"))
    content = bytearray(steps.read_bytes())
    content[len(content) // 2] ^= 255
    steps.write_bytes(bytes(content))
    with pytest.raises(MillpondError, match="lake"):
        read_everything(tmp_path / "lake")
