"""The machine for which a plan is made: cores, memory, devices."""

from __future__ import annotations

from dataclasses import dataclass

from millpond.cores import memory_bytes, usable_cores
from millpond.errors import MillpondError


class DeviceError(MillpondError):
    """The device is not available on this machine."""


@dataclass(frozen=True)
class Host:
    """Cores that this process may use, and memory in bytes (0: not known)."""

    cores: int
    memory: int

    @staticmethod
    def here() -> Host:
        return Host(usable_cores(), memory_bytes())


def require_device(device: str) -> None:
    """Raise DeviceError if torch cannot use the device on this machine. torch is imported only for devices other than cpu."""
    if device == "cpu":
        return
    import torch

    if device == "mps":
        if not torch.backends.mps.is_available():
            raise DeviceError("device=mps: torch finds no Apple GPU (MPS) on this machine; try device=cpu")
        return
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        built = torch.version.cuda is not None or torch.version.hip is not None
        why = "torch finds no GPU on this machine" if built else f"torch {torch.__version__} is built without CUDA"
        raise DeviceError(f"device={device}: {why}; try device=cpu")
    number = int(device.partition(":")[2] or 0)
    if number >= count:
        gpus = "one GPU, cuda:0" if count == 1 else f"{count} GPUs, cuda:0 to cuda:{count - 1}"
        raise DeviceError(f"device={device}: this machine has {gpus}; try device=cuda:{count - 1}")
