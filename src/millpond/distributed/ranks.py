"""Ranks: the processes, started by torchrun, that train one policy together.

Every method of `Ranks` is a collective: all ranks call the same methods in the same order. With one rank each method
is the identity, and no collective is called. torch is imported only where there are several ranks.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from millpond.cores import usable_cores
from millpond.errors import MillpondError
from millpond.store.status import Process

if TYPE_CHECKING:
    import torch


class RankError(MillpondError):
    """Ranks that cannot work together."""

    exit_code = 1


class RankLostError(RankError):
    """A rank has died, or does not answer. One of those that are left says so; the others are `quiet`."""

    def __init__(self, message: str, *, quiet: bool = False) -> None:
        self.quiet = quiet
        super().__init__(message)


class FollowedError(MillpondError):
    """Rank 0 failed in something that all depend on, and says why; this rank just ends, with the same exit code."""

    quiet = True

    def __init__(self, message: str, exit_code: int) -> None:
        self.exit_code = exit_code
        super().__init__(message)


VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # torchrun sets all


@dataclass(frozen=True)
class Place:
    """One of `count` ranks, and one of the `local_count` of them that are on this machine."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    local_count: int = 1

    @staticmethod
    def here(environment: Mapping[str, str] = os.environ) -> Place:
        """As torchrun says; on its own where nothing, or not all of it, is said."""
        if any(name not in environment for name in VARIABLES):
            return Place()
        return Place(*(int(environment[name]) for name in VARIABLES[:4]))

    @property
    def launcher(self) -> str:
        """What stands before `millpond` in a command that starts as many ranks; nothing for one."""
        return launcher(self.count, self.local_count)

    @property
    def cores(self) -> int:
        """Cores that fall to each rank of this machine, at least one."""
        allowed = usable_cores()
        return max(1, allowed // self.local_count)


def launcher(count: int, local_count: int | None = None) -> str:
    """The beginning of a command for `count` ranks, `local_count` on each machine (all on one where it is left out)."""
    each = local_count or count
    if count == 1:
        return ""
    nodes = f"--nnodes={count // each} " if count > each else ""
    # `--` ends torchrun's own options: it would take millpond's --run for an abbreviation of its --run-path.
    return f"torchrun {nodes}--nproc-per-node={each} -m -- "


PATIENCE = 5.0  # seconds: a process's connections close a little before it is gone
HEAD_START = 1.0  # seconds that quiet ranks leave to the one that speaks, before they are gone too


class Peers:
    """All ranks' processes, in the order of ranks. Those on other machines cannot be seen, and count as living."""

    def __init__(self, rank: int, processes: Sequence[dict[str, Any]]) -> None:
        self.rank = rank
        self.processes = [Process(**process) for process in processes]
        self.losing = False  # whether the loss of a rank is being told already

    @staticmethod
    def this() -> dict[str, Any]:
        return Process.this().as_dict()

    def gone(self) -> list[int]:
        """Ranks whose processes have died."""
        return [rank for rank, process in enumerate(self.processes) if not process.is_alive()]

    def lost(self, symptom: str) -> RankLostError:
        """The error that says which rank has died, as far as that can be seen; `symptom` is how it was noticed.

        On each machine the lowest rank that lives is the one to speak.
        """
        self.losing = True
        deadline = time.monotonic() + PATIENCE
        gone = self.gone()
        while not gone and time.monotonic() < deadline:
            time.sleep(0.02)
            gone = self.gone()
        speaker = min(rank for rank, process in enumerate(self.processes) if process.here and rank not in gone)
        if self.rank != speaker:
            time.sleep(HEAD_START)
        reason = symptom.strip().splitlines()[0] if symptom.strip() else "no answer"
        if gone:
            who = " and ".join(f"rank {rank} (process {self.processes[rank].pid})" for rank in gone)
            text = f"{who} died, and training cannot go on without it"
        else:
            text = f"a rank is not there any more, or does not answer ({reason})"
        return RankLostError(text, quiet=self.rank != speaker)


Result = TypeVar("Result")
AllReduce = Callable[["torch.Tensor"], object]


class Ranks:
    """All processes of a run. Made by `join`."""

    def __init__(self, place: Place | None = None) -> None:
        self.place = place or Place()
        self.rank, self.count = self.place.rank, self.place.count
        self.alone, self.first = self.count == 1, self.rank == 0
        # Adds a tensor up over all ranks, in place; None where there is nothing to add.
        self.all_reduce: AllReduce | None = None if self.alone else self._all_reduce
        self.peers = Peers(self.rank, [])
        if not self.alone:
            self.peers = Peers(self.rank, self.share(Peers.this()))

    def share(self, value: Any) -> list[Any]:
        """The plain values (as JSON has them) of all ranks, in their order."""
        if self.alone:
            return [value]
        return [json.loads(data) for data in self.share_bytes(json.dumps(value).encode())]

    def share_bytes(self, data: bytes) -> list[bytes]:
        """The bytes of all ranks, in their order, at all of them."""
        return [data] if self.alone else self._all_gather(data)

    def meet(self) -> None:
        """Go on when all ranks have come here."""
        self.share(None)

    def gather(self, data: bytes) -> list[bytes]:
        """The bytes of all ranks at rank 0; at the others nothing."""
        if self.alone:
            return [data]
        import torch
        import torch.distributed as dist

        sizes = self.share(len(data))
        mine = _padded(data, max(sizes))
        parts = [torch.empty_like(mine) for _ in sizes] if self.first else None
        self._call(dist.gather, mine, parts)
        return [_bytes(part, size) for part, size in zip(parts or [], sizes, strict=False)]

    def broadcast(self, data: bytes) -> bytes:
        """The bytes of rank 0 at all ranks; what others pass is not looked at."""
        if self.alone:
            return data
        import torch.distributed as dist

        size = self.share(len(data))[0]
        message = _padded(data if self.first else b"", size)
        self._call(dist.broadcast, message, 0)
        return _bytes(message, size)

    def copy_from_first(self, tensors: Iterable[torch.Tensor]) -> None:
        """Give all ranks the numbers of rank 0, in place."""
        if self.alone:
            return
        import torch.distributed as dist

        for tensor in tensors:
            self._call(dist.broadcast, tensor, 0)

    def lead(self, work: Callable[[], Result]) -> Result:
        """Do at rank 0 what is to be done once, and give its plain value (as JSON has them) to all.

        Where it fails, all ranks end: rank 0 with the error, the others without a word.
        """
        if self.alone:
            return work()
        told: dict[str, Any] = {}
        failure: BaseException | None = None
        if self.first:
            try:
                told = {"value": work()}
            except BaseException as error:
                failure = error
                told = {"failed": str(error), "exit_code": error.exit_code if isinstance(error, MillpondError) else 1}
        told = json.loads(self.broadcast(json.dumps(told).encode()))
        if failure is not None:
            raise failure
        if "failed" in told:
            raise FollowedError(told["failed"], told["exit_code"])
        value: Result = told["value"]
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
        """A collective fails when a rank has gone: its connections close, or it does not answer in time."""
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


PR_SET_PDEATHSIG = 1  # of prctl
# How long a rank waits for another. Rank 0 evaluates while the others wait, so this is generous: a rank that dies is
# noticed at once, by its closed connections, and only one that hangs is noticed by this.
TIMEOUT = timedelta(minutes=30)


@contextmanager
def join(place: Place | None = None, timeout: timedelta = TIMEOUT) -> Iterator[Ranks]:
    """All ranks that torchrun started, for as long as the context lasts; this process alone where it started none.

    Tensors on the CPU travel by gloo, tensors on a GPU by NCCL.
    """
    place = place or Place.here()
    if place.count == 1:
        yield ALONE
        return
    _share_the_cores(place)
    _stop_without_torchrun()
    import torch
    import torch.distributed as dist

    if place.local_count == place.count:  # one machine: nothing listens to the outside
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    on_gpu = torch.cuda.is_available() and dist.is_nccl_available()
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo", rank=place.rank, world_size=place.count, timeout=timeout
    )
    yield Ranks(place)
    dist.destroy_process_group()  # not after an error: it would wait for ranks that are gone


def _stop_without_torchrun() -> None:
    """Have the kernel send SIGTERM when torchrun is killed (Linux): a rank would go on alone, and nobody would know."""
    if sys.platform == "linux" and "TORCHELASTIC_RUN_ID" in os.environ:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _share_the_cores(place: Place) -> None:
    """Each rank computes on its share of the cores. A number of threads that the user has set stays as it is.

    torchrun sets OMP_NUM_THREADS=1 where nobody has, so 1 is not taken for the user's word.
    """
    os.environ.setdefault("NUMBA_NUM_THREADS", str(place.cores))
    if os.environ.get("OMP_NUM_THREADS", "1") != "1":
        return
    import torch

    torch.set_num_threads(place.cores)
