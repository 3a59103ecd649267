"""Families of environments: what an env id alone says, and the optional extra that its envs need."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from millpond.envs.env_batch import EnvError


@dataclass(frozen=True)
class Family:
    """Facts that hold for every env of a family.

    `single_agent`  every env has one agent
    `partial_step`  a slice of the batch can be stepped alone
    `extra`         the extra of Millpond that installs `module`, which the envs need; None if nothing is needed
    """

    name: str
    form: str  # of an id
    extra: str | None = None
    module: str = ""
    single_agent: bool = False
    partial_step: bool = True


FAMILIES = {
    family.name: family
    for family in (
        Family("grid", "grid"),
        Family("recall", "recall", single_agent=True),
        Family("truncation", "truncation", single_agent=True),
        Family("mettagrid", "mettagrid", extra="metta", module="mettagrid"),
        Family("gymnasium", "gymnasium:ID", single_agent=True),
        Family("pettingzoo", "pettingzoo:MODULE", extra="pettingzoo", module="pettingzoo"),
        Family("atari", "atari:GAME", extra="atari", module="ale_py", single_agent=True, partial_step=False),
        Family("minatar", "minatar:GAME", extra="minatar", module="minatar", single_agent=True),
        Family("custom", "package.module:make_env"),
    )
}

LOOPED = ("gymnasium", "pettingzoo", "custom")  # one Python object per env, stepped in a loop


def family_of(env_id: str) -> Family | None:
    """Return the family of an id, or None if the id has the form of no family."""
    name, colon, rest = env_id.partition(":")
    if name in FAMILIES and name != "custom":
        family = FAMILIES[name]
        needs_rest = ":" in family.form
        return family if needs_rest == bool(colon and rest) else None
    if re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", env_id):
        return FAMILIES["custom"]
    return None


def missing_extra(env_id: str) -> str | None:
    """Return the extra that envs of this id need and that is not installed; None if nothing is missing."""
    family = family_of(env_id)
    if family is None or family.extra is None or importlib.util.find_spec(family.module) is not None:
        return None
    return family.extra


def install_command(extra: str) -> str:
    """Return the command that installs an extra of Millpond for the running interpreter."""
    pip = shutil.which("pip")
    is_ours = pip is not None and Path(pip).parent == Path(sys.executable).parent
    return f"{'' if is_ours else f'{sys.executable} -m '}pip install 'millpond[{extra}]'"


def require_extra(env_id: str) -> None:
    """Raise an error with the install command if the extra of this env is missing."""
    extra = missing_extra(env_id)
    if extra is not None:
        raise _missing(env_id, extra)


def _missing(env_id: str, extra: str) -> EnvError:
    return EnvError(
        f"env {env_id!r} needs the extra {extra!r}, which is not installed; install it with: {install_command(extra)}"
    )


def import_extra(module: str, *, extra: str, env_id: str) -> ModuleType:
    """Import a module of an optional extra, or raise an error that names the extra and how to install it.

    An installed module that fails during import raises its own error: that is not a missing extra.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise _missing(env_id, extra) from error
