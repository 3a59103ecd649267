"""Errors of learners."""

from __future__ import annotations

from millpond.errors import MillpondError


class LearnerError(MillpondError):
    """A learner does not fit its environment, config or saved state."""
