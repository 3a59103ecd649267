"""Blocks of pinned memory through which a device and the host exchange named arrays: one copy for all of them.

n numbers of bytes
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from millpond.devices import pinned_bytes
from millpond.devices.streams import DeviceStream, computing_stream, make_event, make_stream, on_stream

ALIGNMENT = 64  # bytes
Array = npt.NDArray[Any]
_streams: dict[torch.device, DeviceStream | None] = {}  # for uploads, one per device


class BlockField(NamedTuple):
    """Shape and dtype of one array of a block."""

    shape: tuple[int, ...]
    dtype: Any  # of NumPy

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * int(np.dtype(self.dtype).itemsize)


def block_offsets(fields: Mapping[str, BlockField]) -> dict[str, int]:
    """Return where each array begins in a block, in bytes; "" is the size of the block."""
    offsets, end = {}, 0
    for name, field in fields.items():
        offsets[name] = end
        end += -(-field.nbytes // ALIGNMENT) * ALIGNMENT
    return {**offsets, "": max(end, ALIGNMENT)}


def upload_stream(device: torch.device) -> DeviceStream | None:
    """Return the stream on which uploads to a device are made."""
    if device not in _streams:
        _streams[device] = make_stream(device)
    return _streams[device]


class Uploads:
    """Named arrays that are sent to a device together.

    `open()`, then write to `arrays`, then `send()`; `tensors` are the same on the device, valid until the next `send`. What
    reads them is queued before `release()`, which lets the next copy begin.
    """

    def __init__(self, fields: Mapping[str, BlockField], device: torch.device) -> None:
        self.offsets = block_offsets(fields)
        self._pinned = pinned_bytes(self.offsets[""], device)
        self._block = torch.zeros(self.offsets[""], dtype=torch.uint8, device=device)
        self.arrays: dict[str, Array] = {}
        self.tensors: dict[str, Tensor] = {}
        for name, field in fields.items():
            some = slice(self.offsets[name], self.offsets[name] + field.nbytes)
            self.arrays[name] = self._pinned[some].numpy().view(field.dtype).reshape(field.shape)
            dtype = torch.from_numpy(self.arrays[name]).dtype
            self.tensors[name] = self._block[some].view(dtype).view(field.shape)
        self._device, self._stream = device, upload_stream(device)
        if self._stream is not None:
            self._copied, self._read = make_event(device), make_event(device)
            self.release()

    def open(self) -> None:
        """Wait until the last copy has left the host's memory, so that `arrays` may be written."""
        if self._stream is not None:
            self._copied.synchronize()

    def send(self, upto: int | None = None) -> None:
        """Copy the block, or its first bytes, to the device; work that is queued later sees it. The host does not wait."""
        some = slice(upto)
        if self._stream is None:
            self._block[some].copy_(self._pinned[some])
            return
        self._stream.wait_event(self._read)
        with on_stream(self._stream):
            self._block[some].copy_(self._pinned[some], non_blocking=True)
        self._copied.record(self._stream)
        computing_stream(self._device).wait_event(self._copied)

    def release(self) -> None:
        """Mark that everything which reads `tensors` is queued."""
        if self._stream is not None:
            self._read.record(computing_stream(self._device))


class Downloads:
    """Tensors of a device that are copied to the host together, into pinned memory."""

    def __init__(self, fields: Mapping[str, BlockField], device: torch.device) -> None:
        self.offsets, self._device = block_offsets(fields), device
        self._pinned = pinned_bytes(self.offsets[""], device)
        self._block = torch.zeros(self.offsets[""], dtype=torch.uint8, device=device)
        self._streams = upload_stream(device) is not None
        if self._streams:
            self._copied = make_event(device)
        self._host: dict[str, Tensor] = {}
        self._tensors: dict[str, Tensor] = {}
        for name, field in fields.items():
            some = slice(self.offsets[name], self.offsets[name] + field.nbytes)
            dtype = torch.from_numpy(np.empty(0, field.dtype)).dtype
            self._host[name] = self._pinned[some].view(dtype).view(field.shape)
            self._tensors[name] = self._block[some].view(dtype).view(field.shape)
        self._arrays = {name: tensor.numpy() for name, tensor in self._host.items()}

    def fetch(self, tensors: Mapping[str, Tensor]) -> dict[str, Array]:
        """Return arrays of the tensors; they are overwritten by the next call. The host waits for them."""
        if len(tensors) == 1:
            ((name, tensor),) = tensors.items()
            source, target = tensor.reshape(self._host[name].shape), self._host[name]
            if source.dtype != target.dtype or not source.is_contiguous():
                source = self._tensors[name].copy_(source)
        else:
            for name, tensor in tensors.items():
                self._tensors[name].copy_(tensor.reshape(self._tensors[name].shape))
            source, target = self._block, self._pinned
        target.copy_(source, non_blocking=self._streams)
        if self._streams:
            self._copied.record(computing_stream(self._device))
            self._copied.synchronize()
        return {name: self._arrays[name] for name in tensors}
