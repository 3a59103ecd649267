"""PufferLib's `.ini` files as text: sections, keys and values, whatever the version."""

from __future__ import annotations

import ast
import configparser
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millpond.config.recipe import whole_number
from millpond.config.yaml import RecipeFileError

AGENTS_OPEN = (
    "the file does not set the number of agents per env (PufferLib asks the env); 1 is assumed: "
    "set env.num_agents=N or --agents-from ENV"
)

# Keys of every version that are copied unchanged -> their name here.
SAME = {
    "train.total_timesteps": "trainer.total_timesteps",
    "train.minibatch_size": "trainer.minibatch_size",
    "train.learning_rate": "ppo.learning_rate",
    "train.min_lr_ratio": "ppo.min_lr_ratio",
    "train.gamma": "ppo.gamma",
    "train.gae_lambda": "ppo.gae_lambda",
    "train.clip_coef": "ppo.clip_coef",
    "train.vf_coef": "ppo.vf_coef",
    "train.vf_clip_coef": "ppo.vf_clip_coef",
    "train.max_grad_norm": "ppo.max_grad_norm",
    "train.ent_coef": "ppo.ent_coef",
    "train.vtrace_rho_clip": "ppo.rho_clip",
    "train.vtrace_c_clip": "ppo.c_clip",
    "train.prio_alpha": "ppo.prio_alpha",
    "train.prio_beta0": "ppo.prio_beta0",
    "policy.hidden_size": "policy.hidden_size",
}


@dataclass(frozen=True)
class PufferConfig:
    """A PufferLib file, translated to keys of this package."""

    values: dict[str, Any]
    defaulted: dict[str, Any]
    ignored: tuple[str, ...]
    notes: tuple[str, ...]
    agents_open: bool  # the file does not set the number of agents
    version: str = "3.0"


def parse(text: str, source: str) -> dict[str, Any]:
    """Return the values of a file by `section.key`."""
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(text, source)
    except configparser.Error as error:
        raise RecipeFileError(f"{source} is not a PufferLib .ini file: {_said(error, text)}") from None
    if not any(parser.has_section(name) for name in ("base", "vec", "train", "env", "policy")):
        raise RecipeFileError(
            f"{source} is not a PufferLib .ini file: it has none of [base] [env] [vec] [train] [policy]"
        )
    return {
        f"{section}.{key}": _literal(value) for section in parser.sections() for key, value in parser[section].items()
    }


def _said(error: configparser.Error, text: str) -> str:
    """Return what is wrong with the text of a file, in one line."""
    if isinstance(error, configparser.MissingSectionHeaderError):
        return f"line {error.lineno} comes before any [section]: {error.line!r}"
    if isinstance(error, configparser.ParsingError):
        line = error.errors[0][0]  # beside it the line, quoted or not: that depends on the version of Python
        return f"line {line} is neither a [section] nor key = value: {text.splitlines()[line - 1]!r}"
    return str(error).splitlines()[0]


def _literal(text: str) -> Any:
    """Parse a value as PufferLib does: a Python literal if it is one, else a string."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text.strip()


def whole(settings: Mapping[str, Any], key: str, source: str) -> int:
    """Return a setting as a whole number >= 1."""
    try:
        number = whole_number(settings[key])
    except ValueError as error:
        raise RecipeFileError(f"{source}: {key}={settings[key]} {error}") from None
    if number < 1:
        raise RecipeFileError(f"{source}: {key}={number} must be >= 1")
    return number


def env_id(settings: Mapping[str, Any]) -> str:
    """Return the environment's id here; if it has none, its PufferLib name in the form of a custom environment."""
    package = str(settings.get("base.package") or "").strip()
    name = str(settings.get("base.env_name") or "").split()
    first = name[0] if name else "env"
    if package == "metta":
        return "mettagrid"
    if package == "atari":
        return f"atari:{first}"
    if package in ("classic_control", "minigrid", "box2d", "mujoco"):
        return f"gymnasium:{first}"
    return f"pufferlib.{package or 'environments'}:{first.replace('-', '_')}"


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted keys as the sections of a recipe."""
    nested: dict[str, Any] = {"kind": "ppo"}
    for key, value in flat.items():
        section, _, name = key.rpartition(".")
        (nested.setdefault(section, {}) if section else nested)[name] = value
    return nested
