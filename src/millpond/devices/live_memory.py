"""Bytes of the emulated device's memory that are in use: now, and at the peak.

A block counts from the first tensor in it to the last. Kernels' own working memory is not seen, and neither is what an
allocator rounds up or keeps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class LiveMemory:
    """Bytes of the blocks that tensors are in; only those that are made while it is active."""

    def __init__(self) -> None:
        self.bytes = self.peak = 0
        self._tensors: Counter[int] = Counter()  # in each block, by its address

    def add(self, address: int, nbytes: int) -> None:
        self._tensors[address] += 1
        if self._tensors[address] == 1:
            self.bytes += nbytes
            self.peak = max(self.peak, self.bytes)

    def remove(self, address: int, nbytes: int) -> None:
        self._tensors[address] -= 1
        if self._tensors[address] == 0:
            del self._tensors[address]
            self.bytes -= nbytes

    def reset_peak(self) -> None:
        self.peak = self.bytes


class HeldBlock:
    """A tensor's share of its block, which ends with the tensor."""

    __slots__ = ("address", "memory", "nbytes")

    def __init__(self, memory: LiveMemory, address: int, nbytes: int) -> None:
        self.memory, self.address, self.nbytes = memory, address, nbytes
        memory.add(address, nbytes)

    def __del__(self) -> None:
        self.memory.remove(self.address, self.nbytes)


_active: list[LiveMemory] = []


@contextmanager
def measuring_memory() -> Iterator[LiveMemory]:
    """Measure the memory of tensors that are made within this context."""
    memory = LiveMemory()
    _active.append(memory)
    try:
        yield memory
    finally:
        _active.remove(memory)


def hold(host: torch.Tensor) -> HeldBlock | None:
    """Note that a tensor of the device has its numbers in `host`; None if nobody measures."""
    if not _active:
        return None
    storage = host.untyped_storage()
    return HeldBlock(_active[-1], storage.data_ptr(), storage.nbytes()) if storage.nbytes() else None
