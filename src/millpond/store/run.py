"""A run: start and resume it, keep its state while it trains, and read its config, metrics, checkpoints and policy."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millpond.durable import HAS_FLOCK, FileLock, replace_json, sync_folder, write_file
from millpond.formatting import printable
from millpond.kinds import LOAD_POLICY
from millpond.loop import Address, Loop, stop_on_signals
from millpond.record import Recorder, read_records
from millpond.safe_read import is_count, read_json_object, require_regular
from millpond.store.checkpoint import Checkpoint, ResumeError, RunError
from millpond.store.checkpoints import CheckpointInfo, Checkpoints, list_checkpoints
from millpond.store.folder import (
    CONFIG,
    CREATING,
    HOST,
    METRICS,
    PLAN,
    VECTOR,
    WARNINGS,
    already_exists,
    clear_leftovers,
    find_run,
    lock_folder,
    refuse_running,
    release_to_rename,
    remove_run,
    remove_tree,
)
from millpond.store.host import host_facts
from millpond.store.non_finite import save_batch
from millpond.store.status import SETTING_UP, STATE_FILE, died_in_setup, read_status, write_status

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    from millpond.config import Recipe
    from millpond.kinds import LoadedPolicy

WEIGHTS_FROM = "weights_from"  # in host.json
MAX_RANKS = 1 << 20


class Run:
    """A run folder and its contents. Created by `start` and `resume`; `open` only reads.

    From Python, `millpond.train` and `millpond.resume` return it: see `metrics`, `config`, `best`, `policy` and `folder`.

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
        self.videos_path = folder / "videos"  # of evaluations, with log.videos
        self.checkpoints_path = folder / "checkpoints"
        self.report_path = folder / "report.html"
        self.starts_again = False  # resumed, but it had ended before it saved
        self.writes_report = True  # when its training ends
        self.updates: int | None = None  # of the checkpoint that others read; None is the newest
        self.passed = ""  # arguments of `millpond.resume`, if it was trained with objects that cannot be imported
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
                f"{name!r} is not a valid run name; use a to z, A to Z, digits, '.', '_' and '-', a letter or digit first"
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
            raise already_exists(run.shown)
        temporary = root / f"{CREATING}{name}"
        temporary.mkdir(exist_ok=True)
        lock = lock_folder(temporary, name, "started again")
        try:
            clear_leftovers(root, name)
            if folder.exists():
                remove_run(folder)
            write_file(temporary / CONFIG, config_yaml.encode())
            write_file(temporary / PLAN, json.dumps(dict(plan), indent=2).encode() + b"\n")
            host = {"run_id": uuid.uuid4().hex[:12], **host_facts(), "resumes": [], **start_weights}
            write_file(temporary / HOST, json.dumps(host, indent=2).encode() + b"\n")
            (temporary / "checkpoints").mkdir()
            write_status(temporary, "running", SETTING_UP)
            release_to_rename(lock)
            try:
                os.rename(temporary, folder)
            except FileExistsError:
                raise already_exists(run.shown) from None
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
                raise already_exists(run.shown) from None
            sync_folder(root)
            if not HAS_FLOCK:
                lock = lock_folder(folder, name, "started again", wait=True)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            lock.release()
            raise
        run._lock = lock
        return run

    @staticmethod
    def open(root: str | Path, run: str | Path) -> Run:
        """Open a run to read from, by its name or folder: `Run.open("runs", "ball")`."""
        return Run(find_run(Path(root), str(run)), resumed=False)

    @staticmethod
    def resume(root: Path, run: str) -> Run:
        """Open a run to continue it. A run that is running, or whose checkpoints were written and are gone, is an error."""
        opened = Run(find_run(root, run), resumed=True)
        folder = opened.folder
        for name in (STATE_FILE, METRICS):  # they are written to: a link could lead to any file of the user
            if os.path.lexists(folder / name):
                require_regular(folder / name, f"move it away, and run {folder.name!r} is resumed without it")
        host = opened._host()
        lock = lock_folder(folder, folder.name, "resumed")
        try:
            refuse_running(folder, "resumed", lock.previous)
            opened.starts_again = not Checkpoints(opened.checkpoints_path).any_written()
            host["resumes"].append(host_facts())
            replace_json(folder / HOST, host)
            write_status(folder, "running")
        except BaseException:
            lock.release()
            raise
        opened._lock = lock
        return opened

    def __repr__(self) -> str:
        """Show the folder, and how the run stands: <Run runs/ball: finished, 1,024 updates>."""
        written = Checkpoints(self.checkpoints_path).updates()
        saved = f", {written[-1]:,} updates" if written else ""
        return f"<Run {self.shown}: {read_status(self.folder).state}{saved}>"

    def close(self) -> None:
        """Release the lock of the folder: from now on, another process may train this run."""
        if self._lock is not None:
            self._lock.release()

    def abandon(self, error: BaseException) -> None:
        """Abandon a run that failed before it trained. The folder of a new run is removed, so that its name is free.

        A resumed run keeps everything, and its state says why it could not continue.
        """
        if not self.resumed:
            remove_tree(self.folder, self._lock)
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
        """Command that continues this run; in Python, if it needs objects that were passed there."""
        if self.passed:
            return f"millpond.resume({self.reference!r}, {self.passed})"
        return f"{self.launcher}millpond train --resume {self.reference}"

    @property
    def reference(self) -> str:
        """Argument that names this run in commands: its name if it is in the default folder, else its path."""
        return self.name if self.shown.parent == Path("runs") else str(self.shown)

    @property
    def config(self) -> Recipe:
        """The typed config of this run, with all defaults."""
        from millpond.config import load

        return load(self.config_path).recipe

    @property
    def best(self) -> CheckpointInfo | None:
        """The checkpoint with the best evaluation, with its `updates`, `score` and `path`; None if none was evaluated."""
        return next((one for one in list_checkpoints(self.checkpoints_path)[0] if one.best), None)

    def metrics(self) -> dict[str, npt.NDArray[np.float64]]:
        """Return every metric and counter as an array with one entry per record, NaN where a record does not have it.

        `metrics()["episode_return"]` over `metrics()["agent_steps"]` is the learning curve.
        """
        import numpy as np

        records = list(read_records(self.metrics_path))
        names = dict.fromkeys(name for record in records for name in record)
        return {name: np.array([record.get(name, np.nan) for record in records], np.float64) for name in names}

    def policy(self, *, best: bool = False, device: str = "cpu", trust: bool | None = None) -> LoadedPolicy:
        """Load the policy of the newest checkpoint, or of the best; as `millpond.load(run)`."""
        return LOAD_POLICY.load()(self, best=best, device=device, trust=trust)

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
