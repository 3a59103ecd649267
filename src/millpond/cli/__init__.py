"""The command `millpond`. Exit codes: 0 success; 2 bad input, with a message on stderr; 1 failure."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from millpond.errors import MillpondError
from millpond.formatting import printable


def main() -> None:
    """Run the command line, as one process or as a rank of torchrun."""
    atexit.register(_skip_last_collection)
    if "WORLD_SIZE" in os.environ:
        from millpond.distributed.ranks import Place, run_and_end_process

        if Place.here().count > 1:
            run_and_end_process(_run)
    _run()


def _skip_last_collection() -> None:
    """Spare the last collection of all of torch's objects, which takes a second.

    Triton, if something imported it, would report objects that are then never collected.
    """
    if "triton" not in sys.modules:
        gc.freeze()


def _run() -> None:
    """Run the command; failures are reported on stderr and end in `SystemExit`."""
    with without_collections():
        from millpond.cli.app import app
        from millpond.cli.output import print_problem

    sys.path.append(os.getcwd())  # for custom environments and policies, as module:name; last, so that it hides nothing
    warnings.formatwarning = _warning_line
    try:
        try:
            app(prog_name="millpond")
        finally:
            sys.stdout.flush()  # here, where an error such as a full disk can still be reported
    except MillpondError as error:
        if not error.quiet:
            print_problem(f"{_rank_prefix()}{error}", one_line=error.one_line)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # stdout is unusable, also for the flush at exit
        if not isinstance(error, BrokenPipeError):  # a reader that has closed the pipe, such as `head`, is no failure
            where = f"{error.filename}: " if error.filename is not None else ""
            print_problem(f"{where}{error.strerror or error}")
            sys.exit(1)


@contextmanager
def without_collections() -> Iterator[None]:
    """Collect no garbage in this context. Imports make many objects and no garbage, so collections only slow them down."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _warning_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Return a warning as one line; names in it may come from a file."""
    return f"millpond: warning: {printable(str(message))}\n"


def _rank_prefix() -> str:
    """Return the name of this rank, if it is not the first, to begin a message with."""
    from millpond.distributed.ranks import Place

    rank = Place.here().rank
    return f"rank {rank}: " if rank else ""
