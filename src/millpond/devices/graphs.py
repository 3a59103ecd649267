"""Work of a device that is recorded once and started with one launch from then on: CUDA graphs, and their emulation.

Recorded work always reads and writes the same memory: what changes between replays is copied there before. It must not make
the host wait, and not copy between host and device; capturing such work raises. Memory of its results is overwritten by the
next replay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import torch

from millpond.devices import DeviceError, is_emulated

EAGER_CALLS = 3  # before the capture: libraries choose their kernels, and optimizers make their state
Result = TypeVar("Result")


class _Graph(Protocol):
    def replay(self) -> None: ...


def has_graphs(device: torch.device) -> bool:
    """Return True if work of a device can be captured."""
    return device.type == "cuda" or is_emulated(device)


class Replayed(Generic[Result]):
    """Work that is done as it is at first, then captured, and replayed at every later call."""

    def __init__(
        self, device: torch.device, work: Callable[[], Result], generator: torch.Generator | None = None
    ) -> None:
        """`generator`: random numbers that the work draws; each replay draws the next."""
        self.device, self.work, self.generator = device, work, generator
        self.calls = 0
        self._graph: _Graph | None = None
        self._result: Result
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def __call__(self) -> Result:
        self.calls += 1
        if self._graph is not None:
            self._graph.replay()
        elif self.calls <= EAGER_CALLS:
            return self._eagerly()
        else:
            self._capture()
        return self._result

    def _eagerly(self) -> Result:
        """Do the work on a stream of its own, as capturing does."""
        if self._stream is None:
            return self.work()
        current = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            result = self.work()
        current.wait_stream(self._stream)
        return result

    def _capture(self) -> None:
        """Record the work, and do it once."""
        try:
            if self.device.type != "cuda":
                from millpond.devices.emulated_graphs import record

                self._graph, self._result = record(self.work)
                return
            graph: Any = torch.cuda.CUDAGraph()
            if self.generator is not None:
                graph.register_generator_state(self.generator)
            # Other threads, such as that of pinned memory, may call CUDA meanwhile.
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                self._result = self.work()
        except RuntimeError as error:
            raise DeviceError(
                f"trainer.graphs=true, but this work cannot be captured: {error}. Most often a policy or an encoder makes the "
                "host wait for the device, or copies from it. Set trainer.graphs=false"
            ) from error
        graph.replay()
        self._graph = graph
