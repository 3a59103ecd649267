"""Decide whether the code that a config names may be imported: ask on a terminal, refuse without one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from millpond.config.code import NamedCode
from millpond.errors import MillpondError
from millpond.trust.locations import in_project, locations_of
from millpond.trust.own_runs import is_own_run, mark_as_own

LONGEST = 200  # characters of a name or an argument that are shown


class TrustError(MillpondError):
    """A recipe file or a run folder names code that the user has not trusted. `code` lists it, for messages."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


def untrusted(code: Sequence[NamedCode], *, run: Path | None = None) -> list[NamedCode]:
    """Return the code that may be imported only if the user agrees.

    That is code which a file names (not the user's own words, nor a packaged recipe), unless it lies in the user's
    current project. `run` is the folder of the run whose config names it: the user's own runs may import everything.
    """
    foreign = [one for one in code if one.source is not None and not in_project(one, run)]
    return [] if foreign and run is not None and is_own_run(run, code) else foreign


def require_trust(code: Sequence[NamedCode], trust: bool | None = None, *, run: Path | None = None) -> None:
    """Raise TrustError unless all code that a config names may be imported; nothing is imported here.

    `trust`: True allows everything, False refuses what is not trusted already, None asks if there is a terminal. A yes
    makes a run the user's own.
    """
    foreign = [] if trust else untrusted(code, run=run)
    if not foreign:
        return
    listed = ", ".join(f"{one.key}={shown(one.value)} (from {_from(one)})" for one in foreign)
    if trust is None and sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty():
        if not _ask(foreign, run):
            raise TrustError(f"not trusted, so nothing was imported: {listed} of {_origin(foreign, run)}", listed)
        if run is not None:
            mark_as_own(run, code)
        return
    raise TrustError(
        f"{_origin(foreign, run)} names code that is neither in your current project nor of a run that you started here: "
        f"{listed}. It would run with all your rights. If you trust it, add --trust (in Python: trust=True)",
        listed,
    )


def _ask(foreign: Sequence[NamedCode], run: Path | None) -> bool:
    """Show what would be imported, and return the answer; anything but yes is no."""
    lines = [f"{_origin(foreign, run)} names code that would be imported and run with all your rights:"]
    for one in foreign:
        lines += [f"  {one.key} = {shown(one.value)}", f"    from {_from(one)}"]
        if one.arguments:
            lines.append(f"    with {shown(', '.join(f'{name}={value!r}' for name, value in one.arguments.items()))}")
    if run is not None:
        lines.append("You did not start this run here. If you agree, you will not be asked about it again.")
    print("\n".join(lines), "Run this code? [y/N] ", sep="\n", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _origin(foreign: Sequence[NamedCode], run: Path | None) -> str:
    if run is not None:
        return f"run folder {shown(str(run))}"
    return " and ".join(dict.fromkeys(shown(str(one.source)) for one in foreign))


def _from(code: NamedCode) -> str:
    return " or ".join(shown(str(location)) for location in locations_of(code)) or "nowhere: there is no such module"


def shown(text: str) -> str:
    """Return text of a stranger for a terminal: in one line, without control characters, not too long."""
    plain = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
    return plain if len(plain) <= LONGEST else f"{plain[: LONGEST - 3]}..."
