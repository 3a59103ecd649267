"""Damaged, truncated and foreign files raise an error that names the file and what was expected."""

from __future__ import annotations

import contextlib
import io
import os
import select
import signal
import zipfile
import zlib
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
from tests.support.in_process import run_command

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
        ({"indices": np.array([[6]])}, r"indices has shape \(1, 1\); expected \[episodes - 1\]"),
        ({"indices": np.zeros((0, 3), int)}, r"indices has shape \(0, 3\)"),
        ({"indices": np.array([-6])}, "indices must increase"),
        ({"indices": np.array([2**64 - 1], "u8")}, "indices must increase"),
        ({"indices": np.array([2**63 + 6], "u8")}, "indices must increase"),
        ({"rews": np.array(["a"] * 10)}, r"rews is <U1\[\]; expected numbers"),
        ({"rews": np.zeros(10, complex)}, r"rews is complex128\[\]; expected numbers"),
        ({"rews": np.zeros((10, 1))}, r"rews has shape \(10, 1\), not \(10,\)"),
        ({"terminal": np.zeros((2, 2), bool)}, r"terminal has shape \(2, 2\), not \(2,\)"),
    ],
)
def test_a_foreign_npz_file_is_refused(arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.npz.*" + message):
        read_everything(write_changed_npz(tmp_path / "a.npz", **arrays))


def test_discrete_actions_beyond_any_network_are_refused(tmp_path: Path) -> None:
    for value, words in ((2**62, "the highest action is 4,611,686,018,427,387,904"), (-5, "the lowest action is -5")):
        path = write_changed_npz(tmp_path / "a.npz", acts=np.full(10, value))
        with pytest.raises(DataError, match=words):
            _ = open_episodes(path).num_actions


def test_an_archive_that_would_fill_the_memory_is_refused_by_its_stated_size(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    write_changed_npz(path, obs=None)
    steps, header = (1 << 28) // 4 + 1, io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (steps, 1)})
    with (
        zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive,
        archive.open("obs/zeros.npy", "w", force_zip64=True) as file,
    ):
        file.write(header.getvalue() + bytes(4 * steps))
    assert path.stat().st_size < 1 << 20
    with pytest.raises(DataError, match=r"obs/zeros\.npy unpacks to 268,435,588 bytes, of which [\d,]+ are stored"):
        open_episodes(path)


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
        (_set("data/demo_0/next_obs/position", np.array([[b"a"] * 3] * 6)), r"position is \|S1\[3\]; expected numbers"),
        (_set("data/demo_0/rewards", np.array([b"1.0"] * 6)), r"demo_0/rewards is \|S3\[\]; expected numbers"),
        (_set("data/demo_0/rewards", ["1.0"] * 6), r"demo_0/rewards is object\[\]; expected numbers"),
        (_set("data/demo_0/rewards", np.zeros(6, complex)), r"demo_0/rewards is complex128\[\]; expected numbers"),
        (_set("data/demo_0/rewards", np.zeros(6, [("a", "f4")])), "demo_0/rewards is .*expected numbers"),
        (_set("data/demo_0/rewards", h5py.Empty("f4")), "demo_0/rewards is empty; expected an array"),
        (_set("data/demo_0/rewards", np.dtype("f4")), "demo_0/rewards is a group|demo_0/rewards"),
        (_set("data/demo_0/dones", np.array([b"a"] * 6)), r"demo_0/dones is \|S1\[\]; expected numbers"),
        (_set("data/demo_0/rewards", h5py.SoftLink("/data/demo_0/rewards")), "demo_0/rewards is a link in a loop"),
        (_set("data/demo_0/rewards", h5py.SoftLink("/nowhere")), "demo_0/rewards cannot be read"),
        (_set("data/demo_0/rewards", h5py.ExternalLink("b.hdf5", "x")), "demo_0/rewards is in another file"),
        (_set("data/demo_0", h5py.ExternalLink("b.hdf5", "x")), "data/demo_0 is in another file"),
        (_set("mask/train", np.arange(3)), "mask/train cannot be read"),
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


def test_numbers_in_other_files_are_not_read(tmp_path: Path) -> None:
    """Before, the offset within the other file was used in this one: wrong numbers without an error."""
    _robomimic(tmp_path / "b.hdf5")
    place = "data/demo_0/rewards"
    layout = h5py.VirtualLayout((6,), "f4")
    layout[:] = h5py.VirtualSource(str(tmp_path / "b.hdf5"), place, shape=(6,))
    (tmp_path / "numbers").write_bytes(bytes(24))
    os.mkfifo(tmp_path / "pipe")  # the library would wait forever for somebody to write to it
    edits: list[Callable[[h5py.File], Any]] = [
        lambda file: file.create_virtual_dataset(place, layout),
        lambda file: file.create_dataset(place, (6,), "f4", external=[(str(tmp_path / "numbers"), 0, 24)]),
        lambda file: file.__setitem__(place, h5py.ExternalLink(str(tmp_path / "b.hdf5"), place)),
        lambda file: file.__setitem__(place, h5py.ExternalLink(str(tmp_path / "pipe"), place)),
    ]
    for edit in edits:
        path = write_edited(tmp_path / "a.hdf5", lambda file, edit=edit: (file.__delitem__(place), edit(file)))  # type: ignore[misc]
        with pytest.raises(DataError, match=r"demo_0/rewards (is in another file|has its numbers in other files)"):
            read_everything(path)


def _loop(group: h5py.Group) -> None:
    group["self"] = group


def _many(group: h5py.Group) -> None:
    for level in range(24):  # two names for each group: 2^24 paths
        group.create_group(f"level{level}")
    for level in range(1, 24):
        for name in "ab":
            group[f"level{level}"][name] = group[f"level{level - 1}"]


def _deep(group: h5py.Group) -> None:
    for _ in range(1500):
        group = group.create_group("d")


@pytest.mark.parametrize(
    ("fill", "words"), [(_loop, "a group that contains it"), (_many, "more than 10,000"), (_deep, "nested too deeply")]
)
def test_groups_without_end_are_refused(fill: Callable[[h5py.Group], None], words: str, tmp_path: Path) -> None:
    def edit(file: h5py.File) -> None:
        del file["data/demo_0/obs"]
        fill(file.create_group("data/demo_0/obs"))

    with pytest.raises(DataError, match=rf"a\.hdf5: data/demo_0/obs.*{words}"):
        open_episodes(write_edited(tmp_path / "a.hdf5", edit))


def test_links_within_the_file_are_followed(tmp_path: Path) -> None:
    def edit(file: h5py.File) -> None:
        file.move("data/demo_0/rewards", "stored")
        file["data/demo_0/rewards"] = h5py.SoftLink("/other")
        file["other"] = h5py.SoftLink("stored")  # relative to its group

    path = write_edited(tmp_path / "a.hdf5", edit)
    _robomimic(tmp_path / "b.hdf5")
    assert np.array_equal(open_episodes(path).rewards(0), open_episodes(tmp_path / "b.hdf5").rewards(0))


def test_an_array_that_unpacks_to_gigabytes_is_refused(tmp_path: Path) -> None:
    def edit(file: h5py.File) -> None:
        del file["data/demo_0/actions"]
        array = file.create_dataset("data/demo_0/actions", (1 << 33,), "u1", chunks=(1 << 26,), compression="gzip")
        chunk = zlib.compress(bytes(1 << 26), 9)
        for start in range(0, 1 << 33, 1 << 26):
            array.id.write_direct_chunk((start,), chunk)

    with pytest.raises(DataError, match=r"demo_0/actions unpacks to 8,589,934,592 bytes, of which [\d,]+ are stored"):
        open_episodes(write_edited(tmp_path / "a.hdf5", edit))


@pytest.mark.parametrize("suffix", [".npz", ".hdf5", ""])
def test_pipes_and_devices_are_refused(suffix: str, tmp_path: Path) -> None:
    pipe, device = tmp_path / f"pipe{suffix}", tmp_path / f"device{suffix}"
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    for path, kind in ((pipe, "a pipe"), (device, "a device")):
        with pytest.raises(MillpondError, match=rf"{path.name} cannot be read: it is {kind}, not a regular file"):
            open_episodes(path)


def test_metadata_that_is_broken_states_no_range_of_actions(tmp_path: Path) -> None:
    _minari(tmp_path / "a.hdf5")
    for text in ("[" * 100_000, "[]", "{}", '{"action_space": 3}', '{"action_space": "{\\"low\\": \\"x\\"}"}', "\xff"):
        (tmp_path / "metadata.json").write_text(text)
        assert open_episodes(tmp_path / "a.hdf5").sources[0].action_bounds is None
    (tmp_path / "metadata.json").unlink()
    os.mkfifo(tmp_path / "metadata.json")
    assert open_episodes(tmp_path / "a.hdf5").sources[0].action_bounds is None


def test_names_of_a_file_reach_the_terminal_without_escape_codes(tmp_path: Path) -> None:
    def edit(file: h5py.File) -> None:
        file["data"].attrs["env_args"] = '{"env_name": "\\u001b]0;title\\u0007[red]"}'
        for demo, length in (("demo_0", 6), ("demo_1", 4)):
            file[f"data/{demo}/obs/\x1b[31m[red]\n!! evil"] = np.zeros((length, 1))

    path = write_edited(tmp_path / "\x1b[31m.hdf5", edit)
    for command in ("info", "audit"):
        outcome = run_command(tmp_path, "data", command, path.name)
        assert outcome.code in (0, 1)
        assert "\x1b" not in outcome.stdout + outcome.stderr
        assert r"\x1b]0;title\x07[red]" in outcome.stdout
    refused = run_command(tmp_path, "data", "info", path.name, "--key", "nothing")
    assert (refused.code, len(refused.stderr.splitlines())) == (2, 1)
    assert r"\x1b[31m[red]\n!! evil" in refused.stderr


def run_on_changed_files(tmp_path: Path, seed: int, cases: int) -> dict[int, int]:
    """Change bytes of npz files, run the commands, and count their exit codes."""
    rng, codes = np.random.default_rng(seed), dict.fromkeys((0, 1, 2), 0)
    for case in range(cases):
        write, name = FILES[("npz", "npz compressed")[case % 2]]
        write(tmp_path / name)
        content = bytearray((tmp_path / name).read_bytes())
        for place in rng.integers(0, len(content), rng.integers(1, 9)):
            content[place] = rng.integers(256)
        (tmp_path / name).write_bytes(bytes(content[: rng.integers(len(content))] if case % 7 == 0 else content))
        for command in ("info", "audit"):
            outcome = run_command(tmp_path, "data", command, name)
            codes[outcome.code] += 1
            assert "Traceback" not in outcome.stderr
            assert outcome.code != 2 or len(outcome.errors) == 1, outcome.stderr
    return codes


def test_commands_on_changed_npz_files_end_with_a_result_or_one_line(tmp_path: Path) -> None:
    assert run_on_changed_files(tmp_path, 0, 60)[2] > 30


@pytest.mark.slow
def test_commands_on_many_changed_npz_files_end_with_a_result_or_one_line(tmp_path: Path) -> None:
    assert run_on_changed_files(tmp_path, 1, 3000)[2] > 1500


def run_in_child(folder: Path, command: str, name: str) -> str:
    """Run a command in a forked process; return its exit code, or the end of the process if the library crashed or hung."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            outcome = run_command(folder, "data", command, name)
            one_line = outcome.code != 2 or len(outcome.errors) == 1
            text = str(outcome.code) if one_line else outcome.stderr
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(write, text.encode()[:4000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        done = select.select([pipe], [], [], 20)[0]
        text = pipe.read().decode() if done else "library hung"
    if not done:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return text or "library crashed"


@pytest.mark.slow
def test_commands_on_many_changed_hdf5_files_end_with_a_result_or_one_line(tmp_path: Path) -> None:
    """In child processes: wrong bytes in a heap of strings can crash the HDF5 library, or let it loop forever."""
    rng, ends = np.random.default_rng(0), dict.fromkeys(("0", "1", "2", "library crashed", "library hung"), 0)
    for case in range(300):
        write, name = FILES[("robomimic", "minari", "libero")[case % 3]]
        write(tmp_path / name)
        content = bytearray((tmp_path / name).read_bytes())
        for place in rng.integers(0, len(content) if case % 2 else min(len(content), 6000), rng.integers(1, 9)):
            content[place] = rng.integers(256)
        (tmp_path / name).write_bytes(bytes(content))
        for command in ("info", "audit"):
            end = run_in_child(tmp_path, command, name)
            assert end in ends, end
            ends[end] += 1
    assert ends["2"] > 100, ends
    assert ends["library crashed"] + ends["library hung"] < 20, ends


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    def edit(file: h5py.File) -> None:
        group = file["data/demo_0/obs"].id
        group.links.create_hard(b"\xff\xfe", group, b"position")

    with pytest.raises(DataError, match=r"demo_0/obs cannot be read \(the name b'\\xff\\xfe' is not UTF-8\)"):
        open_episodes(write_edited(tmp_path / "a.hdf5", edit))


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
