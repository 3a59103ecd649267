"""Arrays of any shapes, sent to a device together: one copy from pinned memory, which the host does not wait for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from millpond.devices import pinned_bytes
from millpond.devices.staging import BlockField, block_offsets
from millpond.devices.streams import computing_stream, make_event, make_stream

Array = npt.NDArray[Any]
BLOCKS = 2  # pinned ones, used in turn, so that the host seldom waits for a copy


class Sender:
    """`send(arrays)` returns the same on the device, in new memory. On the CPU they share the arrays' memory.

    Copies are queued where the device computes, so that what is queued later sees them.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._asynchronous = device.type != "cpu" and make_stream(device) is not None
        self._pinned = [torch.empty(0, dtype=torch.uint8)] * BLOCKS
        self._copied = [make_event(device) if self._asynchronous else None for _ in range(BLOCKS)]
        self._next = 0

    def __call__(self, arrays: Mapping[str, Array]) -> dict[str, Tensor]:
        """Copy arrays to the device."""
        if self.device.type == "cpu":
            return {name: torch.from_numpy(array) for name, array in arrays.items()}
        fields = {name: BlockField(array.shape, array.dtype) for name, array in arrays.items()}
        offsets = block_offsets(fields)
        places = {name: slice(offsets[name], offsets[name] + field.nbytes) for name, field in fields.items()}
        size, number = offsets[""], self._next
        self._next = (number + 1) % BLOCKS
        copied = self._copied[number]
        if copied is not None:
            copied.synchronize()  # the block's last copy, two calls ago
        if len(self._pinned[number]) < size:
            self._pinned[number] = pinned_bytes(1 << (size - 1).bit_length(), self.device)
        block = self._pinned[number][:size]
        host = block.numpy()
        for name, array in arrays.items():
            host[places[name]].view(array.dtype).reshape(array.shape)[...] = array
        sent = torch.empty(size, dtype=torch.uint8, device=self.device)
        sent.copy_(block, non_blocking=copied is not None)
        if copied is not None:
            copied.record(computing_stream(self.device))
        return {
            name: sent[places[name]].view(torch_dtype(fields[name].dtype)).view(fields[name].shape) for name in arrays
        }


def torch_dtype(dtype: Any) -> torch.dtype:
    """Return torch's dtype for one of NumPy."""
    return torch.from_numpy(np.empty(0, dtype)).dtype
