"""What can go wrong with run folders and checkpoints."""

from millpond.errors import MillpondError


class RunError(MillpondError):
    """A run folder that is not there, is there already, or is in use."""


class NothingToPlayError(RunError):
    """A run that trains no agent, so that there is none to evaluate or draw."""


class ResumeError(MillpondError):
    """A run cannot be taken up as asked."""


class CheckpointError(MillpondError):
    """A checkpoint that cannot be written or used."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint is not what was written: something is missing, or its bytes differ."""


class UnsafeCheckpointError(CheckpointError):
    """A checkpoint holds a pickle that could run code when loaded."""


class DiskFullError(CheckpointError):
    """There was no room for a checkpoint."""

    exit_code = 1  # the input was fine: the machine was not
