"""Errors of policies that a user can fix."""

from __future__ import annotations

from millpond.errors import MillpondError


class PolicyError(MillpondError):
    """A policy cannot be built, or does not fit its inputs."""
