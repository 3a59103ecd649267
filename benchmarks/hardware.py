"""The hardware of a benchmark in one line, printed with every figure."""

from __future__ import annotations

import os

from millpond.processor import cpu_name


def processor() -> str:
    """Model of the processor and number of cores."""
    return f"{cpu_name()}, {os.cpu_count()} cores"
