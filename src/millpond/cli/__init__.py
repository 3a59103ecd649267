"""The command `millpond`. Exit 0: success. 2: bad input, the message on stderr. 1: failure."""

from __future__ import annotations

import os
import sys

from millpond.errors import MillpondError


def main() -> None:
    """The entry point of the command line."""
    from millpond.cli.app import app

    try:
        app(prog_name="millpond")
    except MillpondError as error:
        print(f"millpond: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader, such as `head`, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
