"""The envs behind a vector: it sends stretches of them off, takes them in, and puts crashed ones back on their feet."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, Literal, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from millpond.envs.spec import EnvSpec
from millpond.vector.backends.pool import Pool
from millpond.vector.batch import NO_TICKET, Batch, Status, Stretch
from millpond.vector.failures import Failure, VectorError, WorkerError
from millpond.vector.layout import Layout, Shard
from millpond.vector.shared_memory import Arena
from millpond.vector.worker import Command, Op

OnCrash = Literal["stop", "restart"]
MOST_CRASHES_IN_A_ROW = 3


class Mover(Protocol):
    """Whoever launches stretches."""

    @property
    def resting(self) -> bool: ...

    def drain(self) -> None: ...

    def begin(self) -> None: ...


class Fleet:
    """`timeout` seconds for a step, `start_seconds` for making and resetting environments, which may compile or load."""

    def __init__(
        self,
        spec: EnvSpec,
        layout: Layout,
        arena: Arena,
        pool: Pool,
        *,
        timeout: float,
        start_seconds: float,
        on_crash: OnCrash,
    ) -> None:
        self.spec = spec
        self.layout = layout
        self.arena = arena
        self.pool = pool
        self.timeout = timeout
        self.start_seconds = start_seconds
        self.on_crash = on_crash
        self.closed = False
        self.seed: int | None = None
        self.mover: Mover | None = None  # whose turns are on: no others over the same envs move until it rests
        self.env_steps = np.zeros(layout.num_envs, np.int64)  # since the env was seeded
        self.restarts = np.zeros(layout.num_envs, np.int64)
        self.restarted = np.zeros(layout.num_envs, np.bool_)  # as the batches show it
        self.unreported = np.zeros(layout.num_envs, np.bool_)  # restarted, and no batch has told so yet
        self._any_restarted = False
        self._flying: list[Stretch] = []
        self._crashes: Counter[int] = Counter()  # shard -> in a row, without a step between them
        self._whole = {shard.index: (0, shard.last - shard.first) for shard in layout.shards}
        self.command_all(Op.BUILD)

    def stretch(self, index: int, first: int, last: int) -> Stretch:
        tasks = self.layout.tasks(first, last)
        batch = Batch.view(index, first, last, self.arena.buffers, self.restarted)
        return Stretch(batch, tasks, [NO_TICKET] * len(tasks))

    def reset(self, seed: int) -> None:
        self.seed = seed
        self.arena.seeds[:] = env_seeds(seed, self.layout.num_envs)
        self.env_steps[:] = 0
        self.restarts[:] = 0
        self.unreported[:] = False
        self._crashes.clear()
        self.arena.buffers.action[...] = 0  # nothing of the time before shows through
        self.command_all(Op.RESET)

    def launch(self, stretch: Stretch) -> None:
        """Let the envs of a stretch take a step, with the actions that are in its batch."""
        self.require_open()
        submit, unreported = self.pool.submit, self.unreported
        for place, task in enumerate(stretch.tasks):
            # An env that was restarted after its batch was received has not seen what the actions answer to. An environment
            # is restarted and reported as one, so its first env speaks for all of the task.
            if self._any_restarted and unreported[task.first_env]:
                stretch.tickets[place] = NO_TICKET
            else:
                shard = task.shard
                stretch.tickets[place] = submit(shard.worker, Command(Op.STEP, shard.index, task.first, task.last))
        stretch.status = Status.FLYING
        self._flying.append(stretch)

    def land(self, stretch: Stretch) -> None:
        """Wait until the envs of a stretch have stepped."""
        deadline = time.monotonic() + self.timeout
        for place, task in enumerate(stretch.tasks):
            ticket = stretch.tickets[place]
            if ticket == NO_TICKET:
                continue
            reply = self.pool.wait(ticket, deadline)
            stretch.tickets[place] = NO_TICKET
            if isinstance(reply, Failure):
                self._crashed(task.shard, reply)
                deadline = time.monotonic() + self.timeout
            else:
                if reply is not None:
                    stretch.ended += reply
                if self._crashes:
                    self._crashes.pop(task.shard.index, None)
        self._flying.remove(stretch)
        stretch.status = Status.LANDED
        steps = self.env_steps[stretch.first : stretch.last]
        steps += 1
        if self._any_restarted:
            steps[self.unreported[stretch.first : stretch.last]] = 0

    def hand_out(self, stretch: Stretch) -> Batch:
        """The batch of a stretch that has landed, or rests."""
        batch = stretch.batch
        batch.stepped = stretch.status == Status.LANDED
        if not batch.stepped:
            self._clear_outcome(stretch.first, stretch.last)
        batch.episodes = sorted(stretch.ended, key=lambda episode: episode.env) if stretch.ended else []
        stretch.ended = []
        if self._any_restarted:
            envs = slice(stretch.first, stretch.last)
            batch.restarted[:] = self.unreported[envs]
            self.unreported[envs] = False
            self._any_restarted = bool(self.unreported.any() or self.restarted.any())
        stretch.status = Status.HELD
        return batch

    def command_all(self, op: Op, payloads: list[Any] | None = None) -> list[Any]:
        """The same command for every environment; replies in the order of the shards.

        After a crash that `on_crash` forgives, all environments are told again: saving and resetting can be repeated.
        """
        shards = self.layout.shards
        while True:
            tickets = [self._submit(shard, op, payloads and payloads[shard.index]) for shard in shards]
            replies: list[Any] = []
            for ticket in tickets:
                replies.append(self.pool.wait(ticket, time.monotonic() + self.start_seconds))
                if isinstance(replies[-1], Failure):
                    break
            else:
                return replies
            for ticket in tickets[len(replies) :]:
                self.pool.discard(ticket)
            shard = shards[len(replies) - 1]
            if op not in (Op.RESET, Op.SAVE):
                self.fail(shard, replies[-1])
            self._crashed(shard, replies[-1])

    def mark_restarts(self) -> None:
        """After `unreported` was set from outside."""
        self.restarted[:] = False
        self._any_restarted = bool(self.unreported.any())

    def fail(self, shard: Shard, failure: Failure, why_no_restart: str = "") -> NoReturn:
        """End everything and raise."""
        told = int(self.arena.progress[shard.index])
        env = shard.first + told if 0 <= told < shard.last - shard.first else None
        at = shard.first if env is None else env
        error = WorkerError(
            failure,
            worker=shard.worker,
            is_trainer=shard.worker == self.layout.num_workers,
            env=env,
            first_env=shard.first,
            last_env=shard.last,
            seed=int(self.arena.seeds[at]),
            env_steps=int(self.env_steps[at]),
            advice=why_no_restart or self._advice(failure),
        )
        try:
            self.close()
        except Exception as second:  # of an environment that is broken already: the first error is the one to tell
            error.add_note(f"closing the environments failed too: {second!r}")
        raise error from failure.cause

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.mover = None
            self.arena.close()
            self.pool.close()

    def require_open(self) -> None:
        if self.closed:
            raise VectorError("the vector is closed, by close() or because a worker failed; make a new one")

    def _advice(self, failure: Failure) -> str:
        if failure.doing not in ("step", "reset"):
            return f"nothing can go on without it: fix the environment's {failure.doing}"
        advice = "vector.on_crash=restart would start these envs anew and go on"
        if failure.kind == "hung":
            limit = self.timeout if failure.doing == "step" else self.start_seconds
            return f"it was given {limit:g} s; raise vector.timeout if it is only slow; {advice}"
        alone = " vector.trainer_share=0" if self.layout.trainer_envs else ""
        return f"{advice}; the same seed with vector.backend=inline{alone} repeats it under a debugger"

    def _submit(self, shard: Shard, op: Op, payload: Any = None) -> int:
        return self.pool.submit(shard.worker, Command(op, shard.index, *self._whole[shard.index]), payload)

    def _clear_outcome(self, first: int, last: int) -> None:
        buffers = self.arena.buffers
        for array in (buffers.reward, buffers.terminated, buffers.truncated):
            array[first:last] = 0

    def _crashed(self, shard: Shard, failure: Failure) -> None:
        """Raise, or restart the envs that are lost: one that raised, or all of a worker that is gone."""
        if self.on_crash == "stop":
            self.fail(shard, failure)
        self._crashes[shard.index] += 1
        if self._crashes[shard.index] > MOST_CRASHES_IN_A_ROW:
            self.fail(shard, failure, f"its envs were restarted {MOST_CRASHES_IN_A_ROW} times and never took a step")
        lost = [shard]
        if failure.kind != "raised":
            lost = [other for other in self.layout.shards if other.worker == shard.worker]
            if not self.pool.revive(shard.worker):
                self.fail(shard, failure, "its envs cannot be restarted, because this worker cannot be ended")
        for other in lost:
            self._prepare_restart(other)
        tickets = [(other, self._submit(other, op)) for other in lost for op in (Op.BUILD, Op.RESET)]
        for other, ticket in tickets:
            reply = self.pool.wait(ticket, time.monotonic() + self.start_seconds)
            if isinstance(reply, Failure):
                self.fail(other, reply, "this was the attempt to restart after a crash")
        for other in lost:
            self._void(other)
            self._clear_outcome(other.first, other.last)
            self.env_steps[other.first : other.last] = 0
            self.unreported[other.first : other.last] = True
        self._any_restarted = True

    def _prepare_restart(self, shard: Shard) -> None:
        assert self.seed is not None  # nothing steps before reset or load_state
        self.arena.buffers.action[shard.first : shard.last] = 0
        for env in range(shard.first, shard.last):
            self.restarts[env] += 1
            self.arena.seeds[env] = env_seed(self.seed, env, int(self.restarts[env]))

    def _void(self, shard: Shard) -> None:
        """Expect no more of an environment's steps that are in the air; keep the episodes that had ended."""
        for stretch in self._flying:
            for place, task in enumerate(stretch.tasks):
                if task.shard is shard and stretch.tickets[place] != NO_TICKET:
                    reply = self.pool.discard(stretch.tickets[place])
                    if reply is not None and not isinstance(reply, Failure):
                        stretch.ended += reply
                    stretch.tickets[place] = NO_TICKET


# -- Where each env's seed comes from.


def env_seed(seed: int, env: int, restarts: int = 0) -> int:
    """The seed of one env: a function of the run's seed, the env's index and how often the env was restarted.

    It is the child (env, restarts) of `SeedSequence(seed)`, so neither backend, workers nor groups can change it.
    """
    return int(np.random.SeedSequence(seed, spawn_key=(env, restarts)).generate_state(1, np.uint64)[0])


def env_seeds(seed: int, num_envs: int) -> npt.NDArray[np.uint64]:
    """The seeds [num_envs] of a fresh start."""
    return np.array([env_seed(seed, env) for env in range(num_envs)], dtype=np.uint64)
