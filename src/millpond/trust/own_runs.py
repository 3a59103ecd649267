"""Recognise the runs that this user started or resumed here, without trusting anything that a stranger could write.

A run whose config names code has a file `seal`: an HMAC of the run's id and of that code, with its arguments, under a
random key that is made once and kept in the user's state folder, readable by the user alone. So a run can be moved and
copied, lengths in its config can be edited, and any number of runs can start at once; but a config that names other code
does not fit its seal, and nobody else can make one. Without a key (no home folder, or one that cannot be written) no run
is recognised.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path

from millpond.config.code import NamedCode
from millpond.durable import replace_file

SEAL, KEY = "seal", "key"
KEY_BYTES = 32
LARGEST_SEAL = 200  # bytes; a seal has 65


def state_folder() -> Path:
    """Return Millpond's folder in the user's state. Raises RuntimeError if the user has no home folder.

    A relative XDG_STATE_HOME is ignored: it would be looked up in the working directory, which may be a stranger's.
    """
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (state if state.is_absolute() else Path.home() / ".local" / "state") / "millpond"


def is_own_run(folder: Path, code: Iterable[NamedCode]) -> bool:
    """True if the run was started or resumed here by this user, and its config still names the same code."""
    key, run_id = _read_key(), _run_id(folder)
    path = folder / SEAL
    if key is None or run_id is None or not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            seal = file.read(LARGEST_SEAL).strip()
    except OSError:
        return False
    return hmac.compare_digest(seal, _seal(key, run_id, code))


def mark_as_own(folder: Path, code: Iterable[NamedCode]) -> None:
    """Make the run one that this user has started. Where that cannot be written, the user is asked again next time."""
    code = tuple(code)
    run_id = _run_id(folder)
    if not code or run_id is None:
        return
    with contextlib.suppress(OSError, RuntimeError):
        key = _read_key() or _make_key()
        if key is not None:
            replace_file(folder / SEAL, _seal(key, run_id, code) + b"\n")


def _seal(key: bytes, run_id: str, code: Iterable[NamedCode]) -> bytes:
    named = sorted((one.key, one.value, json.dumps(one.arguments, sort_keys=True, default=str)) for one in code)
    message = json.dumps(["millpond run", run_id, named])
    return hmac.new(key, message.encode(), hashlib.sha256).hexdigest().encode()


def _run_id(folder: Path) -> str | None:
    path = folder / "host.json"
    try:
        run_id = json.loads(path.read_text(encoding="utf-8"))["run_id"] if path.is_file() else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return run_id if isinstance(run_id, str) else None


def _read_key() -> bytes | None:
    """Return the user's key; None if there is none, or if anyone else could have read or written it."""
    try:
        path = state_folder() / KEY
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            key = file.read(KEY_BYTES + 1)
    except (OSError, RuntimeError):
        return None
    if hasattr(os, "geteuid") and (status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077):
        return None
    return key if len(key) == KEY_BYTES else None


def _make_key() -> bytes | None:
    """Make the key, complete from its first moment; if another process made one meanwhile, return that."""
    folder = state_folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = folder / f".{KEY}.{os.getpid()}.{secrets.token_hex(4)}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, folder / KEY)
    finally:
        temporary.unlink()
    return _read_key()
