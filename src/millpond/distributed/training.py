"""Training over several ranks: they stop together, a lost rank is reported, and rank 0 writes one checkpoint for all."""

from __future__ import annotations

import hashlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

from millpond.distributed.ranks import RankError, RankLostError, Ranks, launcher
from millpond.formatting import plural
from millpond.loop import Loop, stop_signals
from millpond.record import Recorder
from millpond.store import Checkpoint, Checkpoints, Parts, ResumeError, Run, Stateful, training
from millpond.store.checkpoint import tree_from_bytes, tree_to_bytes

KEY = "of_ranks"


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
    signals = stop_signals()  # before they are ignored here
    before = _install(dict.fromkeys(signals, signal.SIG_IGN))
    try:
        if isinstance(recorder, Recorder):
            with training(run, loop, recorder, signals):
                _install({number: _unless_lost(ranks, signal.getsignal(number)) for number in signals})
                yield
        else:
            _install({number: _unless_lost(ranks, _stop(loop)) for number in signals})
            yield
            _install(dict.fromkeys(signals, signal.SIG_IGN))
    except RankLostError as error:
        # Signals stay ignored from here on: torchrun's SIGTERM must not end the rank that reports the error.
        _install(dict.fromkeys(signals, signal.SIG_IGN))
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


class PerRank:
    """Part of a checkpoint that differs between ranks: all states are saved, and each rank restores its own."""

    def __init__(self, ranks: Ranks, owner: Stateful) -> None:
        self._ranks, self._owner = ranks, owner

    def state_dict(self) -> Any:
        if self._ranks.alone:
            return self._owner.state_dict()
        return {KEY: self._ranks.gather(tree_to_bytes(self._owner.state_dict()))}

    def load_state_dict(self, state: Any) -> None:
        saved = len(state[KEY]) if isinstance(state, dict) and KEY in state else 1
        require_ranks(saved, self._ranks.count, "this checkpoint")
        self._owner.load_state_dict(
            state if self._ranks.alone else tree_from_bytes(state[KEY][self._ranks.rank], f"rank {self._ranks.rank}")
        )


def require_ranks(saved: int, here: int, what: str, run: str = "RUN") -> None:
    """Raise `ResumeError` if the number of ranks has changed."""
    if saved != here:
        raise ResumeError(
            f"{what} was written by {plural(saved, 'rank')}, and this run has {plural(here, 'rank')}: "
            f"envs, rows and generators belong to a rank, so the number of ranks cannot change. "
            f"Resume with: {launcher(saved)}millpond train --resume {run}. "
            f"To use {plural(here, 'rank')}, start a new run with its weights: "
            f"{launcher(here)}millpond train RECIPE --from {run}"
        )


def save_over_ranks(ranks: Ranks, checkpoints: Checkpoints, updates: int, parts: Parts, score: float | None) -> None:
    """Write a checkpoint on rank 0 with the parts of all ranks, after checking that their weights are equal."""
    if not ranks.alone:
        _require_same_weights(ranks, parts)
    if ranks.first:
        checkpoints.save(updates, parts, score)
    else:
        parts.collect(updates)  # takes part in the gathering of rank 0


def restore_over_ranks(ranks: Ranks, checkpoints: Checkpoints, parts: Parts) -> bool:
    """Restore the newest undamaged checkpoint, which only rank 0 reads; return False if there is none."""
    if ranks.alone:
        return checkpoints.restore(parts)
    if not ranks.run_on_first(lambda: checkpoints.restore(parts)):
        return False
    data = b""
    if ranks.first:
        checkpoint = checkpoints.load(checkpoints.updates()[-1])
        weights = {part: dict(tensors) for part, tensors in checkpoint.weights.items()}
        data = tree_to_bytes([checkpoint.updates, weights, dict(checkpoint.state), dict(checkpoint.values)])
    data = ranks.broadcast(data)
    if not ranks.first:
        parts.restore(Checkpoint(*tree_from_bytes(data, "the checkpoint from rank 0")))
    return True


def _require_same_weights(ranks: Ranks, parts: Parts) -> None:
    """Raise `RankError` if weights differ between ranks: all take the same steps, so a difference is a bug."""
    import torch

    digest = hashlib.sha256()
    for part in parts.weights.values():
        for name, tensor in part.state_dict().items():
            digest.update(name.encode() + tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    digests = ranks.all_gather(digest.hexdigest())
    others = [rank for rank, other in enumerate(digests) if other != digests[0]]
    if others:
        raise RankError(
            f"the weights of rank {', '.join(map(str, others))} differ from those of rank 0, so the ranks have diverged; "
            f"no checkpoint is written. A custom policy must compute the same on every rank"
        )
