"""Run the real command on a pseudo-terminal, and answer its question."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


def run_on_terminal(
    folder: Path, *arguments: str, answer: str, environment: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run `millpond ARGUMENTS` on a terminal on which `answer` is typed; return exit code and everything it printed."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "millpond", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
        start_new_session=True,
    )
    os.close(theirs)
    os.write(ours, answer.encode())
    printed = b""
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # the last process that had the terminal open has ended
            break
        if not data:
            break
        printed += data
    os.close(ours)
    return process.wait(), printed.decode(errors="replace").replace("\r\n", "\n")
