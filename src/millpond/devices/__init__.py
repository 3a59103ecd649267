"""What a device needs besides `torch.device`: random generators and pinned memory, and an emulated device for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.errors import MillpondError

if TYPE_CHECKING:
    import torch

EMULATED = "emulated"


class DeviceError(MillpondError):
    """A device that a config names does not exist here."""


def is_emulated(device: torch.device | str) -> bool:
    """True for the device that `millpond.devices.emulated` adds to torch."""
    return (device if isinstance(device, str) else device.type).partition(":")[0] == EMULATED


def make_generator(device: torch.device | str, seed: int) -> torch.Generator:
    """Return a generator whose numbers a device can draw; the emulated one draws with the CPU's."""
    import torch

    return torch.Generator("cpu" if is_emulated(device) else device).manual_seed(seed)


def wide_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype of sums over many numbers: float64 on the CPU; float32 elsewhere, where float64 is slow or missing."""
    import torch

    return torch.float64 if device.type == "cpu" else torch.float32


def pinned_bytes(count: int, device: torch.device) -> torch.Tensor:
    """Return bytes of host memory that `device` copies from and to without waiting; ordinary memory for the CPU."""
    import torch

    if is_emulated(device):
        from millpond.devices.emulated import pin

        return pin(torch.zeros(count, dtype=torch.uint8))
    return torch.zeros(count, dtype=torch.uint8, pin_memory=device.type == "cuda")
