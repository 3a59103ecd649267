"""The machine that a plan is judged against."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from millpond.cores import usable_cores
from millpond.errors import MillpondError


class DeviceError(MillpondError):
    """A device that this machine does not have."""


@dataclass(frozen=True)
class Host:
    """Cores that this process may use, memory in bytes (0: not known), and whether bfloat16 is in the processor."""

    cores: int
    memory: int
    bfloat16: bool = False

    @staticmethod
    def here() -> Host:
        cores = usable_cores()
        try:
            memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        except (ValueError, OSError, AttributeError):
            memory = 0
        return Host(cores, memory, _has_bfloat16())


def _has_bfloat16() -> bool:
    """Whether the processor has instructions for bfloat16; without them it is slower than float32."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").split()
    except OSError:
        return False
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags)


def require_device(device: str) -> None:
    """Refuse a device that torch cannot use on this machine. torch is imported only where the device is not the CPU."""
    if device == "cpu":
        return
    import torch

    if device == "mps":
        if not torch.backends.mps.is_available():
            raise DeviceError("device=mps: torch finds no GPU of Apple's (MPS) on this machine; try device=cpu")
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
