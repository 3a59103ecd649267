"""Processes that end with the one that started them, however it ends (Linux)."""

from __future__ import annotations

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Be killed by the kernel when the thread that started this process ends."""
    _tell_kernel(signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the kernel was told
        raise SystemExit(1)


def outlive() -> None:
    """Undo `end_with`."""
    _tell_kernel(0)


def _tell_kernel(number: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
