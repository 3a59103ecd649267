"""Choose the backend of a vector from measured times: envs in the trainer's own thread, in threads or in processes.

A turn of the collection acts for one group of envs and steps it. With n envs per group, w workers, C cores, c seconds per env
step, a seconds to act for a group and o seconds of overhead per worker and turn, a turn takes about

    inline              a + n c
    workers, 1 group    a + w o + ceil(n / w) c               the trainer waits for the workers
    workers, 2 groups   max(a + w o, ceil(n / w) c + o, (a + n c + 2 w o) / C)

With several groups the policy acts for one while the others step, so the slower side decides, or all cores are busy. Worker
processes that leave no core to the trainer share one with it: they are interrupted and sleep instead of polling, which costs a
share of the time and a constant per turn. A trainer that steps e envs of a group itself leaves n - e to the workers. With one
group it does so while they step, which takes max(e, ceil((n - e) / w)) c; with several groups its time is a + w o + e c.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from millpond.formatting import plural

# How much faster than inline a turn must be. Workers have a cost that a turn does not show: memory, a slower start, cores that
# other programs use. Threads cost less.
MIN_GAIN = {"processes": 1.25, "threads": 1.05}
SHARED_CORE = 1.3  # factor of a turn, if worker processes and the trainer share a core
WAKE_SECONDS = 200e-6  # per turn, to wake processes that sleep
SIMILAR = (
    1.05  # a turn that is longer by this factor at most is preferred if it needs fewer workers, or a smaller share
)
SHARES = 32  # shares of the trainer that are compared: 0, 1/32, 2/32, ...


@dataclass(frozen=True)
class Costs:
    """Measured seconds."""

    step: float  # one env takes one step
    overhead: float  # a worker is sent a command and its reply is received, beyond the steps
    act: float  # the policy acts for a group, with all threads
    act_beside: float  # the same with one thread, next to worker processes


@dataclass(frozen=True)
class Candidate:
    """A way to step envs: with workers, or inline."""

    backend: Literal["inline", "threads", "processes"]
    num_workers: int = 1
    trainer_envs: int = 0  # envs of each group that the trainer steps itself, next to worker processes

    def __str__(self) -> str:
        if self.backend == "inline":
            return "inline"
        own = f" and {plural(self.trainer_envs, 'env')} in the trainer" if self.trainer_envs else ""
        return plural(self.num_workers, "worker process" if self.backend == "processes" else "thread") + own


INLINE = Candidate("inline")


@dataclass(frozen=True)
class Sizes:
    """Sizes of a vector, and the cores that it shares with the policy."""

    envs_per_group: int
    groups: int
    cores: int
    trainer_envs: int | None = None  # that the trainer has to step itself, next to worker processes; None: to be chosen


def worker_counts(limit: int, cores: int) -> list[int]:
    """Return the numbers of workers to compare: powers of two, all but one core, and the limit."""
    powers = {1 << power for power in range(limit.bit_length())}
    return sorted(count for count in powers | {cores - 1, limit} if 1 <= count <= limit)


def candidates_of(backend: Literal["threads", "processes"], limit: int, sizes: Sizes) -> Iterator[Candidate]:
    """Yield the candidates with workers: the fewest workers first, and the fewest envs in the trainer.

    A trainer steps envs itself only if it has a core to itself.
    """
    envs = sizes.envs_per_group
    for count in worker_counts(limit, sizes.cores):
        shares = [sizes.trainer_envs or 0]
        if sizes.trainer_envs is None and backend == "processes" and count < sizes.cores:
            shares = sorted({min(envs - count, round(envs * part / SHARES)) for part in range(SHARES)})
        for own in shares if backend == "processes" else [0]:
            yield Candidate(backend, count, own)


def turn_seconds(candidate: Candidate, sizes: Sizes, costs: Costs) -> float:
    """Predict the time of one turn of the collection; see the equations above."""
    envs, workers, cores = sizes.envs_per_group, candidate.num_workers, sizes.cores
    if candidate.backend == "inline":
        return costs.act + envs * costs.step
    processes = candidate.backend == "processes"
    own = candidate.trainer_envs
    act = costs.act_beside if processes and cores - workers <= 1 else costs.act
    trainer = act + workers * costs.overhead + own * costs.step
    longest = -(-(envs - own) // workers) * costs.step * max(1.0, workers / cores)
    if sizes.groups == 1:
        seconds = max(own * costs.step, longest) + act + workers * costs.overhead
    else:
        work = act + envs * costs.step + 2 * workers * costs.overhead
        seconds = max(trainer, longest + costs.overhead, work / cores)
    if processes and workers >= cores:
        return seconds * SHARED_CORE + WAKE_SECONDS
    return seconds


def choose(backend: Literal["threads", "processes"], limit: int, sizes: Sizes, costs: Costs) -> Candidate:
    """Return the fastest candidate. Inline wins unless workers are clearly faster, and the first of similar candidates."""
    candidates = list(candidates_of(backend, limit, sizes))
    seconds = {candidate: turn_seconds(candidate, sizes, costs) for candidate in candidates}
    fastest = min(seconds.values())
    if fastest * MIN_GAIN[backend] >= turn_seconds(INLINE, sizes, costs):
        return INLINE
    return next(candidate for candidate in candidates if seconds[candidate] <= fastest * SIMILAR)


def explain(chosen: Candidate, backend: Literal["threads", "processes"], limit: int, sizes: Sizes, costs: Costs) -> str:
    """Describe a choice in one line: what was measured, and what the best alternative would take."""
    if chosen.backend == "inline":
        other = min(candidates_of(backend, limit, sizes), key=lambda candidate: turn_seconds(candidate, sizes, costs))
    else:
        other = INLINE
    envs = plural(sizes.envs_per_group, "env")
    return (
        f"measured: {envs} of a group step in {short_time(sizes.envs_per_group * costs.step)}, the policy acts for them in "
        f"{short_time(costs.act)}; both take about {short_time(turn_seconds(chosen, sizes, costs))} {_with(chosen)}, "
        f"{short_time(turn_seconds(other, sizes, costs))} {_with(other)}"
    )


def _with(candidate: Candidate) -> str:
    return str(candidate) if candidate.backend == "inline" else f"with {candidate}"


def short_time(seconds: float) -> str:
    """Format a time below some seconds: 73 µs, 4.2 ms, 120 ms."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 0.01 else f"{seconds * 1e3:,.0f} ms"
