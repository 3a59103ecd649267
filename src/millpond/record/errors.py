"""What can go wrong with records."""

from millpond.errors import MillpondError


class RecordError(MillpondError):
    """A record that cannot be written or read."""
