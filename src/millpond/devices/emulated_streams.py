"""Streams of the emulated device, which show races: what a GPU may read or write too early or too late raises or is wrong here.

An asynchronous copy is started at once and ends as late as the program allows:

    upload     on a stream of its own: the device sees poison until its stream has waited for an event after the copy
               the host's memory must stay unchanged until the host has waited for such an event: else `RaceError`
               the target must not be in use: the copy's stream has waited for an event after its last use: else `RaceError`
    download   the host sees poison until it has waited for an event after the copy
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

POISON = 0x5A  # each byte of memory that a copy has not reached; as float32 it is 1.5e16


class RaceError(RuntimeError):
    """Memory was overwritten while a copy or a kernel may still use it."""


class PendingCopy:
    """An asynchronous copy from `source` to `target`, both in the memory of the CPU."""

    def __init__(self, target: torch.Tensor, source: torch.Tensor, *, to_device: bool) -> None:
        self.target, self.source, self.to_device = target, source, to_device
        self.content = source.clone()
        self._arrived, self._ended = False, False

    def poison(self) -> None:
        if self.target.is_contiguous() and self.target.dtype != torch.bool:
            self.target.view(-1).view(torch.uint8).fill_(POISON)
        else:
            self.target.fill_(POISON)

    def arrive(self) -> None:
        """Let the content reach the target."""
        if not self._arrived:
            self._arrived = True
            self.target.copy_(self.content)

    def end(self) -> None:
        """The host has waited for the copy: from now on it may write to its memory."""
        self.arrive()
        if not self._ended:
            self._ended = True
            self.require_unchanged()

    def require_unchanged(self) -> None:
        if self.to_device and not torch.equal(bits(self.source), bits(self.content)):
            raise RaceError(
                f"pinned memory of shape {tuple(self.source.shape)} was overwritten before its asynchronous copy to the "
                "device had ended; wait for an event that is recorded after the copy"
            )


class EmulatedStream:
    """Copies of one stream that have not ended, and how much of the computing it has waited for."""

    def __init__(self) -> None:
        self.copies: list[PendingCopy] = []
        self.seen = 0

    def wait_event(self, event: EmulatedEvent) -> None:
        self.seen = max(self.seen, event.clock)
        for copy in event.copies:
            if copy.to_device:
                copy.arrive()


class EmulatedEvent:
    """The copies of a stream before it, and the kernels before it if it was recorded on the stream that computes."""

    def __init__(self) -> None:
        self.copies: list[PendingCopy] = []
        self.clock = 0

    def record(self, stream: EmulatedStream) -> None:
        self.copies = list(stream.copies)
        self.clock = _clock if stream is COMPUTING else stream.seen

    def synchronize(self) -> None:
        for copy in self.copies:
            copy.end()
        for stream in (COMPUTING, *_streams):
            stream.copies = [copy for copy in stream.copies if not copy._ended]


COMPUTING = EmulatedStream()
_streams: list[EmulatedStream] = []  # those that are in use by `on_emulated_stream`
_current: list[EmulatedStream] = [COMPUTING]
_clock = 0
_last_use: dict[int, int] = {}  # clock of the last kernel on memory that side streams write, by its address


def current_stream() -> EmulatedStream:
    return _current[-1]


@contextmanager
def on_emulated_stream(stream: EmulatedStream) -> Iterator[None]:
    """Give copies in this context to a stream."""
    if stream not in _streams:
        _streams.append(stream)
    _current.append(stream)
    try:
        yield
    finally:
        _current.pop()


def used(tensors: list[torch.Tensor]) -> None:
    """Note that a kernel uses these tensors of the CPU."""
    global _clock
    _clock += 1
    if _last_use:
        for tensor in tensors:
            address = tensor.untyped_storage().data_ptr()
            if address in _last_use:
                _last_use[address] = _clock


def start_upload(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy from pinned memory to the device without waiting."""
    stream = current_stream()
    for copy in stream.copies:
        if overlap(copy.source, source):
            copy.require_unchanged()
    pending = PendingCopy(target, source, to_device=True)
    if stream is COMPUTING:
        pending.arrive()
    else:
        address = target.untyped_storage().data_ptr()
        if _last_use.setdefault(address, 0) > stream.seen:
            raise RaceError(
                f"memory of the device of shape {tuple(target.shape)} is overwritten by a copy on another stream while a "
                "kernel may still read it; let the stream wait for an event that is recorded after the kernel"
            )
        pending.poison()
    stream.copies.append(pending)


def start_download(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy from the device to pinned memory without waiting."""
    pending = PendingCopy(target, source, to_device=False)
    pending.poison()
    current_stream().copies.append(pending)


def host_waits() -> None:
    """The host waits for the stream that computes, and so for its copies."""
    for copy in COMPUTING.copies:
        copy.end()
    COMPUTING.copies.clear()


def overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True if two contiguous tensors share memory."""
    begin, start = one.data_ptr(), other.data_ptr()
    return begin < start + other.nbytes and start < begin + one.nbytes


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor: NaN equals NaN."""
    return tensor.contiguous().view(-1).view(torch.uint8)
