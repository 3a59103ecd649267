"""Disks that fail: errors, short writes and the death of the process at the n-th call that changes a file.

faults = DiskFaults("EIO", at=17)
with DiskCalls(folder, faults=faults) as calls:
    ...
calls.close_all()                # as the end of a process does

Kinds of faults:
    EIO, ENOSPC                  the call is not made and raises
    EIO onwards                  so do all later ones: the disk is gone
    ENOSPC onwards               so do all later ones that need space: the disk is full
    short                        a write writes a part, and says so
    short, then ENOSPC           ... and the next write is refused
    torn                         a write writes a part and raises EIO
    kill                         the process dies before the call: nothing changes any more
    torn kill                    ... after a part of a write
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from tests.support.disk_calls import BROKEN, DATA, NO_SPACE, DiskCall

ANY_CALL = ("EIO", "ENOSPC", "EIO onwards", "ENOSPC onwards", "kill")
WRITES_ONLY = ("short", "short, then ENOSPC", "torn", "torn kill")
KINDS = (*ANY_CALL, *WRITES_ONLY)


class Killed(BaseException):
    """The death of a simulated process: no code may catch it and continue."""


@dataclass
class DiskFaults:
    """One fault. `at` counts calls that change the disk, from 1; with 0 nothing fails, and calls are only counted.

    `process`: end this process with `os._exit`, instead of raising `Killed`.
    """

    kind: str = ""
    at: int = 0
    process: bool = False
    calls: list[str] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)  # numbers of the calls that write two bytes or more
    injected: int = 0
    dead: bool = False

    def make(self, call: DiskCall) -> Any:
        if self.dead:
            if call.name == "close" or not call.changes:
                return call.make()
            raise Killed
        if not call.changes:
            return call.make()
        self.calls.append(str(call))
        number = len(self.calls)
        if call.nbytes > 1:
            self.writes.append(number)
        if self.at and (number == self.at or (number > self.at and self._again(call))):
            return self._inject(call)
        return call.make()

    def _again(self, call: DiskCall) -> bool:
        """Return True if a call after the first failed one fails, too."""
        if self.kind == "short, then ENOSPC":
            return self.injected == 1 and call.name in DATA
        return self.kind == "EIO onwards" or (self.kind == "ENOSPC onwards" and call.takes_space)

    def _inject(self, call: DiskCall) -> Any:
        if self.kind in WRITES_ONLY and call.nbytes < 2:
            return call.make()
        self.injected += 1
        part = call.nbytes // 2
        if self.kind == "short" or (self.kind == "short, then ENOSPC" and self.injected == 1):
            return call.make(part)
        if self.kind in ("torn", "torn kill"):
            call.make(part)
        if self.kind in ("kill", "torn kill"):
            if self.process:
                os._exit(9)
            self.dead = True
            if call.name == "close":
                call.make()
            raise Killed
        raise call.fail(NO_SPACE if "ENOSPC" in self.kind else BROKEN)


def every_fault(clean: DiskFaults) -> list[tuple[str, int]]:
    """Return the kind and place of every fault that a session without faults could have met."""
    anywhere = [(kind, at) for kind in ANY_CALL for at in range(1, len(clean.calls) + 1)]
    return anywhere + [(kind, at) for kind in WRITES_ONLY for at in clean.writes]
