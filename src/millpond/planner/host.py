"""The machine that a plan is judged against."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from millpond.cores import memory_bytes, usable_cores


@dataclass(frozen=True)
class Host:
    """Cores that this process may use, memory in bytes (0: not known), and whether bfloat16 is in the processor."""

    cores: int
    memory: int
    bfloat16: bool = False

    @staticmethod
    def here() -> Host:
        return Host(usable_cores(), memory_bytes(), _has_bfloat16())


def _has_bfloat16() -> bool:
    """Whether the processor has instructions for bfloat16; without them it is slower than float32."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").split()
    except OSError:
        return False
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags)
