"""What can go wrong with a world that the user can mend."""

from __future__ import annotations

from types import ModuleType

from millpond.envs.families import install_command, missing_extra
from millpond.errors import MillpondError


class EnvError(MillpondError):
    """A world that cannot be made or used as asked; the message says why and what to do."""


def unsavable(env_id: str, verb: str) -> EnvError:
    """The refusal of a world whose state cannot be `saved` or `restored`."""
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
