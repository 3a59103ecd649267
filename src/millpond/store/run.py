"""The run folder: start, resume and find runs, keep their state while they train, and record the host they run on."""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millpond.cpu import memory_bytes, usable_cores
from millpond.durable import HAS_FLOCK, FileLock, LockHeld, LockHolder, replace_json, sync_folder, write_file
from millpond.formatting import printable
from millpond.loop import Address, Loop, stop_on_signals
from millpond.processor import cpu_name
from millpond.record import Recorder
from millpond.safe_read import is_count, read_json_object, require_regular
from millpond.store.checkpoint import Checkpoint, ResumeError, RunError
from millpond.store.checkpoints import Checkpoints
from millpond.store.non_finite import save_batch
from millpond.store.status import SETTING_UP, STATE_FILE, died_in_setup, read_status, write_status

if TYPE_CHECKING:
    import torch

CONFIG, PLAN, HOST, LOCK, METRICS = "config.yaml", "plan.json", "host.json", "lock", "metrics.jsonl"
WARNINGS = "warnings.jsonl"
WEIGHTS_FROM = "weights_from"  # in host.json
VECTOR = "vector.json"
MAX_RANKS = 1 << 20
CREATING, REMOVING = ".creating-", ".removing-"
PACKAGES = ("torch", "numpy", "numba", "pydantic", "gymnasium", "h5py", "lz4", "safetensors", "tensorboard")
EXTRAS = ("ale-py", "mettagrid", "minatar", "pettingzoo", "wandb")


class Run:
    """A run folder and its contents. Created by `start` and `resume`; `open` only reads.

    `folder` is absolute, so that an env that changes the working directory does not move the run. `cwd` is the directory
    that a relative path starts from; None is the working directory. `shown` is the path as it was passed, for messages.

    A run that was started or resumed holds the lock of its folder until `close` or the end of the process, so that no
    other process trains it.
    """

    def __init__(self, folder: Path, *, resumed: bool, cwd: Path | None = None) -> None:
        self._lock: FileLock | None = None
        self.shown = folder
        self.folder = folder = (cwd or Path.cwd()) / folder
        self.name = folder.name
        self.resumed = resumed
        self.config_path = folder / CONFIG
        self.plan_path = folder / PLAN
        self.host_path = folder / HOST
        self.vector_path = folder / VECTOR  # what `vector.backend=auto` chose
        self.metrics_path = folder / METRICS
        self.warnings_path = folder / WARNINGS
        self.tensorboard_path = folder / "tensorboard"
        self.checkpoints_path = folder / "checkpoints"
        self.report_path = folder / "report.html"
        self.starts_again = False  # resumed, but it had ended before it saved
        self.updates: int | None = None  # of the checkpoint that others read; None is the newest
        self.launcher = ""  # prefix of `millpond` in a command that starts as many ranks

    @staticmethod
    def start(
        root: Path,
        name: str,
        *,
        config_yaml: str,
        plan: Mapping[str, Any],
        overwrite: bool = False,
        cwd: Path | None = None,
        weights_from: Run | None = None,
    ) -> Run:
        """Create the folder of a new run atomically. An existing one is an error unless it may be overwritten.

        The run is being set up until its training starts; see `abandon`. `weights_from` is recorded, so that the run starts
        from the same weights again if it ends before it saves.
        """
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise RunError(
                f"{name!r} is not a valid run name; use letters, digits, '.', '_' and '-', a letter or digit first"
            )
        run = Run(root / name, resumed=False, cwd=cwd)
        folder, root = run.folder, run.folder.parent
        start_weights = {}
        if weights_from is not None:
            if weights_from.folder == folder:
                raise RunError(f"run {name!r} cannot start with its own weights; start another: --run NAME")
            updates = weights_from.checkpoint().updates
            start_weights = {WEIGHTS_FROM: {"folder": str(weights_from.folder), "updates": updates}}
        root.mkdir(parents=True, exist_ok=True)
        if folder.exists() and not overwrite and not died_in_setup(folder):
            raise _already_exists(run.shown)
        temporary = root / f"{CREATING}{name}"
        temporary.mkdir(exist_ok=True)
        lock = _lock(temporary, name, "started again")
        try:
            _clear_leftovers(root, name)
            if folder.exists():
                _remove(folder)
            write_file(temporary / CONFIG, config_yaml.encode())
            write_file(temporary / PLAN, json.dumps(dict(plan), indent=2).encode() + b"\n")
            host = {"run_id": uuid.uuid4().hex[:12], **host_facts(), "resumes": [], **start_weights}
            write_file(temporary / HOST, json.dumps(host, indent=2).encode() + b"\n")
            (temporary / "checkpoints").mkdir()
            write_status(temporary, "running", SETTING_UP)
            _release_to_rename(lock)
            try:
                os.rename(temporary, folder)
            except FileExistsError:
                raise _already_exists(run.shown) from None
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
                raise _already_exists(run.shown) from None
            sync_folder(root)
            if not HAS_FLOCK:
                lock = _lock(folder, name, "started again", wait=True)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            lock.release()
            raise
        run._lock = lock
        return run

    @staticmethod
    def open(root: Path, run: str) -> Run:
        """Open a run to read from, by its name or folder."""
        return Run(find_run(root, run), resumed=False)

    @staticmethod
    def resume(root: Path, run: str) -> Run:
        """Open a run to continue it. A run that is running, or whose checkpoints were written and are gone, is an error."""
        opened = Run(find_run(root, run), resumed=True)
        folder = opened.folder
        for name in (STATE_FILE, METRICS):  # they are written to: a link could lead to any file of the user
            if os.path.lexists(folder / name):
                require_regular(folder / name, f"move it away, and run {folder.name!r} is resumed without it")
        host = opened._host()
        lock = _lock(folder, folder.name, "resumed")
        try:
            _refuse_running(folder, "resumed", lock.previous)
            opened.starts_again = not Checkpoints(opened.checkpoints_path).any_written()
            host["resumes"].append(host_facts())
            replace_json(folder / HOST, host)
            write_status(folder, "running")
        except BaseException:
            lock.release()
            raise
        opened._lock = lock
        return opened

    def close(self) -> None:
        """Release the lock of the folder: from now on, another process may train this run."""
        if self._lock is not None:
            self._lock.release()

    def abandon(self, error: BaseException) -> None:
        """Abandon a run that failed before it trained. The folder of a new run is removed, so that its name is free.

        A resumed run keeps everything, and its state says why it could not continue.
        """
        if not self.resumed:
            _remove_tree(self.folder, self._lock)
        elif isinstance(error, KeyboardInterrupt):
            write_status(self.folder, "stopped", "interrupted before it continued")
        else:
            write_status(self.folder, "failed", f"could not be resumed: {type(error).__name__}: {error}")
        self.close()

    @property
    def run_id(self) -> str:
        """Id that is unique to this run and stays the same over its resumes."""
        return str(self._host()["run_id"])

    def _host(self) -> dict[str, Any]:
        """Read host.json, and check the fields that a resume needs."""
        fix = f"restore it from a copy, or start another run with the weights of this one: --from {self.reference}"
        host = read_json_object(self.host_path, fix)
        for field, kind in (("run_id", str), ("resumes", list)):
            if not isinstance(host.get(field), kind):
                raise RunError(f"{self.host_path} has {field}={host.get(field)!r}, expected a {kind.__name__}; {fix}")
        return host

    def weights_source(self) -> Run | None:
        """Return the run whose weights this one was started with, at the checkpoint of that time; None without one."""
        recorded = self._host().get(WEIGHTS_FROM)
        if recorded is None:
            return None
        fix = f"start the run again, with --overwrite and --from RUN; or remove {WEIGHTS_FROM!r} from {self.host_path}"
        try:
            source, updates = Run(Path(recorded["folder"]), resumed=False), recorded["updates"]
        except (TypeError, KeyError) as error:
            raise RunError(f"{self.host_path} has {WEIGHTS_FROM}={recorded!r:.200}, which is no run; {fix}") from error
        if not is_count(updates) or updates not in Checkpoints(source.checkpoints_path).updates():
            raise RunError(
                f"run {self.name!r} was started with the weights of {source.folder} after {updates!r:.20} updates, and that "
                f"checkpoint is gone; {fix}"
            )
        source.updates = updates
        return source

    def ranks(self) -> int:
        """Return the number of ranks that train this run, from plan.json; 1 without that file."""
        if not os.path.lexists(self.plan_path):
            return 1
        fix = f"a run of one rank needs no {PLAN}: delete it and resume"
        ranks = read_json_object(self.plan_path, fix, finite=False).get("ranks", 1)
        if not is_count(ranks, MAX_RANKS) or not ranks:
            raise RunError(f"{self.plan_path} has ranks={ranks!r}, expected a number of processes; {fix}")
        return int(ranks)

    def read_vector(self) -> dict[str, Any] | None:
        """Return what `vector.backend=auto` chose, from vector.json; None without that file."""
        if not os.path.lexists(self.vector_path):
            return None
        return read_json_object(self.vector_path, "restore it from a copy")

    @property
    def resume_command(self) -> str:
        """Command that continues this run."""
        return f"{self.launcher}millpond train --resume {self.reference}"

    @property
    def reference(self) -> str:
        """Argument that names this run in commands: its name if it is in the default folder, else its path."""
        return self.name if self.shown.parent == Path("runs") else str(self.shown)

    def save_batch(self, address: Address, batch: Mapping[str, Any]) -> Path:
        """Save the batch of a value that was not finite: `non_finite/batch.safetensors`."""
        return save_batch(self.folder, batch, str(address))

    def weights(self, *, best: bool = False) -> dict[str, dict[str, torch.Tensor]]:
        """Return the weights of the newest checkpoint, or of the best, by part."""
        return {part: dict(tensors) for part, tensors in self.checkpoint(best=best).weights.items()}

    def checkpoint(self, *, best: bool = False) -> Checkpoint:
        """Read the newest checkpoint that is not damaged, or the best; that of `self.updates`, if it is set."""
        checkpoints = Checkpoints(self.checkpoints_path)
        if self.updates is not None:
            return checkpoints.load(self.updates)
        checkpoint, damaged = (checkpoints.best(), []) if best else checkpoints.find()
        if checkpoint is None:
            names = ", ".join(path.name for path in damaged)
            raise RunError(
                f"run {self.name!r} has no {'best' if best else 'usable'} checkpoint in {self.checkpoints_path}"
                + (f"; damaged: {names}. Restore one from a copy" if damaged else "")
            )
        return checkpoint


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


def _already_exists(folder: Path) -> RunError:
    return RunError(
        f"{folder} already exists. Continue it: --resume {folder.name}. Keep it and start another: --run NAME. "
        f"Delete it and start again: --overwrite"
    )


def _lock(folder: Path, name: str, verb: str, *, wait: bool = False) -> FileLock:
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


def _refuse_running(folder: Path, verb: str, previous: LockHolder | None) -> None:
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


def _remove(folder: Path) -> None:
    if not is_run(folder):
        raise RunError(f"{folder} is not a run folder ({CONFIG} or {HOST} is missing), so it is not overwritten")
    lock = _lock(folder, folder.name, "overwritten")
    try:
        _refuse_running(folder, "overwritten", lock.previous)
        _remove_tree(folder, lock)
    finally:
        lock.release()


def _remove_tree(folder: Path, lock: FileLock | None) -> None:
    """Remove a folder; its name is free at once, even if the process dies while files are deleted."""
    removed = folder.with_name(f"{REMOVING}{folder.name}")
    _release_to_rename(lock)
    os.rename(folder, removed)
    shutil.rmtree(removed)


def _release_to_rename(lock: FileLock | None) -> None:
    """Release a lock where a folder with open files cannot be renamed, as on Windows: another holder prevents it, too."""
    if lock is not None and not HAS_FLOCK:
        lock.release()


def _clear_leftovers(root: Path, name: str) -> None:
    """Remove the leftovers of a process that died while it created or removed a run of this name."""
    for path in (root / f"{CREATING}{name}").iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif not path.name.startswith(LOCK):
            path.unlink()
    if (root / f"{REMOVING}{name}").exists():
        shutil.rmtree(root / f"{REMOVING}{name}")


@contextmanager
def training(
    run: Run, loop: Loop, recorder: Recorder, signals: Sequence[signal.Signals] | None = None
) -> Iterator[None]:
    """Within this context the run is `running`, and SIGINT, SIGTERM and SIGHUP (or `signals`) stop it after the step.

    Afterwards it is `finished`, `stopped` (with a printed command that resumes it) or `failed`.
    """
    write_status(run.folder, "running")
    try:
        with closing(recorder), stop_on_signals(loop, signals):
            recorder.begin()
            yield
    except KeyboardInterrupt:
        write_status(
            run.folder, "stopped", "interrupted within a step; everything after the last checkpoint will be repeated"
        )
        raise
    except BaseException as error:
        write_status(run.folder, "failed", f"{type(error).__name__}: {error}")
        raise
    if loop.done:
        write_status(run.folder, "finished")
    else:
        reason = loop.stopped or "the requested steps are done"
        write_status(run.folder, "stopped", reason)
        text = f"stopped ({reason}) before {loop.address}; resume with: {run.resume_command}"
        print(printable(text), flush=True)


_ABSENT = object()


def check_changes(
    old: Mapping[str, Any], new: Mapping[str, Any], may_change: Collection[str] | Callable[[str], bool]
) -> dict[str, tuple[Any, Any]]:
    """Return the flat settings that differ between a run and its resume, as (before, after).

    Raises `ResumeError` with all settings that may not change.
    """
    allowed = may_change if callable(may_change) else may_change.__contains__
    changes = {
        key: (old.get(key, _ABSENT), new.get(key, _ABSENT))
        for key in sorted({*old, *new})
        if old.get(key, _ABSENT) != new.get(key, _ABSENT)
    }
    refused = [
        f"{key}: {_show(before)} -> {_show(after)}" for key, (before, after) in changes.items() if not allowed(key)
    ]
    if refused:
        examples = f" (such as {', '.join(sorted(may_change)[:6])})" if not callable(may_change) and may_change else ""
        raise ResumeError(
            "a resumed run keeps the settings it started with; these may not change:\n  "
            + "\n  ".join(refused)
            + f"\nOnly lengths and logging{examples} may change. For other settings start a new run; --from keeps the "
            "weights."
        )
    return {key: (_plain(before), _plain(after)) for key, (before, after) in changes.items()}


def _show(value: Any) -> str:
    return "absent" if value is _ABSENT else repr(value)


def _plain(value: Any) -> Any:
    return None if value is _ABSENT else value


def host_facts() -> dict[str, Any]:
    """Return versions, cores, devices, the commit if the source is a git checkout, and the command line."""
    return {
        "command": sys.argv,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "processor": cpu_name(),
        "cores": os.cpu_count(),
        "cores_allowed": usable_cores(),
        "memory_bytes": memory_bytes(),
        "python": platform.python_version(),
        "versions": _versions(),
        "git": git_commit(Path(__file__).parent),
        **_torch_facts(),
    }


def git_commit(folder: Path) -> dict[str, Any] | None:
    """Return the commit of a folder, and True if files differ from it; None outside of a checkout, or without git."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        # A folder that git ignores, such as a virtual environment inside another project, is not part of that project.
        tracked = git("ls-files", "--", str(folder))
        return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain"))} if tracked else None
    except (OSError, subprocess.SubprocessError):
        return None


def _versions() -> dict[str, str]:
    versions = {}
    for name in ("millpond", *PACKAGES, *EXTRAS):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _torch_facts() -> dict[str, Any]:
    import torch

    cuda = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {"devices": ["cpu", *cuda], "torch_threads": torch.get_num_threads()}
