"""Errors of ponds and lakes."""

from __future__ import annotations

from millpond.errors import MillpondError


class LakeError(MillpondError):
    """Invalid input, or a request that a lake or pond cannot fulfil."""


class LakeFull(LakeError):
    """No space for an append. Nothing of it was stored, and nothing acknowledged was touched."""

    exit_code = 1


class LakeBusy(LakeError):
    """Another writer holds the stream."""


class LakeDamaged(LakeError):
    """Bytes on disk do not match their checksum. They are never returned as data."""

    exit_code = 1


class PondFull(MillpondError):
    """A pond would overwrite records that are not poured yet."""
