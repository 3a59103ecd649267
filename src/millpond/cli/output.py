"""Printing: plain text that any terminal takes, with headings set off where there is one."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from millpond.planner.lines import ascii_only


def print_text(text: str) -> None:
    """Text with box drawing where the terminal can show it; on a terminal, headings and alerts are bold."""
    if not _can_encode(text):
        encoding = sys.stdout.encoding or "ascii"
        text = ascii_only(text).encode(encoding, errors="replace").decode(encoding)
    if sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb":
        text = "\n".join(_styled(line) for line in text.splitlines())
    print(text)


def print_json(value: Any) -> None:
    """JSON for programs."""
    print(json.dumps(value, indent=2, default=str))


def _can_encode(text: str) -> bool:
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def _styled(line: str) -> str:
    if line.startswith("!! "):
        return f"\x1b[1;31m{line}\x1b[0m"
    is_heading = bool(line) and not line[0].isspace()
    return f"\x1b[1m{line}\x1b[0m" if is_heading else line
