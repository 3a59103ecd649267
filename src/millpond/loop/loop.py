"""The loop that all trainers drive, and the hooks that run at the ends of its levels."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, SupportsFloat

from millpond.loop.levels import Address, Levels, LoopError, NonFiniteError, Size
from millpond.loop.statistics import BadValue, Moments, Window, merge_into
from millpond.loop.stopping import TimeLimit


class LevelEnd:
    """An item of a level that has just ended: its address, and the moments of everything recorded in it."""

    def __init__(
        self, level: str, address: Address, number: int, last: bool, read: Callable[[], dict[str, Moments]]
    ) -> None:
        self.level = level
        self.address = address
        self.number = number  # number of items of the level that ended before this one, in the whole run
        self.last = last  # True if its parent ended with it
        self._read = read
        self._moments: dict[str, Moments] | None = None

    @property
    def moments(self) -> dict[str, Moments]:
        """Moments by name. At the innermost level this reads tensors from their device; above, they have been read."""
        if self._moments is None:
            self._moments = self._read()
        return self._moments

    def means(self, prefix: str = "") -> dict[str, float]:
        """Return the exact mean of every recorded name."""
        return {prefix + name: moments.mean for name, moments in self.moments.items() if moments.count}


@dataclass(frozen=True)
class Hook:
    """A function and its schedule: every so many items, at given items, or both."""

    action: Callable[[LevelEnd], object]
    every: int | None
    at: Collection[int] | Literal["last"]

    def due(self, number: int, last: bool) -> bool:
        """Return True if the hook runs at this item.

        Items are counted over the whole run, so the count of `every=100` on batches does not restart with each parent.
        """
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
            raise LoopError(f"every={every!r} is not valid; a hook runs every 1 or more items")
        if isinstance(at, str) and at != "last":
            raise LoopError(f'at={at!r} is not valid; pass item numbers counted from 0, or "last"')
        return Hook(action, every, () if at is None else at)


# Recorded values are read after at most this many steps, if the parent of the innermost level is longer than that.
READ_AFTER_STEPS = 1000


@dataclass(frozen=True)
class Redraw:
    """Functions that draw the batch of a non-finite value again.

    `snapshot()` returns the sampler's state; it is called each time recorded values have been read and were finite.
    `draw(state, skip)` draws the batch that came `skip` steps after that state. `save` writes it and returns its path.
    """

    snapshot: Callable[[], Any]
    draw: Callable[[Any, int], Mapping[str, Any]]
    save: Callable[[Address, Mapping[str, Any]], Path]


class Loop:
    """Nested levels, declared once, outermost first: `Loop(epoch=10, cycle=100, iteration=100, batch=50)`.

        for at in loop.run():                  # each iteration is one step of the innermost level
            loss = update(draw())
            loop.record("R_loss", loss, weight=len(batch))

    At the end of a step: recorded values are read if the parent of the innermost level ends with it, the hooks of every
    level that ends run, inner to outer, the position advances, and then a requested save is written. So a saved state is
    always one between two steps. All indices count from 0.

    A step whose body is left by `break` or an exception did not happen: it is not counted, its recorded values are
    dropped, and `run` repeats it.
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
        self.stopped: str | None = None  # why the last `run` ended early, if it did

    # -- position

    @property
    def names(self) -> tuple[str, ...]:
        return self._levels.names

    @property
    def address(self) -> Address:
        """The address of the current step; between steps, of the next."""
        return self._levels.address()

    @property
    def sizes(self) -> dict[str, int | None]:
        """Number of items of each level within its current parent; None if that is open."""
        return dict(zip(self.names, self._levels.sizes, strict=True))

    @property
    def totals(self) -> dict[str, int]:
        """Number of items of each level that have ended, over the whole run."""
        return dict(zip(self.names, self._levels.totals, strict=True))

    @property
    def count(self) -> int:
        """Number of finished steps of the innermost level."""
        return self._levels.totals[-1]

    @property
    def done(self) -> bool:
        return self._levels.done

    @property
    def moments(self) -> dict[str, Moments]:
        """Moments of the whole run up to the last reading."""
        whole: dict[str, Moments] = {}
        for part in self._open:
            merge_into(whole, part)
        return whole

    def describe(self) -> str:
        """Return the levels and their product: "epoch 10 x cycle 100 x iteration 100 x batch 50 = 5,000,000"."""
        steps = self._levels.total_steps
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
        """Set the function that writes a checkpoint: after a requested save, at a stop and at the end of training."""
        self._save = save

    def on_non_finite(self, redraw: Redraw) -> None:
        """Set the functions that draw and save the batch of a value that is nan or infinite."""
        self._redraw = redraw

    def resumable_at(self, level: str) -> None:
        """Let stops and saves wait for the end of an item of `level`, instead of any step."""
        self._boundary = self._levels.depth(level)

    def agree_on_stops(self, agree: Callable[[str | None], str | None]) -> None:
        """Let several processes with equal loops stop together.

        Wherever a stop may happen, `agree` is called with this process's reason to stop, or None, and returns the common
        one.
        """
        self._agree = agree

    # -- for the body

    def record(self, name: str, value: SupportsFloat, weight: SupportsFloat = 1.0) -> None:
        """Record a number, or a tensor of one element that stays on its device until the parent level ends.

        The weight is the number of things that the value is a mean over, such as the rows of a batch; with it every
        level's mean is the mean over all rows. A value with weight 0 is not counted. A value that is not finite ends the
        run, whatever its weight.
        """
        if self._phase != "body":
            raise LoopError(
                f"record({name!r}) was called outside of a step; call it in the body of `for at in loop.run()`"
            )
        if not self._window.add(name, value, weight, self._levels.indices[-1]):
            self._read_window()

    def end(self, level: str) -> None:
        """Declare that the current item of an open level is the last of its parent."""
        self._levels.mark_last(level)

    def request_save(self) -> None:
        """Request a checkpoint. It is written after this step, when all hooks have run."""
        self._save_requested = True

    def stop(self, reason: str) -> None:
        """Request that the loop finishes the current step, saves and returns. Safe in a signal handler."""
        self._stop_requested = reason

    # -- running

    def run(
        self,
        until: int | Mapping[str, int] | Callable[[], bool] | None = None,
        *,
        max_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> Iterator[Address]:
        """Iterate over the steps from here to the end, or over some of them.

        `until` is a total number of steps, a mapping like {"cycle": 3} (until so many cycles have ended in total), or a
        predicate evaluated before each step. Reaching it saves nothing, and another `run` continues from there.
        `max_seconds` is the time that this call may take by `clock`, including its last save: at each place where the
        loop may stop, it stops as by `stop` if the time until the next such place is likely to exceed the remaining time.
        """
        reached = self._target(until)
        self._clock = clock
        limit = None if max_seconds is None else TimeLimit(max_seconds, clock)
        self.stopped = None
        self._window.drop(self._levels.indices[-1])
        self._levels.reevaluate_end()
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
        """True between two items of the level at which the loop may stop and save."""
        return not any(self._levels.indices[self._boundary + 1 :])

    def save(self) -> None:
        """Write a checkpoint now. Raises before that if an unread recorded value is not finite."""
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
        self.stopped = self._take_stop()
        ending = (self.stopped is not None or self.done) and self._saved_after != self.count
        if self._save_requested or ending:
            self.save()
            if self.stopped is None:  # the function that saves may have requested a stop
                self.stopped = self._take_stop()

    def _take_stop(self) -> str | None:
        """Return the reason to stop here, common to all processes, if one was requested."""
        reason, self._stop_requested = self._stop_requested, None
        return self._agree(reason) if self._agree else reason

    def _target(self, until: int | Mapping[str, int] | Callable[[], bool] | None) -> Callable[[], bool]:
        if callable(until):
            return until
        if until is None:
            return lambda: False
        targets = {self.names[-1]: until} if isinstance(until, int) else until
        depths = {self._levels.depth(level): number for level, number in targets.items()}
        return lambda: all(self._levels.totals[depth] >= number for depth, number in depths.items())

    # -- recorded values

    def _read_window(self) -> None:
        merge_into(self._open[-1], self._checked(self._window.take))

    def _checked(self, read: Callable[[], dict[str, Moments]]) -> dict[str, Moments]:
        try:
            return read()
        except BadValue as caught:
            bad = caught
        names, indices = self.names, tuple(self._levels.indices)
        address = Address(names, (*indices[:-1], bad.step))
        error = NonFiniteError(address, bad.name, bad.value)
        if self._redraw is not None:
            since, state = self._sampler
            try:
                path = self._redraw.save(address, self._redraw.draw(state, bad.step - since))
            except Exception as failure:
                raise error from failure  # the nan matters more than a batch that could not be saved
            error = NonFiniteError(address, bad.name, bad.value, path)
        raise error

    def _take_snapshot(self) -> None:
        if self._redraw is not None:
            self._sampler = (self._levels.indices[-1], self._redraw.snapshot())

    # -- state

    def state_dict(self) -> dict[str, Any]:
        """Return position and open moments as plain values. Call it between steps, as the function of `on_save` is."""
        if self._phase != "between steps":
            raise LoopError(f"a loop cannot be saved in its {self._phase}; call request_save() there")
        self._read_window()
        moments = [{name: part.state_dict() for name, part in level.items()} for level in self._open]
        return {**self._levels.state_dict(), "moments": moments}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state. Values recorded since are dropped; hooks and sizes are those of this loop."""
        self._levels.load_state_dict(state)
        self._open = [{name: Moments.from_state(part) for name, part in level.items()} for level in state["moments"]]
        self._window = Window()
        self._saved_after = self.count
