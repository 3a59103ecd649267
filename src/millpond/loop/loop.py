"""The loop that all trainers drive, and the hooks that run at the ends of its levels."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, SupportsFloat

from millpond.loop.levels import Address, Levels, LoopError, NonFiniteError, Size
from millpond.loop.moments import Moments
from millpond.loop.stopping import TimeLimit
from millpond.loop.window import BadValue, Window, merge_into


class LevelEnd:
    """An item of a level that has just ended: where it was, and the moments of everything recorded in it."""

    def __init__(
        self, level: str, address: Address, number: int, last: bool, read: Callable[[], dict[str, Moments]]
    ) -> None:
        self.level = level
        self.address = address
        self.number = number  # how many items of the level ended before this one, in the whole run
        self.last = last  # whether its parent ended with it
        self._read = read
        self._moments: dict[str, Moments] | None = None

    @property
    def moments(self) -> dict[str, Moments]:
        """By name. At the innermost level this reads tensors from their device; above it they have been read."""
        if self._moments is None:
            self._moments = self._read()
        return self._moments

    def means(self, prefix: str = "") -> dict[str, float]:
        """The exact mean of every name that was observed."""
        return {prefix + name: moments.mean for name, moments in self.moments.items() if moments.count}


@dataclass(frozen=True)
class Hook:
    """A function and its rhythm: every so many items, at given items, or both."""

    action: Callable[[LevelEnd], object]
    every: int | None
    at: Collection[int] | Literal["last"]

    def due(self, number: int, last: bool) -> bool:
        """Items are counted over the whole run, so `every=100` on batches does not start again with each parent."""
        if self.every is not None and (number + 1) % self.every == 0:
            return True
        return last if self.at == "last" else number in self.at

    @staticmethod
    def make(
        action: Callable[[LevelEnd], object], every: int | None, at: Collection[int] | Literal["last"] | None
    ) -> Hook:
        if every is None and at is None:
            every = 1
        if every is not None and every < 1:
            raise LoopError(f"every={every!r}: a hook runs every 1 or more items")
        if isinstance(at, str) and at != "last":
            raise LoopError(f'at={at!r}: give item numbers counted from 0, or "last"')
        return Hook(action, every, () if at is None else at)


# Values wait at most this many steps to be read, where the parent of the innermost level is longer than that.
READ_AFTER_STEPS = 1000


@dataclass(frozen=True)
class Redraw:
    """How to draw an offending batch again.

    `snapshot()` gives the sampler's state; it is asked each time recorded values have been read and found finite.
    `draw(state, skip)` draws the batch that came `skip` steps after that state. `save` writes it and says where.
    """

    snapshot: Callable[[], Any]
    draw: Callable[[Any, int], Mapping[str, Any]]
    save: Callable[[Address, Mapping[str, Any]], Path]


class Loop:
    """Nested levels, declared once, outermost first: `Loop(epoch=10, cycle=100, iteration=100, batch=50)`.

        for at in loop.run():                  # one turn is one step of the innermost level
            loss = update(draw())
            loop.record("R_loss", loss, weight=len(batch))

    When a step is finished: the values are read if the parent of the innermost level ends with it, the hooks of
    every level that ends run, inner to outer, the position moves on, and then a requested save is written. So a saved
    state is always one between two steps. All indices count from 0.

    A step whose body is left by `break` or an exception has not happened: it is not counted, what it recorded is
    dropped, and `run` takes it up again.
    """

    def __init__(self, **levels: Size) -> None:
        self._levels = Levels(levels)
        self._open: list[dict[str, Moments]] = [{} for _ in levels]  # [0]: the whole run; [d]: the item at depth d - 1
        self._window = Window()
        self._hooks: dict[str, list[Hook]] = {name: [] for name in levels}
        self._plain_steps = True  # no hooks on the innermost level
        self._boundary = len(levels) - 1
        self._save: Callable[[], object] | None = None
        self._save_requested = False
        self._saved_after: int | None = None
        self._save_seconds = 0.0  # of the last save
        self._clock: Callable[[], float] = time.monotonic
        self._redraw: Redraw | None = None
        self._sampler: tuple[int, Any] = (0, None)  # the innermost index at the last snapshot, and the snapshot
        self._phase: Literal["between steps", "body", "hooks"] = "between steps"
        self._stop_requested: str | None = None
        self._agree: Callable[[str | None], str | None] | None = None
        self.stopped: str | None = None  # why the last `run` ended before its time, if it did

    # -- where we are

    @property
    def names(self) -> tuple[str, ...]:
        return self._levels.names

    @property
    def address(self) -> Address:
        """The address of the current step; between steps, of the next."""
        return self._levels.address()

    @property
    def sizes(self) -> dict[str, int | None]:
        """How many items each level has within its current parent; None where that is open."""
        return dict(zip(self.names, self._levels.sizes, strict=True))

    @property
    def totals(self) -> dict[str, int]:
        """How many items of each level have ended, over the whole run."""
        return dict(zip(self.names, self._levels.totals, strict=True))

    @property
    def count(self) -> int:
        """How many steps of the innermost level have been finished."""
        return self._levels.totals[-1]

    @property
    def done(self) -> bool:
        return self._levels.done

    @property
    def moments(self) -> dict[str, Moments]:
        """The moments of the whole run up to the last reading."""
        whole: dict[str, Moments] = {}
        for part in self._open:
            merge_into(whole, part)
        return whole

    def describe(self) -> str:
        """The levels and their product: "epoch 10 x cycle 100 x iteration 100 x batch 50 = 5,000,000"."""
        steps = self._levels.steps_in_all
        shown = " x ".join(f"{name} {'open' if size is None else f'{size:,}'}" for name, size in self.sizes.items())
        return f"{shown} = {steps:,}" if steps is not None else shown

    # -- declarations

    def at_end(
        self,
        level: str,
        action: Callable[[LevelEnd], object],
        *,
        every: int | None = None,
        at: Collection[int] | Literal["last"] | None = None,
    ) -> None:
        """Run `action` when an item of `level` ends: after every so many, and at the items with the given numbers.

        Items are numbered from 0 over the whole run. `at="last"` means the last item of its parent; of the outermost
        level, the end of training. Without either, the action runs at each item's end.
        """
        self._levels.depth(level)
        self._hooks[level].append(Hook.make(action, every, at))
        self._plain_steps = not self._hooks[self.names[-1]]

    def on_save(self, save: Callable[[], object]) -> None:
        """How to write a checkpoint. Called for a requested save, at a stop and at the end of training."""
        self._save = save

    def on_non_finite(self, redraw: Redraw) -> None:
        """How to draw and keep the batch behind a value that is nan or infinite."""
        self._redraw = redraw

    def resumable_at(self, level: str) -> None:
        """Let stops and saves wait for the end of an item of `level`. Without this, any step will do."""
        self._boundary = self._levels.depth(level)

    def agree_on_stops(self, agree: Callable[[str | None], str | None]) -> None:
        """Let several processes with equal loops stop together.

        Wherever a stop may happen, `agree` is given this process's reason to stop, or None, and returns the one of all.
        """
        self._agree = agree

    # -- for the body

    def record(self, name: str, value: SupportsFloat, weight: SupportsFloat = 1.0) -> None:
        """Record a number, or a tensor of one element that stays on its device until the parent level ends.

        The weight is what the value is a mean over, say the rows of a batch; with it every level's mean is the mean
        over all rows. Weight 0 is no observation. A value that is not finite ends the run, whatever its weight.
        """
        if self._phase != "body":
            raise LoopError(f"record({name!r}) outside of a step: values belong to the body of `for at in loop.run()`")
        if not self._window.add(name, value, weight, self._levels.indices[-1]):
            self._read_window()

    def end(self, level: str) -> None:
        """Say that the current item of an open-ended level is the last of its parent."""
        self._levels.call_last(level)

    def request_save(self) -> None:
        """Ask for a checkpoint. It is written after this step, when all hooks have run."""
        self._save_requested = True

    def stop(self, reason: str) -> None:
        """Ask the loop to finish the current step, save and return. Safe in a signal handler."""
        self._stop_requested = reason

    # -- running

    def run(
        self,
        until: int | Mapping[str, int] | Callable[[], bool] | None = None,
        *,
        max_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> Iterator[Address]:
        """The steps from here to the end, or a portion of them.

        `until` is a number of steps in all, a mapping like {"cycle": 3} (until so many cycles have ended in all), or
        a predicate asked before each step. Ending a portion saves nothing: the loop stays as it is and `run` goes on.
        `max_seconds` is the time this call may take by `clock`, its last save included: where the loop may stop, it does
        so as `stop` would if what comes before the next such place is likely to take longer than what is left.
        """
        reached = self._target(until)
        self._clock = clock
        limit = None if max_seconds is None else TimeLimit(max_seconds, clock)
        self.stopped = None
        self._window.drop(self._levels.indices[-1])
        self._levels.ask_again()
        self._take_snapshot()
        self._save_or_stop()  # a signal may have come before the first step
        while not (self.done or self.stopped or reached()):
            self._phase = "body"
            try:
                yield Address(self._levels.names, tuple(self._levels.indices))
            finally:
                self._phase = "between steps"
            if not (self._plain_steps and self._levels.advance_within(READ_AFTER_STEPS)):
                self._finish_step()
            timed = limit if self._may_stop and not self.done else None
            if timed and timed.item_ended(self._save_seconds * (2 if self._save_requested else 1)):
                self.stop("max_seconds")
            if self._save_requested or self._stop_requested or self.done or self._agree:
                self._save_or_stop()
            if timed:
                timed.item_begins()

    @property
    def _may_stop(self) -> bool:
        """True between two items of the level that stops and saves wait for."""
        return not any(self._levels.indices[self._boundary + 1 :])

    def save(self) -> None:
        """Write a checkpoint now. An earlier value that was not finite is found first, and raises."""
        self._read_window()
        self._take_snapshot()
        self._save_requested = False
        if self._save is not None:
            began = self._clock()
            self._save()
            self._save_seconds = self._clock() - began
            self._saved_after = self.count

    def _finish_step(self) -> None:
        outermost, over = self._levels.ending()
        innermost, step = len(self.names) - 1, self._levels.indices[-1]
        recorded = Window() if self._plain_steps else self._window.at(step)
        read = outermost < innermost or over or (step + 1) % READ_AFTER_STEPS == 0
        if read:
            self._read_window()
        self._phase = "hooks"
        try:
            for depth in range(innermost, outermost - 1, -1):
                self._end_item(depth, depth > outermost or over, recorded)
        finally:
            self._phase = "between steps"
        self._levels.advance(outermost, over)
        if read:
            self._take_snapshot()

    def _end_item(self, depth: int, last: bool, recorded: Window) -> None:
        level, number = self.names[depth], self._levels.totals[depth]
        innermost = depth == len(self.names) - 1
        moments = {} if innermost else self._open[depth + 1]
        hooks = [hook for hook in self._hooks[level] if hook.due(number, last)]
        if hooks:
            read = (lambda: self._checked(recorded.take)) if innermost else lambda: moments
            ended = LevelEnd(level, self._levels.address(depth), number, last, read)
            for hook in hooks:
                hook.action(ended)
        if not innermost:
            merge_into(self._open[depth], moments)
            self._open[depth + 1] = {}

    def _save_or_stop(self) -> None:
        if not self._may_stop:
            return
        wanted, self._stop_requested = self._stop_requested, None
        self.stopped = self._agree(wanted) if self._agree else wanted
        ending = (self.stopped is not None or self.done) and self._saved_after != self.count
        if self._save_requested or ending:
            self.save()

    def _target(self, until: int | Mapping[str, int] | Callable[[], bool] | None) -> Callable[[], bool]:
        if callable(until):
            return until
        if until is None:
            return lambda: False
        wanted = {self.names[-1]: until} if isinstance(until, int) else until
        depths = {self._levels.depth(level): number for level, number in wanted.items()}
        return lambda: all(self._levels.totals[depth] >= number for depth, number in depths.items())

    # -- reading what was recorded

    def _read_window(self) -> None:
        merge_into(self._open[-1], self._checked(self._window.take))

    def _checked(self, read: Callable[[], dict[str, Moments]]) -> dict[str, Moments]:
        try:
            return read()
        except BadValue as found:
            bad = found
        names, indices = self.names, tuple(self._levels.indices)
        address = Address(names, (*indices[:-1], bad.step))
        error = NonFiniteError(address, bad.name, bad.value)
        if self._redraw is not None:
            since, state = self._sampler
            try:
                path = self._redraw.save(address, self._redraw.draw(state, bad.step - since))
            except Exception as failure:
                raise error from failure  # the nan is the news; that its batch could not be kept is the footnote
            error = NonFiniteError(address, bad.name, bad.value, path)
        raise error

    def _take_snapshot(self) -> None:
        if self._redraw is not None:
            self._sampler = (self._levels.indices[-1], self._redraw.snapshot())

    # -- state

    def state_dict(self) -> dict[str, Any]:
        """Position and open moments, as plain values. To be asked between steps, which is when `on_save` is called."""
        if self._phase != "between steps":
            raise LoopError(f"a loop has no state to save in its {self._phase}: call request_save() there")
        self._read_window()
        moments = [{name: part.state_dict() for name, part in level.items()} for level in self._open]
        return {**self._levels.state_dict(), "moments": moments}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a saved state. What was recorded since is forgotten; hooks and sizes are this loop's own."""
        self._levels.load_state_dict(state)
        self._open = [{name: Moments.from_state(part) for name, part in level.items()} for level in state["moments"]]
        self._window = Window()
        self._saved_after = self.count
