"""Errors of learners that a user can mend."""

from __future__ import annotations

from millpond.errors import MillpondError


class LearnerError(MillpondError):
    """A learner cannot be built from, or does not fit, what it was given."""
