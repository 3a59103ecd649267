"""Families of environments: what an env id says, the optional extra that its envs need, and how options are parsed.

`parse_options` builds a frozen dataclass from the options of an environment; `load_dotted` loads the object named
`package.module:name`.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import re
import shutil
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from millpond.envs.env_batch import EnvError
from millpond.envs.objects import OBJECT, find_object
from millpond.errors import MillpondError

Options = TypeVar("Options")


@dataclass(frozen=True)
class Family:
    """Facts that hold for every env of a family.

    `single_agent`  every env has one agent
    `partial_step`  a slice of the batch can be stepped alone
    `built_in`      its envs are Millpond's own code
    `extra`         the extra of Millpond that installs `module`, which the envs need; None if nothing is needed
    """

    name: str
    form: str  # of an id
    extra: str | None = None
    module: str = ""
    single_agent: bool = False
    partial_step: bool = True
    built_in: bool = False


FAMILIES = {
    family.name: family
    for family in (
        Family("grid", "grid", built_in=True),
        Family("recall", "recall", single_agent=True, built_in=True),
        Family("truncation", "truncation", single_agent=True, built_in=True),
        Family("mettagrid", "mettagrid", extra="metta", module="mettagrid"),
        Family("gymnasium", "gymnasium:ID", single_agent=True),
        Family("pettingzoo", "pettingzoo:MODULE", extra="pettingzoo", module="pettingzoo"),
        Family("atari", "atari:GAME", extra="atari", module="ale_py", single_agent=True, partial_step=False),
        Family("minatar", "minatar:GAME", extra="minatar", module="minatar", single_agent=True),
        Family("custom", "package.module:make_env"),
    )
}

# Gymnasium's envs that need the extra `mujoco`; listed here, since importing Gymnasium to ask it takes long.
MUJOCO_ENVS = {
    f"{name}-{version}"
    for version in ("v4", "v5")
    for name in [
        "Ant",
        "HalfCheetah",
        "Hopper",
        "Humanoid",
        "HumanoidStandup",
        "InvertedDoublePendulum",
        "InvertedPendulum",
        "Pusher",
        "Reacher",
        "Swimmer",
        "Walker2d",
    ]
}
# Likewise, those that need the extra `box2d`.
BOX2D_ENVS = {
    "BipedalWalker-v3",
    "BipedalWalkerHardcore-v3",
    "CarRacing-v3",
    "LunarLander-v3",
    "LunarLanderContinuous-v3",
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


def extra_of(env_id: str) -> tuple[str, str] | None:
    """Return the extra that envs of this id need and the module that it installs; None if nothing is needed."""
    family = family_of(env_id)
    if family is None:
        return None
    if family.name == "gymnasium":
        name = env_id.partition(":")[2]
        if name in BOX2D_ENVS:
            return "box2d", "Box2D"
        return ("mujoco", "mujoco") if name in MUJOCO_ENVS else None
    return None if family.extra is None else (family.extra, family.module)


def missing_extra(env_id: str) -> str | None:
    """Return the extra that envs of this id need and that is not installed; None if nothing is missing."""
    needed = extra_of(env_id)
    return needed[0] if needed is not None and importlib.util.find_spec(needed[1]) is None else None


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


def parse_options(kind: type[Options], options: Mapping[str, Any], *, env_id: str) -> Options:
    """Build the dataclass `kind` from a mapping. Unknown names and wrong types are errors.

    Only an int for a float and a list for a tuple are converted.
    """
    declared = {f.name: f for f in fields(kind)}  # type: ignore[arg-type]
    unknown = [name for name in options if name not in declared]
    if unknown:
        near = difflib.get_close_matches(str(unknown[0]), declared, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise EnvError(f"env {env_id!r} has no option {unknown[0]!r}{hint} Its options are: {', '.join(declared)}")
    missing = [
        n for n, f in declared.items() if n not in options and f.default is MISSING and f.default_factory is MISSING
    ]
    if missing:
        raise EnvError(f"env {env_id!r} needs the option {missing[0]!r}; give it in the section env")
    hints = typing.get_type_hints(kind)
    return kind(**{name: _typed(value, hints[name], name, env_id) for name, value in options.items()})


def _typed(value: Any, hint: Any, name: str, env_id: str) -> Any:
    for choice in _choices(hint):
        origin = typing.get_origin(choice) or choice
        if origin is typing.Literal:
            if value in typing.get_args(choice):
                return value
        elif origin is float and type(value) in (int, float):
            return float(value)
        elif origin is int and type(value) is int:
            return value
        elif origin is tuple and isinstance(value, list | tuple):
            return tuple(value)
        elif origin not in (int, float) and isinstance(origin, type) and isinstance(value, origin):
            return value
    expected = " or ".join(_name(choice) for choice in _choices(hint))
    raise EnvError(f"env {env_id!r}: option {name}={value!r} must be {expected}, not {type(value).__name__}")


def _choices(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return typing.get_args(hint)
    return (hint,)


def _name(choice: Any) -> str:
    if choice is type(None):
        return "null"
    if typing.get_origin(choice) is typing.Literal:
        return " or ".join(repr(value) for value in typing.get_args(choice))
    return getattr(typing.get_origin(choice) or choice, "__name__", str(choice))


def require(rule_holds: bool, env_id: str, message: str) -> None:
    """Raise an EnvError unless the rule holds; `message` names the option, its value, the rule and a fix."""
    if not rule_holds:
        raise EnvError(f"env {env_id!r}: {message}")


def _modules_here() -> list[str]:
    return [path.stem for path in Path.cwd().glob("*.py")]


def _near(name: str, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, names, n=3)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def load_dotted(path: str, *, key: str = "", error: type[MillpondError] = EnvError) -> Any:
    """Return the callable that `package.module:name` names, or that was passed from Python as `object:name`.

    `key`    the config key to name in error messages
    `error`  the class of the errors that are raised
    """
    setting = f"{key}={path!r}" if key else repr(path)
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise error(f"{setting} must be written package.module:name")
    if module_name == OBJECT:
        passed = find_object(path)
        if passed is None:
            argument = f"{'policy' if key == 'policy.target' else 'env'}={name}"
            raise error(
                f"{setting} was passed from Python as an object, and no other process can import it. Pass it again, in Python: "
                f"millpond.resume(run, {argument}), millpond.load(run, {argument}) or millpond.evaluate(run, {argument})"
            )
        return passed
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as missing:
        if missing.name is None or not (module_name == missing.name or module_name.startswith(f"{missing.name}.")):
            raise
        if module_name.startswith("pufferlib."):
            raise error(
                f"{setting} is an environment of PufferLib, which is not installed; name another with env.id=ID "
                "(millpond envs lists what there is)"
            ) from missing
        raise error(
            f"{setting}: there is no module {missing.name!r}; it must be on the Python path "
            f"(run from its folder with PYTHONPATH=. or install it){_near(module_name, _modules_here())}"
        ) from missing
    target: Any = module
    for part in name.split("."):
        if not hasattr(target, part):
            raise error(f"{setting}: module {module_name} has no {name!r}{_near(part, dir(target))}")
        target = getattr(target, part)
    if not callable(target):
        raise error(f"{setting} is a {type(target).__name__}, not a function or class")
    return target
