"""The command `millpond`. Exit codes: 0 success; 2 bad input, with a message on stderr; 1 failure."""

from __future__ import annotations

import os
import sys

from millpond.errors import MillpondError


def main() -> None:
    """Run the command line."""
    from millpond.cli.app import app

    sys.path.append(os.getcwd())  # for custom environments and policies, as module:name; last, so that it hides nothing
    try:
        try:
            app(prog_name="millpond")
        finally:
            sys.stdout.flush()  # here, where an error such as a full disk can still be reported
    except MillpondError as error:
        if not error.quiet:
            print(f"millpond: {_rank_prefix()}{error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # stdout is unusable, also for the flush at exit
        if not isinstance(error, BrokenPipeError):  # a reader that has closed the pipe, such as `head`, is no failure
            print(f"millpond: {error.strerror or error}", file=sys.stderr)
            sys.exit(1)


def _rank_prefix() -> str:
    """Return the name of this rank, if it is not the first, to begin a message with."""
    from millpond.distributed.ranks import Place

    rank = Place.here().rank
    return f"rank {rank}: " if rank else ""
