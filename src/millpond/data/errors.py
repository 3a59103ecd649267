"""What can be wrong with recorded episodes."""

from __future__ import annotations

from millpond.errors import MillpondError


class DataError(MillpondError):
    """A file of episodes is damaged, foreign or not as asked for; the message names the file, the place and the fix."""
