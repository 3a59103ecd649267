"""What can go wrong with an environment that the user can mend."""

from __future__ import annotations

import traceback
from pathlib import Path
from types import ModuleType

from millpond.envs.families import install_command, missing_extra
from millpond.errors import MillpondError


class EnvError(MillpondError):
    """An environment that cannot be made or used as asked; the message says why and what to do."""


def describe_error(error: Exception) -> str:
    """An error in one line: type, message, notes, and the line of somebody else's code that raised it."""
    notes = "; ".join(getattr(error, "__notes__", []))
    text = str(error) if isinstance(error, MillpondError) else f"{type(error).__name__}: {error}".removesuffix(": ")
    if isinstance(error, ModuleNotFoundError) and error.name:
        text += f"; install it, perhaps with: pip install {error.name.split('.')[0]}"
    frames = [] if isinstance(error, MillpondError) else traceback.extract_tb(error.__traceback__)
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}, in {frames[-1].name}" if frames else ""
    return f"{text}{''.join(f' ({part})' for part in (place, notes) if part)}"


def unsavable(env_id: str, verb: str) -> EnvError:
    """The refusal of an environment whose state cannot be `saved` or `restored`."""
    return EnvError(f"the state of env {env_id!r} cannot be {verb}; see spec.savable")


def require_extra(env_id: str) -> None:
    """Refuse envs whose extra is not installed, with the command that installs it."""
    extra = missing_extra(env_id)
    if extra is not None:
        raise _missing(env_id, extra)


def _missing(env_id: str, extra: str) -> EnvError:
    return EnvError(
        f"env {env_id!r} needs the extra {extra!r}, which is not installed; install it with: {install_command(extra)}"
    )


def import_extra(module: str, *, extra: str, env_id: str) -> ModuleType:
    """Import a module of an optional extra, or say which extra is missing and how to get it.

    A module that is there but fails while it is imported keeps its own error: that is not a missing extra.
    """
    import importlib

    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise _missing(env_id, extra) from error
