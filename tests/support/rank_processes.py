"""Real ranks for tests: processes that connect as those of torchrun do."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from millpond.distributed import Ranks, join
from millpond.distributed.ranks import TIMEOUT
from millpond.store import Checkpoints


def run_ranks(count: int, work: Callable[..., Any], *arguments: Any, timeout: timedelta = TIMEOUT) -> list[Any]:
    """Run work(ranks, *arguments) in `count` processes and return their results, in order of rank."""
    context = get_context("spawn")
    answers: Any = context.SimpleQueue()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [
        context.Process(target=_rank, args=(rank, count, port, timeout, answers, work, arguments))
        for rank in range(count)
    ]
    for process in processes:
        process.start()
    results = dict(answers.get() for _ in processes)
    for process in processes:
        process.join()
    for answer in results.values():
        if isinstance(answer, Exception):
            raise answer
    return [results[rank] for rank in range(count)]


def _rank(
    rank: int,
    count: int,
    port: int,
    timeout: timedelta,
    answers: Any,
    work: Callable[..., Any],
    arguments: Sequence[Any],
) -> None:
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    try:
        with join(timeout=timeout) as ranks:
            assert isinstance(ranks, Ranks)
            answer = work(ranks, *arguments)
    except Exception as error:
        answers.put((rank, error))
        raise
    answers.put((rank, answer))


def torchrun(count: int, *arguments: str) -> list[str]:
    """Return the real command. `--` keeps torchrun from reading `--run` as one of its options."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    return [*launcher, "-m", "--", "millpond", "train", *arguments]


def run_torchrun(folder: Path, count: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        torchrun(count, *arguments), cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def rank_process(launcher: int, rank: int) -> int:
    """Return the process id of a rank, among the children of torchrun."""
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        if f"RANK={rank}".encode() in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            return int(child)
    raise AssertionError(f"no rank {rank}")


def start_and_signal(
    root: Path, name: str, arguments: Sequence[str], rank: int | None, number: signal.Signals
) -> tuple[int, str, str, int]:
    """Start a run and send a signal to a rank, or to torchrun, after three checkpoints.

    Returns the exit code, both outputs, and the process that was signalled.
    """
    process = subprocess.Popen(
        torchrun(2, *arguments), cwd=root, env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    checkpoints = Checkpoints(root / "runs" / name / "checkpoints")
    while len(checkpoints.updates()) < 3:
        assert process.poll() is None, "it ended before the signal"
        time.sleep(0.002)
    target = process.pid if rank is None else rank_process(process.pid, rank)
    os.kill(target, number)
    output, errors = process.communicate(timeout=120)
    return process.returncode, output, errors, target
