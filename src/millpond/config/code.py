"""Code that a config names: every key whose value is imported and called, and the file that set it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millpond.config.recipe import EnvConfig
from millpond.envs.objects import OBJECT, is_object

DOTTED = re.compile(
    r"[A-Za-z_][\w.]*:[\w./-]+"
)  # as in `package.module:name`, and Gymnasium's `package.module:Name-v0`

# Values of one recipe file, preset or set of overrides, and the file they are from: None for the packaged recipes, and
# for what the user wrote on the command line or passed from Python.
Layer = tuple[Path | None, Mapping[str, Any]]


@dataclass(frozen=True)
class NamedCode:
    """One value of a config that is imported and called.

    `modules`    the modules that are tried, in order; none if the code is in `file`
    `library`    package whose own modules are part of an extra of Millpond; "" if there is none
    `function`   the name in the module; "" if the library decides it
    `arguments`  what it is called with
    `file`       a data file that names code itself
    `source`     the file that set the value; None if the user, or a packaged recipe, did
    """

    key: str
    value: str
    source: Path | None
    modules: tuple[str, ...] = ()
    library: str = ""
    function: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    file: Path | None = None


def named_code(env: EnvConfig | None, values: Mapping[str, Any], layers: Sequence[Layer]) -> tuple[NamedCode, ...]:
    """Return all code that a config names. `env` is its checked section; `layers` are in the order they were applied."""
    found = [] if env is None else list(_code_of_env(env, layers))
    policy = values.get("policy")
    target = policy.get("target") if isinstance(policy, Mapping) else None
    if isinstance(target, str) and not is_object(target):  # objects are passed, not imported
        module, _, function = target.partition(":")
        found.append(NamedCode("policy.target", target, _source("policy.target", layers), (module,), function=function))
    return tuple(found)


def _code_of_env(env: EnvConfig, layers: Sequence[Layer]) -> Iterator[NamedCode]:
    """Follow `millpond.envs.registry.make_env_batch`: an id of no family is imported as a custom environment."""
    family, _, name = env.id.partition(":")
    source = _source("env.id", layers)
    if env.id == "mettagrid" and env.mettagrid.config is not None:
        config, key = env.mettagrid.config, "env.mettagrid.config"
        module, colon, function = config.partition(":")
        if colon and not config.endswith((".yaml", ".yml", ".json")):
            yield NamedCode(key, config, _source(key, layers), (module,), function=function)
        else:  # MettaGrid imports the classes that the file names
            yield NamedCode(key, config, _source(key, layers), file=Path(config))
    elif family == "gymnasium" and name:
        module, colon, _ = name.partition(":")
        if colon:
            yield NamedCode("env.id", env.id, source, (module,), arguments=env.options)
        for key, value in _texts("env.options", env.options):  # such as env_id of Shimmy's adapters
            if DOTTED.fullmatch(value):
                yield NamedCode(key, value, _source(key, layers), (value.partition(":")[0],))
    elif family == "pettingzoo" and name:
        modules = (f"pettingzoo.{name}", name)
        yield NamedCode("env.id", env.id, source, modules, library="pettingzoo", arguments=env.options)
    elif name and family not in ("atari", "minatar", OBJECT):
        yield NamedCode("env.id", env.id, source, (family,), function=name, arguments=env.options)


def _texts(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield every text in nested options, with its key."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _texts(f"{key}.{name}", inner)
    elif isinstance(value, Sequence):
        for inner in value:
            yield from _texts(key, inner)


def _source(key: str, layers: Sequence[Layer]) -> Path | None:
    """Return the file that set a key last; None if it has its default."""
    for file, values in reversed(layers):
        inner: Any = values
        for part in key.split("."):
            inner = inner.get(part, _ABSENT) if isinstance(inner, Mapping) else _ABSENT
        if inner is not _ABSENT:
            return file
    return None


_ABSENT = object()
