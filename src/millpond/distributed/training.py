"""Context of the training loop of several ranks: they stop together, and a lost rank is reported."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from millpond.distributed.ranks import RankLostError, Ranks
from millpond.formatting import plural
from millpond.loop import Loop
from millpond.record import Recorder
from millpond.store import Checkpoints, Run, training

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class NoRecorder:
    """Recorder of every rank except the first, which writes for all."""

    def write(self, metrics: Mapping[str, float]) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@contextmanager
def training_over_ranks(ranks: Ranks, run: Run, loop: Loop, recorder: Recorder | NoRecorder) -> Iterator[None]:
    """Do the same as `store.training`, for several ranks. Rank 0 writes the state of the run; the others write nothing.

    A signal to any rank stops all of them at the end of the same iteration. When a rank dies, torchrun sends SIGTERM to
    the others: that, or a failed collective, ends the run with an error that says how to resume.
    """
    if ranks.alone:
        assert isinstance(recorder, Recorder)
        with training(run, loop, recorder):
            yield
        return
    loop.agree_on_stops(lambda reason: next((other for other in ranks.all_gather(reason) if other), None))
    before = _install(dict.fromkeys(SIGNALS, signal.SIG_IGN))
    try:
        if isinstance(recorder, Recorder):
            with training(run, loop, recorder):
                _install({number: _unless_lost(ranks, signal.getsignal(number)) for number in SIGNALS})
                yield
        else:
            _install({number: _unless_lost(ranks, _stop(loop)) for number in SIGNALS})
            yield
            _install(dict.fromkeys(SIGNALS, signal.SIG_IGN))
    except RankLostError as error:
        # Signals stay ignored from here on: torchrun's SIGTERM must not end the rank that reports the error.
        _install(dict.fromkeys(SIGNALS, signal.SIG_IGN))
        raise RankLostError(f"{error}. {_resume_hint(run)}", quiet=error.quiet) from error
    _install(before)


def _resume_hint(run: Run) -> str:
    saved = Checkpoints(run.checkpoints_path).updates()
    newest = f"The newest checkpoint is after {plural(saved[-1], 'update')}" if saved else "There is no checkpoint yet"
    return f"{newest}; resume with: {run.resume_command}"


def _unless_lost(ranks: Ranks, handle: Any) -> Callable[[int, FrameType | None], None]:
    """Return a handler that first checks if a rank has died: then no step can be finished."""

    def handler(number: int, frame: FrameType | None) -> None:
        if ranks.peers.losing:
            return
        if ranks.peers.gone():
            raise ranks.peers.lost(signal.Signals(number).name)
        handle(number, frame)

    return handler


def _stop(loop: Loop) -> Callable[[int, FrameType | None], None]:
    return lambda number, frame: loop.stop(signal.Signals(number).name)


def _install(handlers: dict[signal.Signals, Any]) -> dict[signal.Signals, Any]:
    """Set signal handlers and return the previous ones. Only possible in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.signal(number, handler) for number, handler in handlers.items()}
