"""The folder of a run on disk: its files, finding it, its lock, and removing it."""

from __future__ import annotations

import os
import shutil
import socket
import time
from pathlib import Path

from millpond.durable import HAS_FLOCK, FileLock, LockHeld, LockHolder
from millpond.store.checkpoint import RunError
from millpond.store.status import STATE_FILE, read_status

CONFIG, PLAN, HOST, LOCK, METRICS = "config.yaml", "plan.json", "host.json", "lock", "metrics.jsonl"
WARNINGS = "warnings.jsonl"
VECTOR = "vector.json"
CREATING, REMOVING = ".creating-", ".removing-"


def find_run(root: Path, run: str) -> Path:
    """Return the folder of a run, by its name or path."""
    for folder in (root / run, Path(run)):
        if is_run(folder):
            return folder
    names = sorted(path.name for path in root.iterdir() if is_run(path)) if root.is_dir() else []
    existing = f"existing runs: {', '.join(names)}" if names else "there are no runs yet"
    raise RunError(f"there is no run {run!r} in {root}, and no run folder of that path; {existing}")


def is_run(folder: Path) -> bool:
    """True for a run folder. Its files may be broken, which is an error when they are read."""
    return all(os.path.lexists(folder / name) for name in (CONFIG, HOST)) and not folder.name.startswith(".")


def already_exists(folder: Path) -> RunError:
    return RunError(
        f"{folder} already exists. Continue it: --resume {folder.name}. Keep it and start another: --run NAME. "
        f"Delete it and start again: --overwrite"
    )


def lock_folder(folder: Path, name: str, verb: str, *, wait: bool = False) -> FileLock:
    """Take the lock of a run folder; if another process holds it, the error names that process."""
    if (folder / LOCK).is_symlink():  # it is written to: the link could lead to any file of the user
        raise RunError(f"run {name!r} cannot be {verb}: {folder / LOCK} is a symbolic link; delete it")
    try:
        return FileLock(folder / LOCK, wait=wait)
    except LockHeld as held:
        raise _running(name, verb, held.holder) from None
    except OSError as error:
        raise RunError(
            f"run {name!r} cannot be {verb}: {folder / LOCK} cannot be locked ({error.strerror or error}); "
            f"a run needs a folder that can be written, on a file system with locks"
        ) from error


def _running(name: str, verb: str, holder: LockHolder | None, hint: str = "") -> RunError:
    this = holder is not None and (holder.pid, holder.host) == (os.getpid(), socket.gethostname())
    hint = ("that is this process: call close() on its Run" if this else "stop it first, or wait for its end") + hint
    who = f"process {holder.pid}" if holder else "in a process that is unknown"
    if holder and holder.host:
        who += f" on {holder.host}"
    if holder and holder.since:
        who += f", since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(holder.since))}"
    return RunError(f"run {name!r} is running ({who}) and cannot be {verb}; {hint}")


def refuse_running(folder: Path, verb: str, previous: LockHolder | None) -> None:
    """Refuse a run whose state names a process that may be alive, although the lock is free.

    The process may be one of Millpond 0.2 or before, which took no lock, or on a machine whose locks do not reach here.
    `previous` is the last holder of the lock. A process of this machine that held it and no longer does has ended, also
    one in another container, which cannot be seen from here.
    """
    status = read_status(folder)
    process = status.process
    if status.state != "running":
        return
    if (
        process.same_boot
        and not process.here
        and previous
        and (previous.pid, previous.host) == (process.pid, process.host)
    ):
        return
    hint = "" if process.here else f"; if you know that it has ended, delete {folder / STATE_FILE}"
    raise _running(folder.name, verb, LockHolder(process.pid, process.host, status.since), hint)


def remove_run(folder: Path) -> None:
    if not is_run(folder):
        raise RunError(f"{folder} is not a run folder ({CONFIG} or {HOST} is missing), so it is not overwritten")
    lock = lock_folder(folder, folder.name, "overwritten")
    try:
        refuse_running(folder, "overwritten", lock.previous)
        remove_tree(folder, lock)
    finally:
        lock.release()


def remove_tree(folder: Path, lock: FileLock | None) -> None:
    """Remove a folder; its name is free at once, even if the process dies while files are deleted."""
    removed = folder.with_name(f"{REMOVING}{folder.name}")
    release_to_rename(lock)
    os.rename(folder, removed)
    shutil.rmtree(removed)


def release_to_rename(lock: FileLock | None) -> None:
    """Release a lock where a folder with open files cannot be renamed, as on Windows: another holder prevents it, too."""
    if lock is not None and not HAS_FLOCK:
        lock.release()


def clear_leftovers(root: Path, name: str) -> None:
    """Remove the leftovers of a process that died while it created or removed a run of this name."""
    for path in (root / f"{CREATING}{name}").iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif not path.name.startswith(LOCK):
            path.unlink()
    if (root / f"{REMOVING}{name}").exists():
        shutil.rmtree(root / f"{REMOVING}{name}")
