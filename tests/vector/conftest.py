"""Puts the worlds of these tests where worker processes can import them, and watches that no test leaves a process."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


def children() -> set[int]:
    """Processes that this one started and that are not yet reaped."""
    pids: set[int] = set()
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
