"""What a device needs besides `torch.device`: random generators and pinned memory, and an emulated device for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from millpond.errors import MillpondError

if TYPE_CHECKING:
    import torch
    from torch import nn

Module = TypeVar("Module", bound="nn.Module")
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


def has_float64(device: torch.device) -> bool:
    """False for devices without float64: MPS, and the emulated one where it is set so."""
    if is_emulated(device):
        from millpond.devices.emulated import refuses_float64

        return not refuses_float64()
    return device.type != "mps"


def precise_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype of few numbers that need to be precise: float64 wherever it exists, else float32."""
    import torch

    return torch.float64 if has_float64(device) else torch.float32


def to_device(module: Module, device: torch.device) -> Module:
    """Move a module to a device; buffers in float64, such as running means, become float32 on one that has no float64."""
    import torch

    if not has_float64(device):
        for part in module.modules():
            for name, buffer in part.named_buffers(recurse=False):
                if buffer.dtype == torch.float64:
                    setattr(part, name, buffer.float())
    return module.to(device)


def saved(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy for a checkpoint, in the memory of the CPU: a second one may not fit on a device."""
    return tensor.detach().to("cpu", copy=True)


def pinned_bytes(count: int, device: torch.device) -> torch.Tensor:
    """Return bytes of host memory that `device` copies from and to without waiting; ordinary memory for the CPU."""
    import torch

    if is_emulated(device):
        from millpond.devices.emulated import pin

        return pin(torch.zeros(count, dtype=torch.uint8))
    return torch.zeros(count, dtype=torch.uint8, pin_memory=device.type == "cuda")
