"""All envs of a vector and their workers: step slices of envs, and restart envs that crashed."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, Literal, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from millpond.envs.spec import EnvSpec
from millpond.vector.backends.pool import Pool
from millpond.vector.layout import NO_TICKET, Batch, EnvSlice, Layout, Shard, SliceStatus, VectorError
from millpond.vector.shared_memory import Arena
from millpond.vector.worker import Command, Failure, Op, WorkerError

OnCrash = Literal["stop", "restart"]
MAX_CRASHES_IN_A_ROW = 3


def env_seed(seed: int, env: int, restarts: int = 0) -> int:
    """Return the seed of one env: a function of the run's seed, the env's index and its number of restarts.

    It is the child (env, restarts) of `SeedSequence(seed)`, so neither backend, workers nor groups can change it.
    """
    return int(np.random.SeedSequence(seed, spawn_key=(env, restarts)).generate_state(1, np.uint64)[0])


def env_seeds(seed: int, num_envs: int) -> npt.NDArray[np.uint64]:
    """Return the seeds [num_envs] of envs that were never restarted."""
    return np.array([env_seed(seed, env) for env in range(num_envs)], dtype=np.uint64)


class Scheduler(Protocol):
    """The object that currently starts steps; see `RoundRobin`."""

    @property
    def is_idle(self) -> bool: ...

    def drain(self) -> None: ...

    def reset(self) -> None: ...


class Fleet:
    """The envs and workers of a vector.

    `timeout`        seconds that a step may take
    `start_seconds`  seconds that making and resetting envs may take, which may compile or load something
    """

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
        self.active: Scheduler | None = None  # no other scheduler may start steps until this one is idle
        self.env_steps = np.zeros(layout.num_envs, np.int64)  # since the env was seeded
        self.episode_start = np.zeros(layout.num_envs, np.int64)  # `env_steps` at the start of the current episode
        self.restarts = np.zeros(layout.num_envs, np.int64)
        self.restarted = np.zeros(layout.num_envs, np.bool_)  # `Batch.restarted` are views of it
        self.unreported = np.zeros(layout.num_envs, np.bool_)  # restarted, and not yet reported in a batch
        self._any_restarted = False
        self._stepping: list[EnvSlice] = []
        self._crashes: Counter[int] = Counter()  # shard -> crashes in a row, without a step between them
        self._all_envs = {shard.index: (0, shard.last - shard.first) for shard in layout.shards}
        self.command_all(Op.BUILD)

    def make_slice(self, index: int, first: int, last: int) -> EnvSlice:
        tasks = self.layout.tasks(first, last)
        batch = Batch.view(index, first, last, self.arena.buffers, self.restarted)
        steps = [(task.shard.worker, Command(Op.STEP, task.shard.index, task.first, task.last)) for task in tasks]
        return EnvSlice(batch, tasks, [NO_TICKET] * len(tasks), steps, self.env_steps[first:last])

    def reset(self, seed: int) -> None:
        self.seed = seed
        self.arena.seeds[:] = env_seeds(seed, self.layout.num_envs)
        self.env_steps[:] = 0
        self.episode_start[:] = 0
        self.restarts[:] = 0
        self.unreported[:] = False
        self._crashes.clear()
        self.arena.buffers.action[...] = 0  # a reset must not depend on earlier actions
        self.command_all(Op.RESET)

    def start_step(self, env_slice: EnvSlice) -> None:
        """Let the envs of a slice take a step with the actions in its batch."""
        self.require_open()
        submit = self.pool.submit
        for index, (worker, command) in enumerate(env_slice.commands):
            # The actions for an env that was restarted after its batch was received answer an observation that it no
            # longer has. An env batch is restarted and reported as a whole, so its first env decides for the task.
            if self._any_restarted and self.unreported[env_slice.tasks[index].first_env]:
                env_slice.tickets[index] = NO_TICKET
            else:
                env_slice.tickets[index] = submit(worker, command)
        env_slice.status = SliceStatus.STEPPING
        self._stepping.append(env_slice)

    def finish_step(self, env_slice: EnvSlice) -> None:
        """Wait until the envs of a slice have stepped."""
        deadline = time.monotonic() + self.timeout
        for index, task in enumerate(env_slice.tasks):
            ticket = env_slice.tickets[index]
            if ticket == NO_TICKET:
                continue
            reply = self.pool.wait(ticket, deadline)
            env_slice.tickets[index] = NO_TICKET
            if isinstance(reply, Failure):
                self._handle_crash(task.shard, reply)
                deadline = time.monotonic() + self.timeout
            else:
                if reply is not None:
                    env_slice.ended += reply
                    for episode in reply:
                        self.episode_start[episode.env] = self.env_steps[episode.env] + 1
                if self._crashes:
                    self._crashes.pop(task.shard.index, None)
        self._stepping.remove(env_slice)
        env_slice.status = SliceStatus.STEPPED
        env_slice.env_steps += 1
        if self._any_restarted:
            env_slice.env_steps[self.unreported[env_slice.first : env_slice.last]] = 0

    def deliver(self, env_slice: EnvSlice) -> Batch:
        """Return the batch of a slice that has stepped or is idle."""
        batch = env_slice.batch
        batch.stepped = env_slice.status is SliceStatus.STEPPED
        if not batch.stepped:
            self._clear_results(env_slice.first, env_slice.last)
        batch.episodes = sorted(env_slice.ended, key=lambda episode: episode.env) if env_slice.ended else []
        env_slice.ended = []
        if self._any_restarted:
            envs = slice(env_slice.first, env_slice.last)
            batch.restarted[:] = self.unreported[envs]
            self.unreported[envs] = False
            self._any_restarted = bool(self.unreported.any() or self.restarted.any())
        env_slice.status = SliceStatus.RECEIVED
        return batch

    def command_all(self, op: Op, payloads: list[Any] | None = None) -> list[Any]:
        """Send the same command to every env batch and return the replies in the order of the shards.

        After a crash that `on_crash` tolerates, the command is sent to all of them again: saving and resetting can be
        repeated.
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
            self._handle_crash(shard, replies[-1])

    def mark_restarts(self) -> None:
        """Update the flags after `unreported` was loaded from a saved state."""
        self.restarted[:] = False
        self._any_restarted = bool(self.unreported.any())

    def fail(self, shard: Shard, failure: Failure, why_no_restart: str = "") -> NoReturn:
        """Close everything and raise."""
        progress = int(self.arena.progress[shard.index])
        env = shard.first + progress if 0 <= progress < shard.last - shard.first else None
        reported_env = shard.first if env is None else env
        error = WorkerError(
            failure,
            worker=shard.worker,
            is_trainer=shard.worker == self.layout.num_workers,
            env=env,
            first_env=shard.first,
            last_env=shard.last,
            seed=int(self.arena.seeds[reported_env]),
            env_steps=int(self.env_steps[reported_env]),
            advice=why_no_restart or self._advice(failure),
        )
        try:
            self.close()
        except Exception as second:  # of an env batch that is already broken: report the first error
            error.add_note(f"closing the environments failed too: {second!r}")
        raise error from failure.cause

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.active = None
            self.arena.close()
            self.pool.close()

    def require_open(self) -> None:
        if self.closed:
            raise VectorError("the vector is closed, by close() or because a worker failed; make a new one")

    def _advice(self, failure: Failure) -> str:
        if failure.doing not in ("step", "reset"):
            return f"the vector cannot be used without it: fix the environment's {failure.doing}"
        advice = "vector.on_crash=restart would restart these envs and continue"
        if failure.kind == "hung":
            limit = self.timeout if failure.doing == "step" else self.start_seconds
            return f"the limit is {limit:g} s; raise vector.timeout if it is only slow; {advice}"
        alone = " vector.trainer_share=0" if self.layout.trainer_envs else ""
        return f"{advice}; the same seed with vector.backend=inline{alone} repeats it under a debugger"

    def _submit(self, shard: Shard, op: Op, payload: Any = None) -> int:
        return self.pool.submit(shard.worker, Command(op, shard.index, *self._all_envs[shard.index]), payload)

    def _clear_results(self, first: int, last: int) -> None:
        buffers = self.arena.buffers
        for array in (buffers.reward, buffers.terminated, buffers.truncated):
            array[first:last] = 0

    def _handle_crash(self, shard: Shard, failure: Failure) -> None:
        """Raise, or restart the lost envs: those of the batch that raised, or all envs of a worker that is gone."""
        if self.on_crash == "stop":
            self.fail(shard, failure)
        self._crashes[shard.index] += 1
        if self._crashes[shard.index] > MAX_CRASHES_IN_A_ROW:
            self.fail(shard, failure, f"its envs were restarted {MAX_CRASHES_IN_A_ROW} times and never took a step")
        lost = [shard]
        if failure.kind != "raised":
            lost = [other for other in self.layout.shards if other.worker == shard.worker]
            if not self.pool.replace_worker(shard.worker):
                self.fail(shard, failure, "its envs cannot be restarted, because this worker cannot be ended")
        for other in lost:
            self._prepare_restart(other)
        tickets = [(other, self._submit(other, op)) for other in lost for op in (Op.BUILD, Op.RESET)]
        for other, ticket in tickets:
            reply = self.pool.wait(ticket, time.monotonic() + self.start_seconds)
            if isinstance(reply, Failure):
                self.fail(other, reply, "this was the attempt to restart after a crash")
        for other in lost:
            self._discard_steps(other)
            self._clear_results(other.first, other.last)
            self.env_steps[other.first : other.last] = 0
            self.episode_start[other.first : other.last] = 0
            self.unreported[other.first : other.last] = True
        self._any_restarted = True

    def _prepare_restart(self, shard: Shard) -> None:
        assert self.seed is not None  # nothing steps before reset or load_state
        self.arena.buffers.action[shard.first : shard.last] = 0
        for env in range(shard.first, shard.last):
            self.restarts[env] += 1
            self.arena.seeds[env] = env_seed(self.seed, env, int(self.restarts[env]))

    def _discard_steps(self, shard: Shard) -> None:
        """Discard the pending steps of an env batch, but not the episodes that ended in them."""
        for env_slice in self._stepping:
            for index, task in enumerate(env_slice.tasks):
                if task.shard is shard and env_slice.tickets[index] != NO_TICKET:
                    reply = self.pool.discard(env_slice.tickets[index])
                    if reply is not None and not isinstance(reply, Failure):
                        env_slice.ended += reply
                    env_slice.tickets[index] = NO_TICKET
