"""Errors of run folders and checkpoints."""

from millpond.errors import MillpondError


class RunError(MillpondError):
    """A run folder is missing, exists already, or is in use."""


class NothingToPlayError(RunError):
    """A run trains no agent, so there is none to evaluate or render."""


class ResumeError(MillpondError):
    """A run cannot be resumed as requested."""


class CheckpointError(MillpondError):
    """A checkpoint cannot be written or used."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint is not as it was written: a file is missing, or its bytes differ."""


class UnsafeCheckpointError(CheckpointError):
    """A checkpoint holds a pickle that could run code when loaded."""


class DiskFullError(CheckpointError):
    """The disk has no space for a checkpoint."""

    exit_code = 1  # the input was valid: the machine failed
