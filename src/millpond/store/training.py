"""The frame around a training loop: signals, the run's state, and how to go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from millpond.loop import Loop, stop_on_signals
from millpond.record import Recorder
from millpond.store.run import Run
from millpond.store.status import write_status


@contextmanager
def training(run: Run, loop: Loop, recorder: Recorder) -> Iterator[None]:
    """Within this context the run is `running` and SIGINT and SIGTERM stop it after the step.

    Afterwards it is `finished`, `stopped` (with a line that says how to resume) or `failed`.
    """
    write_status(run.folder, "running")
    try:
        with closing(recorder), stop_on_signals(loop):
            recorder.begin()
            yield
    except KeyboardInterrupt:
        write_status(
            run.folder, "stopped", "interrupted within a step; what came after the last checkpoint is repeated"
        )
        raise
    except BaseException as error:
        write_status(run.folder, "failed", f"{type(error).__name__}: {error}")
        raise
    if loop.done:
        write_status(run.folder, "finished")
    else:
        reason = loop.stopped or "the portion asked for is done"
        write_status(run.folder, "stopped", reason)
        print(f"stopped ({reason}) before {loop.address}; resume with: {run.resume_command}", flush=True)
