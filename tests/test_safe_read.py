"""Files of strangers: only regular files of a bounded size are read, and JSON never crashes its reader."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from millpond.safe_read import (
    UnreadableFileError,
    is_count,
    is_finite_number,
    parse_json,
    read_json_object,
    read_regular,
    require_regular,
)


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_folder(path: Path) -> None:
    path.mkdir()


def link_to_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link_to_file(path: Path) -> None:
    path.with_name("target").write_text("{}")
    path.symlink_to(path.with_name("target"))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (make_pipe, "it is a pipe, not a regular file"),
        (make_folder, "it is a folder, not a regular file"),
        (link_to_device, "it is a symbolic link, not a regular file"),
        (link_to_file, "it is a symbolic link, not a regular file"),
    ],
)
def test_only_regular_files_are_opened(make: object, words: str, tmp_path: Path) -> None:
    assert callable(make)
    make(tmp_path / "x.json")
    with pytest.raises(UnreadableFileError, match=rf"x\.json cannot be read: {words}; delete it"):
        read_regular(tmp_path / "x.json", 100, "delete it")


def test_links_are_followed_to_regular_files_on_request_only(tmp_path: Path) -> None:
    link_to_file(tmp_path / "x.json")
    assert read_regular(tmp_path / "x.json", 100, follow_links=True) == b"{}"
    (tmp_path / "zero").symlink_to("/dev/zero")
    with pytest.raises(UnreadableFileError, match="it is a device"):
        require_regular(tmp_path / "zero", follow_links=True)


def test_a_file_above_the_limit_is_refused_without_being_read(tmp_path: Path) -> None:
    with (tmp_path / "x.json").open("wb") as file:
        file.truncate(1 << 40)  # a hole: it takes no space on disk
    with pytest.raises(UnreadableFileError, match="it has 1,099,511,627,776 bytes; at most 100 are read"):
        read_regular(tmp_path / "x.json", 100)
    with pytest.raises(UnreadableFileError, match="at most 16,777,216 are read"):
        read_json_object(tmp_path / "x.json")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "it is not JSON"),
        (b"\xff\xfe", r"it is not UTF-8 text \(byte 0\)"),
        (b'{"a":' * 100_000, "it is nested too deeply"),
        (b"[" * 100_000, "it is nested too deeply"),
        (b'{"a": NaN}', "NaN is not a finite number"),
        (b'{"a": -Infinity}', "-Infinity is not a finite number"),
        (b'{"a": 1e400}', "the number 1e400 is too large"),
        (b'{"a": ' + b"9" * 5000 + b"}", "4300 digits"),
        (b"[1]", "it holds a list, not an object"),
        (b"null", "it holds a NoneType, not an object"),
    ],
)
def test_broken_json_is_refused_with_one_line(data: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(data)
    with pytest.raises(UnreadableFileError, match=rf"x\.json cannot be read: .*{words}") as error:
        read_json_object(tmp_path / "x.json")
    assert "\n" not in str(error.value)


def test_numbers_that_are_not_finite_are_read_on_request() -> None:
    assert parse_json('{"a": 1e400}', "plan.json", finite=False) == {"a": float("inf")}


def test_counts_and_numbers_are_told_from_lookalikes() -> None:
    assert is_count(0)
    assert is_count(2**63 - 1)
    assert not any(map(is_count, (-1, 2**63, 1.0, True, "1", None, [1])))
    assert is_finite_number(-1.5)
    assert is_finite_number(10**300)
    assert not any(map(is_finite_number, (10**400, float("nan"), float("-inf"), True, "1", None)))
