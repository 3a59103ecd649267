"""Becoming one of several ranks."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from millpond.distributed.place import Place
from millpond.distributed.ranks import ALONE, Ranks

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
