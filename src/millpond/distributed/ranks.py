"""Ranks: the processes, started by torchrun, that train one policy together.

Every method of `Ranks` is a collective: all ranks call the same methods in the same order. With one rank each method
is the identity, and no collective is called. torch is imported only where there are several ranks.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from millpond.cpu import usable_cores
from millpond.errors import MillpondError
from millpond.store.status import Process

if TYPE_CHECKING:
    import torch


class RankError(MillpondError):
    """Ranks cannot work together."""

    exit_code = 1


class RankLostError(RankError):
    """A rank has died or does not respond. One of the remaining ranks reports it; the others are `quiet`."""

    def __init__(self, message: str, *, quiet: bool = False) -> None:
        self.quiet = quiet
        super().__init__(message)


class FirstRankFailedError(MillpondError):
    """Rank 0 failed and reports why; this rank exits silently with the same exit code."""

    quiet = True

    def __init__(self, message: str, exit_code: int) -> None:
        self.exit_code = exit_code
        super().__init__(message)


VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # set by torchrun


@dataclass(frozen=True)
class Place:
    """Position of this process among `count` ranks, of which `local_count` are on this machine."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    local_count: int = 1

    @staticmethod
    def here(environment: Mapping[str, str] = os.environ) -> Place:
        """Return the place from torchrun's environment variables; that of a single process if any is missing."""
        if any(name not in environment for name in VARIABLES):
            return Place()
        return Place(*(int(environment[name]) for name in VARIABLES[:4]))

    @property
    def launcher(self) -> str:
        """Prefix of `millpond` in a command that starts as many ranks; empty for one."""
        return launcher(self.count, self.local_count)

    @property
    def cores(self) -> int:
        """Cores per rank on this machine, at least one."""
        allowed = usable_cores()
        return max(1, allowed // self.local_count)


def launcher(count: int, local_count: int | None = None) -> str:
    """Return the start of a command for `count` ranks, `local_count` per machine (default: all on one)."""
    each = local_count or count
    if count == 1:
        return ""
    nodes = f"--nnodes={count // each} " if count > each else ""
    # `--` ends torchrun's options: it would take millpond's --run for an abbreviation of its --run-path.
    return f"torchrun {nodes}--nproc-per-node={each} -m -- "


EXIT_TIMEOUT = 5.0  # seconds to wait for a process to end after its connections have closed
QUIET_DELAY = 1.0  # seconds that quiet ranks wait before they exit, so that the reporting rank can print first


class Peers:
    """The processes of all ranks, in rank order. Those on other machines cannot be checked and count as alive."""

    def __init__(self, rank: int, processes: Sequence[dict[str, Any]]) -> None:
        self.rank = rank
        self.processes = [Process(**process) for process in processes]
        self.losing = False  # True once the loss of a rank is being reported

    @staticmethod
    def this() -> dict[str, Any]:
        return Process.this().as_dict()

    def gone(self) -> list[int]:
        """Return the ranks whose processes have died."""
        return [rank for rank, process in enumerate(self.processes) if not process.is_alive()]

    def lost(self, symptom: str) -> RankLostError:
        """Return the error that names the rank that has died, if it can be determined; `symptom` is how it was noticed.

        On each machine the lowest rank that is alive reports it.
        """
        self.losing = True
        deadline = time.monotonic() + EXIT_TIMEOUT
        gone = self.gone()
        while not gone and time.monotonic() < deadline:
            time.sleep(0.02)
            gone = self.gone()
        reporter = min(rank for rank, process in enumerate(self.processes) if process.here and rank not in gone)
        if self.rank != reporter:
            time.sleep(QUIET_DELAY)
        reason = symptom.strip().splitlines()[0] if symptom.strip() else "no response"
        if gone:
            who = " and ".join(f"rank {rank} (process {self.processes[rank].pid})" for rank in gone)
            text = f"{who} died, and training cannot continue without it"
        else:
            text = f"a rank has died or does not respond ({reason})"
        return RankLostError(text, quiet=self.rank != reporter)

    def wait_for_report(self) -> None:
        """Let rank 0 report its error and end: torchrun would terminate it as soon as another rank ends."""
        deadline = time.monotonic() + QUIET_DELAY
        while self.processes[0].is_alive() and time.monotonic() < deadline:
            time.sleep(0.02)


Result = TypeVar("Result")
AllReduce = Callable[["torch.Tensor"], object]


class Ranks:
    """All processes of a run, and their collectives. Created by `join`."""

    def __init__(self, place: Place | None = None) -> None:
        self.place = place or Place()
        self.rank, self.count = self.place.rank, self.place.count
        self.alone, self.first = self.count == 1, self.rank == 0
        # Sums a tensor over all ranks in place; None with one rank.
        self.all_reduce: AllReduce | None = None if self.alone else self._all_reduce
        self.peers = Peers(self.rank, [])
        if not self.alone:
            self.peers = Peers(self.rank, self.all_gather(Peers.this()))

    def all_gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks in rank order. Values are plain, as in JSON."""
        if self.alone:
            return [value]
        return [json.loads(data) for data in self.all_gather_bytes(json.dumps(value).encode())]

    def all_gather_bytes(self, data: bytes) -> list[bytes]:
        """Return the bytes of all ranks in rank order."""
        return [data] if self.alone else self._all_gather(data)

    def barrier(self) -> None:
        """Wait until all ranks have called this."""
        self.all_gather(None)

    def gather(self, data: bytes) -> list[bytes]:
        """Return the bytes of all ranks on rank 0, and an empty list on the others."""
        if self.alone:
            return [data]
        import torch
        import torch.distributed as dist

        sizes = self.all_gather(len(data))
        mine = _padded(data, max(sizes))
        parts = [torch.empty_like(mine) for _ in sizes] if self.first else None
        self._call(dist.gather, mine, parts)
        return [_bytes(part, size) for part, size in zip(parts or [], sizes, strict=False)]

    def broadcast(self, data: bytes) -> bytes:
        """Return the bytes of rank 0 on all ranks; the arguments of the others are ignored."""
        if self.alone:
            return data
        import torch.distributed as dist

        size = self.all_gather(len(data))[0]
        message = _padded(data if self.first else b"", size)
        self._call(dist.broadcast, message, 0)
        return _bytes(message, size)

    def broadcast_tensors(self, tensors: Iterable[torch.Tensor]) -> None:
        """Copy the tensors of rank 0 to all ranks, in place."""
        if self.alone:
            return
        import torch.distributed as dist

        for tensor in tensors:
            self._call(dist.broadcast, tensor, 0)

    def run_on_first(self, work: Callable[[], Result]) -> Result:
        """Run a function on rank 0 only, and return its plain value (as in JSON) on all ranks.

        If it fails, all ranks exit: rank 0 with the error, the others silently.
        """
        if self.alone:
            return work()
        outcome: dict[str, Any] = {}
        failure: BaseException | None = None
        if self.first:
            try:
                outcome = {"value": work()}
            except BaseException as error:
                failure = error
                exit_code = error.exit_code if isinstance(error, MillpondError) else 1
                outcome = {"failed": str(error), "exit_code": exit_code}
        outcome = json.loads(self.broadcast(json.dumps(outcome).encode()))
        if failure is not None:
            raise failure
        if "failed" in outcome:
            self.peers.wait_for_report()
            raise FirstRankFailedError(outcome["failed"], outcome["exit_code"])
        value: Result = outcome["value"]
        return value

    def _all_reduce(self, tensor: torch.Tensor) -> None:
        import torch.distributed as dist

        self._call(dist.all_reduce, tensor)

    def _all_gather(self, data: bytes) -> list[bytes]:
        import torch
        import torch.distributed as dist

        size = torch.tensor([len(data)])
        sizes = [torch.empty_like(size) for _ in range(self.count)]
        self._call(dist.all_gather, sizes, size)
        lengths = [int(length) for length in sizes]
        mine = _padded(data, max(lengths))
        parts = [torch.empty_like(mine) for _ in lengths]
        self._call(dist.all_gather, parts, mine)
        return [_bytes(part, length) for part, length in zip(parts, lengths, strict=True)]

    def _call(self, collective: Callable[..., object], *arguments: Any) -> None:
        """Call a collective; it fails if a rank has died (its connections close) or does not respond in time."""
        try:
            collective(*arguments)
        except RuntimeError as error:
            raise self.peers.lost(str(error)) from error


def _padded(data: bytes, size: int) -> torch.Tensor:
    import torch

    return torch.frombuffer(bytearray(data.ljust(max(size, 1), b"\0")), dtype=torch.uint8)


def _bytes(tensor: torch.Tensor, size: int) -> bytes:
    return tensor[:size].numpy().tobytes()


ALONE = Ranks()


PR_SET_PDEATHSIG = 1  # option of prctl
# Time that a rank waits for another. Rank 0 evaluates while the others wait, so this is generous: a rank that dies is
# noticed at once, by its closed connections, and only one that hangs is noticed by this timeout.
TIMEOUT = timedelta(minutes=30)


@contextmanager
def join(place: Place | None = None, timeout: timedelta = TIMEOUT) -> Iterator[Ranks]:
    """Join all ranks that torchrun started while the context lasts; without torchrun, return `ALONE`.

    CPU tensors use gloo, GPU tensors use NCCL.
    """
    place = place or Place.here()
    if place.count == 1:
        yield ALONE
        return
    _divide_cores(place)
    _terminate_with_torchrun()
    import torch
    import torch.distributed as dist

    if place.local_count == place.count:  # one machine: listen on loopback only
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    on_gpu = torch.cuda.is_available() and dist.is_nccl_available()
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo", rank=place.rank, world_size=place.count, timeout=timeout
    )
    yield Ranks(place)
    dist.destroy_process_group()  # not after an error: it would wait for ranks that have died


def run_and_end_process(work: Callable[[], object]) -> NoReturn:
    """Run the whole work of this rank, then end the process with its exit code.

    The process ends without C++ destructors: those of gloo now and then abort (SIGABRT, "terminate called without an active
    exception"), and torchrun then takes a rank that has finished for one that has failed.
    """
    try:
        work()
        code = 0
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _terminate_with_torchrun() -> None:
    """Let the kernel send SIGTERM when torchrun is killed (Linux), instead of leaving an orphaned rank running."""
    if sys.platform == "linux" and "TORCHELASTIC_RUN_ID" in os.environ:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _divide_cores(place: Place) -> None:
    """Let each rank use its share of the cores, unless the user has set a number of threads.

    torchrun sets OMP_NUM_THREADS=1 if it is unset, so 1 does not count as set by the user.
    """
    os.environ.setdefault("NUMBA_NUM_THREADS", str(place.cores))
    if os.environ.get("OMP_NUM_THREADS", "1") != "1":
        return
    import torch

    torch.set_num_threads(place.cores)
