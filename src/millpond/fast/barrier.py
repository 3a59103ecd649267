"""Threads that meet inside compiled loops: a barrier that waits in user space.

An update of a small network takes about a millisecond and has a few points at which its threads need each other's results.
Returning to Python for each of them costs more than the arithmetic between them. So the threads of an update run one
compiled function for many updates, and meet here. A thread that waits long gives its core away: there may be more threads
than idle cores.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from millpond.compiled import compiled

SPINS = 4_000  # some microseconds


def find_yield() -> int:
    """Return the address of the C library's sched_yield; 0 if there is none."""
    try:
        return ctypes.cast(ctypes.CDLL(None).sched_yield, ctypes.c_void_p).value or 0
    except (OSError, AttributeError, TypeError):
        return 0


SCHED_YIELD = find_yield()


def new_barrier() -> npt.NDArray[np.int64]:
    """Return the state of a barrier: how often a thread arrived, and the address of `sched_yield`."""
    return np.array([0, SCHED_YIELD], np.int64)


def _count_of(context: Any, builder: Any, kind: Any, array: Any) -> Any:
    return context.make_array(kind)(context, builder, array).data


def _require_counter(array: Any) -> None:
    if not isinstance(array, types.Array) or array.layout != "C" or array.dtype != types.int64:
        raise TypingError(f"{array} is not a contiguous array of int64")


@intrinsic  # type: ignore[untyped-decorator]
def _arrive(typing_context: Any, state: Any) -> Any:
    """Add 1 to state[0], seen by all threads at once; return what it was."""
    _require_counter(state)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _count_of(context, builder, signature.args[0], arguments[0])
        return builder.atomic_rmw("add", place, ir.Constant(ir.IntType(64), 1), "acq_rel")

    return types.int64(state), generate


@intrinsic  # type: ignore[untyped-decorator]
def _arrived(typing_context: Any, state: Any) -> Any:
    """Read state[0]; what other threads wrote before they arrived can be read afterwards."""
    _require_counter(state)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load_atomic(_count_of(context, builder, signature.args[0], arguments[0]), "acquire", 8)

    return types.int64(state), generate


@intrinsic  # type: ignore[untyped-decorator]
def _yield(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = ir.FunctionType(ir.IntType(32), [])
        builder.call(builder.inttoptr(arguments[0], function.as_pointer()), [])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@compiled
def meet(state: npt.NDArray[np.int64], threads: int) -> None:
    """Wait until all `threads` threads have called this as often as the caller."""
    if threads == 1:
        return
    goal = (_arrive(state) // threads + 1) * threads
    spins = 0
    while _arrived(state) < goal:
        spins += 1
        if spins > SPINS and state[1] != 0:
            _yield(state[1])
