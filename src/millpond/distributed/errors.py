"""What can go wrong between ranks."""

from __future__ import annotations

from millpond.errors import MillpondError


class RankError(MillpondError):
    """Ranks that cannot work together."""

    exit_code = 1


class RankLostError(RankError):
    """A rank has died, or does not answer. One of those that are left says so; the others are `quiet`."""

    def __init__(self, message: str, *, quiet: bool = False) -> None:
        self.quiet = quiet
        super().__init__(message)


class FollowedError(MillpondError):
    """Rank 0 failed in something that all depend on, and says why; this rank just ends, with the same exit code."""

    quiet = True

    def __init__(self, message: str, exit_code: int) -> None:
        self.exit_code = exit_code
        super().__init__(message)
