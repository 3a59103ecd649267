"""Run commands of `millpond` within the test process, as a user would see them: exit code, stdout and stderr."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from pathlib import Path
from typing import NamedTuple, TextIO

from millpond.cli import main


class Outcome(NamedTuple):
    """Result of a command. An exception that leaves `main` would be a traceback for the user; it is not caught."""

    code: int
    stdout: str
    stderr: str

    @property
    def errors(self) -> list[str]:
        """Lines on stderr that are errors; warnings are left out."""
        lines = self.stderr.splitlines()
        return [line for line in lines if line.startswith("millpond: ") and not line.startswith("millpond: warning: ")]


def _print_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning as Python does, in the format of the command line."""
    print(warnings.formatwarning(message, category, filename, lineno, line), end="", file=sys.stderr)  # type: ignore[arg-type]


def run_command(folder: Path, *arguments: str) -> Outcome:
    """Run `millpond ARGUMENTS` in a folder."""
    stdout, stderr = io.StringIO(), io.StringIO()
    before = sys.argv, list(sys.path), warnings.formatwarning
    descriptor = os.dup(1)  # `main` replaces it after an error of the operating system
    sys.argv, code = ["millpond", *arguments], 0
    try:
        with (
            contextlib.chdir(folder),
            contextlib.redirect_stdout(stdout),
            contextlib.redirect_stderr(stderr),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("always")
            warnings.simplefilter("ignore", ResourceWarning)
            warnings.showwarning = _print_warning  # pytest collects warnings otherwise
            main()
    except SystemExit as exit:
        code = int(exit.code or 0)
    finally:
        sys.argv, sys.path[:], warnings.formatwarning = before
        os.dup2(descriptor, 1)
        os.close(descriptor)
    return Outcome(code, stdout.getvalue(), stderr.getvalue())
