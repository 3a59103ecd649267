"""Processes that append to a lake and are killed, and what the lake must then hold."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from millpond.replay import Lake
from tests.support.naive_lake import FRAME, NaiveLake, numbers_of

LANES = 3


def append_number(number: int, naive: NaiveLake | None = None) -> Any:
    """Return the steps of append `number`: always the same, so that the expected contents are known."""
    naive = naive or NaiveLake()
    naive.numbers = number * 50
    rng = np.random.default_rng(number)
    return naive.generate("a", LANES, 1 + number % 7, rng, FRAME, fresh=False, ends=0.1)


def in_child(work: Callable[[int], None]) -> tuple[int, int]:
    """Run `work(pipe)` in a separate process; return its id and the reading end of the pipe."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            work(writing)
        finally:
            os._exit(0)
    os.close(writing)
    return child, reading


def acknowledged_until_death(child: int, pipe: int) -> list[int]:
    """Return the numbers that the child reported before it died."""
    data = b""
    while chunk := os.read(pipe, 1 << 16):
        data += chunk
    os.close(pipe)
    os.waitpid(child, 0)
    return [int(line) for line in data.split()]


def assert_holds(folder: Path, commits: int) -> None:
    """Assert that the stream holds exactly the first `commits` appends, byte for byte."""
    if commits == 0:
        return
    naive = NaiveLake()
    for number in range(commits):
        append_number(number, naive)
    with Lake(folder) as lake:
        view = lake.view("a")
        records, damaged = lake.assembler().records(np.zeros(1, np.int32), np.arange(view.num_records)[None])
        frames, more = lake.assembler().frames(np.zeros(1, np.int32), np.arange(view.num_records)[None])
        assert not damaged
        assert not more
        steps = records[0][records[0]["flags"] & 8 == 0]
        expected = {step.number: step for lane in naive.lanes.values() for step in lane}
        assert sorted(steps["id"].tolist()) == sorted(expected)
        assert all(float(r["reward"]) == expected[int(r["id"])].reward for r in steps)
        assert numbers_of(frames["observation"][0][records[0]["flags"] & 8 == 0]) == steps["id"].tolist()
        assert lake.transitions(2) == len(naive.transitions(stack=2, n_step=1, gamma=1.0, repeat=False))


def die_at_call(count: int, *, half: bool) -> None:
    """Kill this process at its `count`-th call that changes a file; `half` cuts a write short."""
    left = [count]

    def guard(original: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                if half and name == "pwrite":
                    original(arguments[0], memoryview(arguments[1])[: len(arguments[1]) // 2], arguments[2])
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*arguments, **options)

        return call

    for name in ("pwrite", "fdatasync", "fsync", "ftruncate", "replace", "unlink", "open"):
        setattr(os, name, guard(getattr(os, name), name))
