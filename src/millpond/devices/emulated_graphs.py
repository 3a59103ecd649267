"""Captured graphs of the emulated device: a list of operations that is computed again, into the same memory.

What a capture refuses on a GPU is refused here, too: waits, and copies between host and device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch.utils._pytree import tree_flatten

from millpond.devices.counts import Kind, count
from millpond.devices.emulated_streams import used

Result = TypeVar("Result")


class CaptureError(RuntimeError):
    """Captured work waits for the device, or copies between it and the host."""


class Operation(NamedTuple):
    """A function of tensors of the CPU, its arguments, and the tensors that it returned."""

    function: Callable[..., Any]
    args: Any
    kwargs: dict[str, Any]
    result: list[torch.Tensor]


class EmulatedGraph:
    """Operations in the order in which they were computed."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    @torch.inference_mode()
    def replay(self) -> None:
        """Compute all operations again; results are written to where they were first."""
        count("launch", "replay of a graph")
        for operation in self.operations:
            used(tensors((operation.args, operation.kwargs)))
            found = _new(operation.function(*operation.args, **operation.kwargs), operation.args, operation.kwargs)
            for target, new in zip(operation.result, found, strict=True):
                target.copy_(new)


_recording: EmulatedGraph | None = None


def record(work: Callable[[], Result]) -> tuple[EmulatedGraph, Result]:
    """Do work and return it as a graph, with its result."""
    global _recording
    _recording = graph = EmulatedGraph()
    try:
        return graph, work()
    finally:
        _recording = None


def note(function: Callable[..., Any], args: Any, kwargs: dict[str, Any], result: Any) -> None:
    """Add an operation to the graph that is being captured, if there is one. Results that are arguments are not copied."""
    if _recording is not None:
        _recording.operations.append(Operation(function, args, kwargs, _new(result, args, kwargs)))


def require_allowed(kind: Kind, operation: str) -> None:
    """Raise CaptureError for what a capture refuses."""
    if _recording is not None and kind != "launch":
        raise CaptureError(f"{operation} is a {kind}, which a captured graph cannot have")


def _new(result: Any, args: Any, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Return the tensors of a result that are no arguments."""
    given = {id(one) for one in tensors((args, kwargs))}
    return [one for one in tensors(result) if id(one) not in given]


def tensors(value: Any) -> list[torch.Tensor]:
    """Return the tensors in a result."""
    return [one for one in tree_flatten(value)[0] if isinstance(one, torch.Tensor)]
