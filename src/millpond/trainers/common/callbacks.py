"""Callbacks: functions and objects of the user that are called while a run trains.

    on_start       before the first step, also of a resumed run
    on_iteration   before each record is written: a PPO iteration, a portion of a mixture, a cycle of reward learning
    on_evaluation  after an evaluation, before the record that has its metrics
    on_checkpoint  after a checkpoint was written
    on_end         after the last step, if the run has finished or was stopped

A plain function is called as `on_iteration`. With several ranks, callbacks are called on rank 0; what they request happens on
all ranks. Whatever a callback raises stops the run with a checkpoint, and is raised again after that.

A callback with `state_dict` and `load_state_dict` is saved with the run: its state is part of every checkpoint, and is loaded
before `on_start` when the run is resumed. It consists of plain values, arrays and tensors, like all state in a checkpoint.
"""

from __future__ import annotations

import difflib
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from millpond.distributed import Ranks
from millpond.errors import MillpondError
from millpond.loop import Loop
from millpond.record import COUNTERS, Counters
from millpond.store import CheckpointError, Run, Stateful
from millpond.store.checkpoint import tree_to_bytes
from millpond.trainers.common.policy import LoadedPolicy

EventName = Literal["start", "iteration", "evaluation", "checkpoint", "end"]
EVENTS: tuple[EventName, ...] = ("start", "iteration", "evaluation", "checkpoint", "end")
RECORDING = ("iteration", "evaluation")
STATE_METHODS = ("state_dict", "load_state_dict")


@dataclass
class Event:
    """What a callback gets: the state of the run, and ways to take part in it.

    `counters`    updates, agent_steps, env_steps, frames, episodes, seconds
    `metrics`     the metrics of this iteration or evaluation; empty for other events
    `run`         the run: `run.folder`, `run.config`, `run.metrics()`
    `evaluation`  the result, in `on_evaluation`: `evaluation.mean`, `evaluation.returns`
    `checkpoint`  the folder that was written, in `on_checkpoint`
    `finished`    True in `on_end` if the run has reached its end; `stopped` is the reason if it has not
    """

    name: EventName
    run: Run
    counters: Mapping[str, float]
    metrics: Mapping[str, float] = field(default_factory=dict)
    evaluation: Any = None
    checkpoint: Path | None = None
    finished: bool = False
    stopped: str | None = None
    _make_policy: Callable[[], LoadedPolicy | None] = field(default=lambda: None, repr=False)
    _recorded: dict[str, float] = field(default_factory=dict, repr=False)
    _requests: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def policy(self) -> LoadedPolicy | None:
        """The policy as it is now, to act with; None if the run has no agent. Acting with it does not change the run."""
        return self._make_policy()

    def record(self, name: str, value: float) -> None:
        """Add a metric to this iteration's record: to `metrics.jsonl`, TensorBoard, the report and `run.metrics()`."""
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise MillpondError(f"record({name!r}): a name is printable text, such as 'watch/speed'")
        try:
            number = float(value)
        except (TypeError, ValueError, RuntimeError) as error:  # torch raises the last of a tensor of several numbers
            raise MillpondError(f"record({name!r}, {value!r:.60}): a record holds numbers") from error
        if self.name not in RECORDING:
            raise MillpondError(f"record({name!r}) is for on_iteration and on_evaluation, not for on_{self.name}")
        if name in COUNTERS or name in self.metrics:
            raise MillpondError(f"record({name!r}): the run records {name!r} itself; choose another name")
        if not math.isfinite(number):
            raise MillpondError(f"record({name!r}, {number}): a record holds finite numbers")
        self._recorded[name] = number

    def save(self) -> None:
        """Request a checkpoint as soon as the run can be saved: at the end of this iteration."""
        self._requests["save"] = True

    def stop(self, reason: str = "a callback") -> None:
        """Request that the run stops with a checkpoint, from which it can be resumed."""
        self._requests["stop"] = str(reason)


def as_callbacks(callbacks: Any) -> tuple[Any, ...]:
    """Return callbacks as a tuple: one, or several. Anything that is none is refused."""
    several = isinstance(callbacks, Iterable) and not _handlers(callbacks)
    checked = tuple(callbacks) if several else () if callbacks is None else (callbacks,)
    for callback in checked:
        if isinstance(callback, type):
            raise MillpondError(f"callback {callback.__name__} is a class; pass an object of it: {callback.__name__}()")
        if not _handlers(callback) and not callable(callback):
            methods = ", ".join(f"on_{name}" for name in EVENTS)
            raise MillpondError(
                f"callback {callback!r:.80} is neither a function nor an object with one of the methods {methods}"
            )
        _refuse_near_misses(callback)
        has = [name for name in STATE_METHODS if callable(getattr(callback, name, None))]
        if len(has) == 1:
            missing = next(name for name in STATE_METHODS if name not in has)
            raise MillpondError(
                f"callback {type(callback).__name__} has {has[0]} but no {missing}; its state is saved with the run, and "
                f"restored when it is resumed, if it has both"
            )
    return checked


def _stateful(callbacks: Iterable[Any]) -> dict[str, Stateful]:
    """Return the callbacks with state by the names of their classes; the second of a class is `NAME 2`."""
    seen: Counter[str] = Counter()
    named: dict[str, Stateful] = {}
    for callback in callbacks:
        if callable(getattr(callback, STATE_METHODS[0], None)):
            name = type(callback).__name__
            seen[name] += 1
            named[name if seen[name] == 1 else f"{name} {seen[name]}"] = callback
    return named


def _refuse_near_misses(callback: Any) -> None:
    """Refuse a method whose name is nearly that of an event, since it would never be called."""
    known = {f"on_{name}" for name in EVENTS}
    for name in dir(callback):
        near = difflib.get_close_matches(name, known - set(dir(callback)), n=1, cutoff=0.85)
        if name.startswith("on_") and name not in known and near:
            raise MillpondError(
                f"callback {type(callback).__name__} has a method {name}, which is never called; did you mean {near[0]}?"
            )


def _handlers(callback: Any) -> dict[str, Callable[[Event], object]]:
    found = {name: getattr(callback, f"on_{name}", None) for name in EVENTS}
    return {name: handler for name, handler in found.items() if callable(handler)}


class Callbacks:
    """The callbacks of one run, as its trainer calls them. Without any, nothing is done.

    Its own state is that of the callbacks that have one, on rank 0, by name.
    """

    def __init__(
        self,
        callbacks: tuple[Any, ...],
        run: Run,
        loop: Loop,
        counters: Counters,
        ranks: Ranks,
        make_policy: Callable[[], LoadedPolicy | None],
    ) -> None:
        self._run, self._loop, self._counters, self._ranks = run, loop, counters, ranks
        self._make_policy = make_policy
        self._handlers: dict[str, list[Callable[[Event], object]]] = {name: [] for name in EVENTS}
        for callback in callbacks:
            for name, handler in (_handlers(callback) or {"iteration": callback}).items():
                self._handlers[name].append(handler)
        self._stateful = _stateful(callbacks) if ranks.first else {}
        self._unclaimed: dict[str, Any] = {}  # states of callbacks that a resumed run was not passed
        self._recorded: dict[str, float] = {}  # for the next record
        self._policy: LoadedPolicy | None = None
        self._failed = False  # on any rank
        self._failure: Exception | None = None  # what was raised, on rank 0
        handled = [name for name, handlers in self._handlers.items() if handlers]
        if not ranks.alone and len({tuple(names) for names in ranks.all_gather(handled)}) > 1:
            raise MillpondError("the ranks have different callbacks; pass the same on all of them")

    def start(self) -> None:
        """Call `on_start`. A state that no checkpoint can hold ends the run now, not at the first save."""
        self._call("start")
        self.state_dict()

    def state_dict(self) -> dict[str, Any]:
        """Return the states of callbacks by name; those that were not passed to this resumed run are kept.

        One that raises is left out, and ends the run: the checkpoint is written with everything else.
        """
        states = dict(self._unclaimed)
        for name, callback in self._stateful.items():
            try:
                states[name] = callback.state_dict()
                tree_to_bytes(states[name], f"the state of the callback {name}: state_dict()")
            except Exception as error:
                states.pop(name, None)
                if self._failure is None:
                    self._fail(error, f"{name}.state_dict", "this state is not in the newest checkpoint")
        return states

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the callbacks by name, and warn about states and callbacks without a counterpart."""
        self._unclaimed = {name: value for name, value in state.items() if name not in self._stateful}
        for name, callback in self._stateful.items():
            if name in state:
                try:
                    callback.load_state_dict(state[name])
                except Exception as error:
                    raise CheckpointError(
                        f"the state of the callback {name} does not fit: load_state_dict raised {type(error).__name__}: {error}"
                    ) from error
            else:
                _warn(f"the callback {name} has no state in the checkpoint; it starts as it was passed")
        for name in self._unclaimed if self._ranks.first else ():
            _warn(
                f"the checkpoint has the state of a callback {name}, which was not passed; it stays in the checkpoints"
            )

    def iteration(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics of a record, with those that callbacks have recorded."""
        if self._handlers["iteration"]:
            self._call("iteration", metrics=metrics)
        recorded, self._recorded = self._recorded, {}
        return {**metrics, **recorded}

    def evaluation(self, evaluation: Any) -> None:
        """Call `on_evaluation` with a result that has `metrics()`; ranks without one pass None."""
        if self._handlers["evaluation"]:
            self._call(
                "evaluation", metrics=evaluation.metrics() if evaluation is not None else {}, evaluation=evaluation
            )

    def checkpoint(self, path: Path) -> None:
        self._call("checkpoint", checkpoint=path)

    def end(self) -> None:
        """Call `on_end`, unless a callback has raised something before: that is raised now."""
        self._call("end", finished=self._loop.done, stopped=self._loop.stopped)
        if self._failure is not None:
            raise self._failure

    def _call(self, name: EventName, **facts: Any) -> None:
        if not self._handlers[name] or self._failed:
            return
        requests = self._ranks.run_on_first(lambda: self._handle(name, facts))
        self._failed = requests.get("failed", False)
        if requests.get("save") and name != "checkpoint":  # it has just been written
            self._loop.request_save()
        if "stop" in requests:
            self._loop.stop(requests["stop"])

    def _handle(self, name: EventName, facts: dict[str, Any]) -> dict[str, Any]:
        if self._failure is not None:
            return {"failed": True}
        event = Event(name, self._run, self._counters.as_dict(), **facts, _make_policy=self._current_policy)
        for handler in self._handlers[name]:
            try:
                handler(event)
            except Exception as error:
                called = getattr(handler, "__qualname__", type(handler).__qualname__)
                self._fail(error, f"{called}, on_{name}", f"the run is saved in {self._run.shown}")
                event._requests["failed"] = True
                break
        self._recorded |= event._recorded
        return event._requests

    def _fail(self, error: Exception, called: str, then: str) -> None:
        """End the run after this step, on all ranks; the error is raised again then."""
        error.add_note(f"raised by the callback {called}; {then}")
        self._failure = error
        self._loop.stop(f"the callback {called} raised {type(error).__name__}: {error}")

    def _current_policy(self) -> LoadedPolicy | None:
        if self._policy is None:
            self._policy = self._make_policy()
        if self._policy is not None:
            self._policy.updates = self._counters.updates
        return self._policy


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=3)
