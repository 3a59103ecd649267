"""What can go wrong with a lake, each with what to do about it."""

from __future__ import annotations

from millpond.errors import MillpondError


class LakeError(MillpondError):
    """A lake cannot do what it was asked."""


class LakeFull(LakeError):
    """There is no space for an append. Nothing of it was kept, and nothing acknowledged was touched."""

    exit_code = 1


class LakeBusy(LakeError):
    """Another writer holds the stream."""


class LakeDamaged(LakeError):
    """Bytes on disk do not match their checksum. They are never returned as data."""

    exit_code = 1


class PondFull(MillpondError):
    """A pond would overwrite transitions that were not poured yet."""
