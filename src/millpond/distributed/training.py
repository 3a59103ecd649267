"""The frame around the training loop of several ranks: they stop together, and a lost one is told of."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from millpond.distributed.ranks import RankLostError, Ranks
from millpond.loop import Loop
from millpond.plurals import plural
from millpond.record import Recorder
from millpond.store import Checkpoints, Run, training

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class NoRecorder:
    """The recorder of every rank but the first: that one writes for all."""

    def write(self, metrics: Mapping[str, float]) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@contextmanager
def training_over_ranks(ranks: Ranks, run: Run, loop: Loop, recorder: Recorder | NoRecorder) -> Iterator[None]:
    """Like `training`, which it is for one rank. Rank 0 keeps the run's state; the others write nothing.

    A signal to any rank stops all of them at the end of the same iteration. When a rank dies, torchrun sends SIGTERM to
    the others: that, or a collective that fails, ends the run with an error that says how to go on.
    """
    if ranks.alone:
        assert isinstance(recorder, Recorder)
        with training(run, loop, recorder):
            yield
        return
    loop.agree_on_stops(lambda reason: next((said for said in ranks.share(reason) if said), None))
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
        # Signals stay ignored from here on: torchrun's SIGTERM must not end the rank that has something to say.
        _install(dict.fromkeys(SIGNALS, signal.SIG_IGN))
        raise RankLostError(f"{error}. {_how_to_go_on(run)}", quiet=error.quiet) from error
    _install(before)


def _how_to_go_on(run: Run) -> str:
    saved = Checkpoints(run.checkpoints_path).updates()
    newest = f"The newest checkpoint is after {plural(saved[-1], 'update')}" if saved else "There is no checkpoint yet"
    return f"{newest}; resume with: {run.resume_command}"


def _unless_lost(ranks: Ranks, handle: Any) -> Callable[[int, FrameType | None], None]:
    """A handler that first looks whether a rank has died: without it no step can be finished."""

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
    """Set handlers, and return those before. Only the main thread may."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.signal(number, handler) for number, handler in handlers.items()}
