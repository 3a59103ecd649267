"""Families of environments and what is known of each from its id alone, before anything is imported."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Family:
    """`single_agent`: there is one agent an env, always. `partial_step`: a part of the envs can be stepped alone.

    `extra` of Millpond brings `module`, which its envs need; None where the base installation is enough.
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

LOOPED = ("gymnasium", "pettingzoo", "custom")  # one Python object an env, stepped in a loop


def family_of(env_id: str) -> Family | None:
    """The family of an id, or None where it has the form of none."""
    name, colon, rest = env_id.partition(":")
    if name in FAMILIES and name != "custom":
        family = FAMILIES[name]
        needs_rest = ":" in family.form
        return family if needs_rest == bool(colon and rest) else None
    if re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", env_id):
        return FAMILIES["custom"]
    return None


def missing_extra(env_id: str) -> str | None:
    """Return the extra that envs of this id need and that is not installed; None where nothing is missing."""
    family = family_of(env_id)
    if family is None or family.extra is None or importlib.util.find_spec(family.module) is not None:
        return None
    return family.extra


def install_command(extra: str) -> str:
    """Return the command that installs an extra of Millpond into the environment that runs this."""
    found = shutil.which("pip")
    own = found is not None and Path(found).parent == Path(sys.executable).parent
    return f"{'' if own else f'{sys.executable} -m '}pip install 'millpond[{extra}]'"
