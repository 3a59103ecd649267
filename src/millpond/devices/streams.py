"""Streams and events of a device: CUDA's, or those of the emulated device, with one interface.

A device without them (MPS) computes and copies in order: `make_stream` returns None.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch

from millpond.devices import is_emulated


class DeviceEvent(Protocol):
    """A point in the work of a stream."""

    def record(self, stream: Any) -> None:
        """Mark what the stream has been given so far."""

    def synchronize(self) -> None:
        """Let the host wait until the marked work is done."""


class DeviceStream(Protocol):
    """Work that a device does in order, next to that of other streams."""

    def wait_event(self, event: Any) -> None:
        """Do later work after what the event marks; the host does not wait."""


def make_stream(device: torch.device) -> DeviceStream | None:
    """Return a new stream of a device; None if it has none."""
    if device.type == "cuda":
        stream: DeviceStream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return stream
    if is_emulated(device):
        from millpond.devices.emulated_streams import EmulatedStream

        return EmulatedStream()
    return None


def make_event(device: torch.device) -> DeviceEvent:
    """Return an event of a device that has streams."""
    if device.type == "cuda":
        event: DeviceEvent = torch.cuda.Event()  # type: ignore[no-untyped-call]
        return event
    from millpond.devices.emulated_streams import EmulatedEvent

    return EmulatedEvent()


def computing_stream(device: torch.device) -> DeviceStream:
    """Return the stream on which a device that has streams computes now."""
    if device.type == "cuda":
        return torch.cuda.current_stream(device)
    from millpond.devices.emulated_streams import current_stream

    return current_stream()


def on_stream(stream: Any) -> AbstractContextManager[Any]:
    """Give what is started in this context to a stream; None: to that which computes."""
    if stream is None:
        return nullcontext()
    if isinstance(stream, torch.cuda.Stream):
        return torch.cuda.stream(stream)
    from millpond.devices.emulated_streams import on_emulated_stream

    return on_emulated_stream(stream)
