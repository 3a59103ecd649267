"""Envs and policies that are passed to a run from Python: their names in its config, and where they are kept."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from millpond.config import Recipe
from millpond.config.check import overlay
from millpond.config.for_env import is_set
from millpond.envs.objects import is_object, name_of
from millpond.errors import MillpondError
from millpond.formatting import sentence

Passed = str | Callable[..., Any] | None
Objects = Mapping[str, Callable[..., Any]]  # by their names in a config

_of_runs: dict[Path, Objects] = {}  # objects of the runs that this process has trained, by folder


def keep_objects(run: Path, objects: Objects) -> None:
    """Remember the objects of a run, so that it can be evaluated and resumed in this process without passing them again."""
    if objects:
        _of_runs[run] = dict(objects)


def objects_of(run: Path) -> Objects:
    """Return the objects of a run that this process has trained."""
    return _of_runs.get(run, {})


def name_env(env: Passed) -> str | None:
    """Return the id of an env that is passed as an id, as a function that makes one, or as a class."""
    if env is None or isinstance(env, str):
        return env
    if not callable(env):
        raise _is_made(env)
    return name_of(env, "env")


def _is_made(env: object) -> MillpondError:
    name = type(getattr(env, "unwrapped", env)).__name__  # not that of a wrapper of gymnasium.make
    made = getattr(getattr(env, "spec", None), "id", None)
    asked = f'its id, its class, or a function that makes one, such as env="gymnasium:{made}"'
    if made is None:
        asked = f"its class, or a function that makes one, such as env=lambda: {name}(...)"
    return MillpondError(f"env is an object of {name}, but a run has many envs: pass {asked}")


def name_policy(policy: Passed) -> str | None:
    """Return the path of a policy that is passed as a dotted path, as a function that builds a module, or as a class."""
    if policy is None or isinstance(policy, str):
        return policy
    if isinstance(policy, nn.Module) or not callable(policy):
        raise MillpondError(
            f"policy is a {type(policy).__name__}: pass its class, or a function that builds it, since a loaded run builds it "
            "again. It is called as policy(observation, action, **settings), with as many of these as it takes"
        )
    return name_of(policy, "policy")


def settings_of(env: Passed, policy: Passed, settings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of a new run with an env and a policy, and the objects that its config names."""
    names = {"env.id": name_env(env), "policy.target": name_policy(policy)}
    if names["env.id"] == names["policy.target"] and is_object(names["env.id"]):
        names["policy.target"] = f"{names['policy.target']}_policy"  # two functions of one name
    merged = {**settings, **{key: name for key, name in names.items() if name is not None}}
    objects = {
        name: thing
        for name, thing in zip(names.values(), (env, policy), strict=True)
        if name is not None and is_object(name) and not isinstance(thing, str)
    }
    if is_object(names["env.id"]):
        nested = overlay({}, settings)
        backend = nested["vector"]["backend"] if is_set(nested, "vector.backend") else "auto"
        if backend not in ("inline", "auto"):
            raise MillpondError(
                f"vector.backend={backend}, but {_describe(env)} cannot be sent to workers: define it at the top level of a "
                "module, or leave vector.backend out"
            )
        merged["vector.backend"] = "inline"
    return merged, objects


def _describe(thing: Any) -> str:
    name = getattr(thing, "__qualname__", type(thing).__name__)
    return f"{'class' if inspect.isclass(thing) else 'function'} {name} of {getattr(thing, '__module__', '?')}"


def show_objects(env: Passed, objects: Objects) -> list[str]:
    """Return lines about objects that no other process can import."""
    if not objects:
        return []
    listed = ", ".join(objects)
    lines = sentence(
        f"{listed}: passed as an object that other processes cannot import, so a later `millpond.resume`, `millpond.load` or "
        f"`millpond.evaluate` has to be passed it again. A function or class at the top level of a module can be imported.",
        0,
    )
    if is_object(name_env(env)):
        lines = [*lines, *sentence("Its envs are stepped in the trainer's process (vector.backend=inline).", 0)]
    return lines


def as_arguments(recipe: Recipe, objects: Objects) -> str:
    """Return the objects of a run as the arguments with which they are passed again: env=Ball, policy=Net."""
    keys = (("env", recipe.env.id), ("policy", recipe.policy.target or ""))
    return ", ".join(f"{argument}={name.partition(':')[2]}" for argument, name in keys if name in objects)


def objects_to_bind(
    recipe: Recipe, run: str, kept: Objects, env: Passed, policy: Passed
) -> dict[str, Callable[..., Any]]:
    """Return the objects that the config of a run names: those passed now, else those that this process has kept.

    An env or policy that the run does not have is refused: it keeps what it was trained with.
    """
    bound = dict(kept)
    for argument, key, thing, configured in (
        ("env", "env.id", env, recipe.env.id),
        ("policy", "policy.target", policy, recipe.policy.target),
    ):
        name = name_env(thing) if argument == "env" else name_policy(thing)
        if name is None or (name == configured and not is_object(name)):
            continue
        if configured is None or not is_object(configured) or isinstance(thing, str) or thing is None:
            raise MillpondError(
                f"run {run!r} was trained with {key}={configured}, not with {argument}={name}; leave {argument} out, or pass "
                f"it to a new run"
            )
        bound[configured] = thing
    return bound
