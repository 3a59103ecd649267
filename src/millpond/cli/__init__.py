"""The command `millpond`. Exit 0: success. 2: bad input, the message on stderr. 1: failure."""

from __future__ import annotations

import os
import sys

from millpond.errors import MillpondError


def main() -> None:
    """The entry point of the command line."""
    from millpond.cli.app import app

    sys.path.append(
        os.getcwd()
    )  # environments and policies of one's own, as module:name; last, so that it hides nothing
    try:
        try:
            app(prog_name="millpond")
        finally:
            sys.stdout.flush()  # here, where a full disk can still be told of
    except MillpondError as error:
        if not error.quiet:
            print(f"millpond: {_who()}{error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nothing more can be written there, nor at exit
        if not isinstance(error, BrokenPipeError):  # a reader that has gone, such as `head`, is no failure
            print(f"millpond: {error.strerror or error}", file=sys.stderr)
            sys.exit(1)


def _who() -> str:
    """Which rank speaks, where it is not the first."""
    from millpond.distributed.ranks import Place

    rank = Place.here().rank
    return f"rank {rank}: " if rank else ""
