"""Errors of policies that a user can mend."""

from __future__ import annotations

from millpond.errors import MillpondError


class PolicyError(MillpondError):
    """A policy cannot be built from, or does not fit, what it was given."""
