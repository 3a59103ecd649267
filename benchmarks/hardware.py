"""What a benchmark ran on, in one line, so that a figure is never without it."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def processor() -> str:
    """Model of the processor and number of cores."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="ascii", errors="replace").splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{models[0] if models else platform.processor() or platform.machine()}, {os.cpu_count()} cores"
