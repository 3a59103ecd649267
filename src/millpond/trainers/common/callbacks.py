"""Callbacks: functions and objects of the user that are called while a run trains.

    on_start       before the first step, also of a resumed run
    on_iteration   before each record is written: a PPO iteration, a portion of a mixture, a cycle of reward learning
    on_evaluation  after an evaluation, before the record that has its metrics
    on_checkpoint  after a checkpoint was written
    on_end         after the last step, if the run has finished or was stopped

A plain function is called as `on_iteration`. With several ranks, callbacks are called on rank 0; what they request happens on
all ranks. Whatever a callback raises stops the run with a checkpoint, and is raised again after that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from millpond.distributed import Ranks
from millpond.errors import MillpondError
from millpond.loop import Loop
from millpond.record import COUNTERS, Counters
from millpond.store import Run
from millpond.trainers.common.policy import LoadedPolicy

EventName = Literal["start", "iteration", "evaluation", "checkpoint", "end"]
EVENTS: tuple[EventName, ...] = ("start", "iteration", "evaluation", "checkpoint", "end")
RECORDING = ("iteration", "evaluation")


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
        number = float(value)
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
    return checked


def _handlers(callback: Any) -> dict[str, Callable[[Event], object]]:
    found = {name: getattr(callback, f"on_{name}", None) for name in EVENTS}
    return {name: handler for name, handler in found.items() if callable(handler)}


class Callbacks:
    """The callbacks of one run, as its trainer calls them. Without any, nothing is done."""

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
        self._recorded: dict[str, float] = {}  # for the next record
        self._policy: LoadedPolicy | None = None
        self._failed = False  # on any rank
        self._failure: Exception | None = None  # what was raised, on rank 0
        handled = [name for name, handlers in self._handlers.items() if handlers]
        if not ranks.alone and len({tuple(names) for names in ranks.all_gather(handled)}) > 1:
            raise MillpondError("the ranks have different callbacks; pass the same on all of them")

    def start(self) -> None:
        self._call("start")

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
        event = Event(name, self._run, self._counters.as_dict(), **facts, _make_policy=self._current_policy)
        for handler in self._handlers[name]:
            try:
                handler(event)
            except Exception as error:
                called = getattr(handler, "__qualname__", type(handler).__qualname__)
                error.add_note(f"raised by the callback {called}, on_{name}; the run is saved in {self._run.shown}")
                self._failure = error
                event._requests["failed"] = True
                event.stop(f"the callback {called} raised {type(error).__name__}: {error}")
                break
        self._recorded |= event._recorded
        return event._requests

    def _current_policy(self) -> LoadedPolicy | None:
        if self._policy is None:
            self._policy = self._make_policy()
        if self._policy is not None:
            self._policy.updates = self._counters.updates
        return self._policy
