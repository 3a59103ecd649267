"""A bell between processes: who sleeps on it is woken on whichever core is free.

A pipe will not do. When something is written to it, Linux takes the writer to be about to sleep, and puts the reader on
the writer's own core; but the trainer goes on to act for the next group, and the worker would wait until it is done.
"""

from __future__ import annotations

import os
from contextlib import suppress


def make_bell() -> int:
    return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)


def ring(bell: int) -> None:
    os.eventfd_write(bell, 1)


def hush(bell: int) -> None:
    """Take note of all that it rang for so far."""
    with suppress(BlockingIOError):
        os.eventfd_read(bell)
