"""Fixtures for tests of vectors: another system, and a check that no test leaves a process running."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest


@pytest.fixture(params=["linux", "any system"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run on this system, and on one without the calls that only Linux has."""
    if request.param == "any system":
        for name in ("memfd_create", "eventfd", "eventfd_read", "eventfd_write", "pidfd_open"):
            monkeypatch.delattr(os, name, raising=False)
    elif sys.platform != "linux":
        pytest.skip("needs Linux")
    return str(request.param)


def children() -> set[int]:
    """Return the processes that this one started and that are not yet reaped; none without /proc."""
    pids: set[int] = set()
    if not Path("/proc/self/task").exists():
        return pids
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # a thread that ends just now
            pids.update(map(int, (task / "children").read_text().split()))
    return pids


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    before = children()
    yield
    deadline = time.monotonic() + 5.0
    while children() - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert children() <= before
