"""Families of worlds and what is known of each from its id alone, before anything is imported."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """`single_agent`: there is one agent an env, always. `partial_step`: a part of the envs can be stepped alone."""

    name: str
    form: str  # of an id
    extra: str | None = None
    single_agent: bool = False
    partial_step: bool = True


FAMILIES = {
    family.name: family
    for family in (
        Family("grid", "grid"),
        Family("recall", "recall", single_agent=True),
        Family("truncation", "truncation", single_agent=True),
        Family("mettagrid", "mettagrid", extra="metta"),
        Family("gymnasium", "gymnasium:ID", single_agent=True),
        Family("pettingzoo", "pettingzoo:MODULE", extra="pettingzoo"),
        Family("atari", "atari:GAME", extra="atari", single_agent=True, partial_step=False),
        Family("minatar", "minatar:GAME", extra="minatar", single_agent=True),
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
