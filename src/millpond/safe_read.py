"""Read files that a stranger may have written: regular files of a bounded size, and JSON that cannot crash its reader.

A folder from elsewhere may hold a pipe that blocks forever, a link to a device without end or to a private file, a file of
many gigabytes, or JSON that is nested too deeply. All of these are errors with one line that names the file.
"""

from __future__ import annotations

import json
import math
import os
import stat
from pathlib import Path
from typing import Any

from millpond.durable import read_file
from millpond.errors import MillpondError

JSON_BYTES = 1 << 24  # limit for files of a run folder, which have a few kilobytes


class UnreadableFileError(MillpondError):
    """A file is missing, is not a regular file, is too large, or has other content than it should have."""

    one_line = True


def require_regular(path: Path, fix: str = "", *, follow_links: bool = False) -> os.stat_result:
    """Refuse anything but a regular file: folders, pipes, devices, and links unless they are followed."""
    try:
        status = path.stat() if follow_links else path.lstat()
    except (OSError, ValueError) as error:
        raise _unreadable(path, _reason(error), fix) from None
    if not stat.S_ISREG(status.st_mode):
        raise _unreadable(path, f"it is {_kind(status.st_mode)}, not a regular file", fix)
    return status


def read_regular(path: Path, limit: int | None = None, fix: str = "", *, follow_links: bool = False) -> bytes:
    """Read a regular file of at most `limit` bytes. An error names the file and the `fix`."""
    require_regular(path, fix, follow_links=follow_links)
    try:
        return read_file(path.resolve() if follow_links else path, limit)
    except (OSError, MemoryError) as error:
        raise _unreadable(path, _reason(error), fix) from None


def parse_json(data: bytes | str, name: object, fix: str = "", *, finite: bool = True) -> Any:
    """Parse JSON; `name` is its source, for errors. With `finite`, NaN, Infinity and numbers such as 1e400 are refused."""
    try:
        text = data if isinstance(data, str) else data.decode("utf-8")
        if not finite:
            return json.loads(text)
        return json.loads(text, parse_float=_finite_float, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        reason = f"it is not UTF-8 text (byte {error.start:,})"
    except json.JSONDecodeError as error:
        reason = f"it is not JSON (line {error.lineno}, column {error.colno}: {error.msg})"
    except RecursionError:
        reason = "it is nested too deeply"
    except ValueError as error:  # a number that is not finite, or with thousands of digits
        reason = str(error)
    raise _unreadable(name, reason, fix)


def parse_json_object(data: bytes | str, name: object, fix: str = "", *, finite: bool = True) -> dict[str, Any]:
    """Parse JSON that must be an object."""
    value = parse_json(data, name, fix, finite=finite)
    if not isinstance(value, dict):
        raise _unreadable(name, f"it holds a {type(value).__name__}, not an object", fix)
    return value


def read_json_object(path: Path, fix: str = "", *, finite: bool = True) -> dict[str, Any]:
    """Read a file with one JSON object."""
    return parse_json_object(read_regular(path, JSON_BYTES, fix), path, fix, finite=finite)


def is_count(value: object, limit: int = 1 << 63) -> bool:
    """True for a whole number from 0 to below `limit`; JSON's true and false are none."""
    return type(value) is int and 0 <= value < limit


def is_finite_number(value: object) -> bool:
    """True for an int or float that a float can hold, neither NaN nor infinite."""
    if type(value) not in (int, float):
        return False
    try:
        return math.isfinite(value)  # type: ignore[arg-type]
    except OverflowError:  # an int beyond the largest float
        return False


def _finite_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:20]} is too large")
    return value


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a finite number")


def _kind(mode: int) -> str:
    for test, kind in (
        (stat.S_ISLNK, "a symbolic link"),
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISSOCK, "a socket"),
    ):
        if test(mode):
            return kind
    return "a device"


def _reason(error: BaseException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _unreadable(name: object, reason: str, fix: str) -> UnreadableFileError:
    return UnreadableFileError(f"{name} cannot be read: {reason}" + (f"; {fix}" if fix else ""))
