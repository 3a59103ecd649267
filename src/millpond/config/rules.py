"""Rules between keys: violations with their fixes, the error that lists them, and the rules of every kind of recipe.

A rule reads a flat mapping of values and yields violations, each with the nearest values that satisfy it. A rule that depends
on another one yields nothing while that one is violated.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import isqrt
from typing import Any

from millpond.envs.adapters import atari, minatar
from millpond.envs.families import FAMILIES, LOOPED, family_of
from millpond.errors import MillpondError
from millpond.kinds import KINDS

BACKEND, TRAINER_SHARE = "vector.backend", "vector.trainer_share"
LARGEST_MAP = 1_000  # cells per side
GAMES = {"atari": list(atari.MINIMAL_ACTIONS), "minatar": list(minatar.GAMES)}

Overrides = Mapping[str, Any]  # values by dotted key
Values = Mapping[str, Any]  # every key of a recipe by its dotted name
Rule = Callable[[Values], "Iterator[Violation]"]


def show(value: Any) -> str:
    """Format a value for a sentence: 4,096, true, null."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def as_override(key: str, value: Any) -> str:
    """Format a key and its value as they are typed on the command line."""
    if isinstance(value, bool) or value is None:
        return f"{key}={show(value)}"
    if isinstance(value, (list, tuple)):
        return f"{key}=[{','.join(str(item) for item in value)}]"
    if isinstance(value, Mapping):
        return " ".join(as_override(f"{key}.{name}", each) for name, each in value.items())
    return f"{key}={value}"


def as_overrides(fix: Overrides) -> str:
    """Format several keys as they are typed on the command line."""
    return " ".join(as_override(key, value) for key, value in fix.items())


@dataclass(frozen=True)
class Violation:
    """A rule that a config violates. `keys` are those that the rule reads; `fixes` are sets of overrides, best first."""

    keys: tuple[str, ...]
    message: str
    fixes: tuple[Overrides, ...] = ()

    def __str__(self) -> str:
        if not self.fixes:
            return self.message
        choices = [as_overrides(fix) for fix in self.fixes]
        plain = all(not isinstance(value, Mapping) for fix in self.fixes for value in fix.values())
        if plain and len({tuple(fix) for fix in self.fixes}) == 1 and len(self.fixes[0]) == 1:  # one key: name it once
            choices[1:] = [choice.partition("=")[2] for choice in choices[1:]]
        return f"{self.message}; try {' or '.join(choices)}"


class ConfigError(MillpondError):
    """A config that cannot run. `fix` has overrides that together fix every violation, if they are known."""

    def __init__(self, violations: list[Violation], fix: Overrides | None = None, source: str = "") -> None:
        self.violations = tuple(violations)
        self.fix = dict(fix) if fix else {}
        lines = [str(violation) for violation in violations]
        if len(lines) > 1:
            lines = [f"{len(lines)} settings{f' of {source}' if source else ''} are wrong:", *(f"- {x}" for x in lines)]
            if self.fix:
                lines.append(f"To fix all of them: {as_overrides(self.fix)}")
        super().__init__("\n".join(lines))


def violations(values: Values, written: set[str]) -> list[Violation]:
    """Return all violations of these values. `written` are the keys that were set."""
    broken = [*_env_settings(values, written), *_presets(values)]
    for rule in (*COMMON, *KINDS[values["kind"]].rules.load()):
        broken.extend(rule(values))
    return broken


def _env(values: Values) -> Iterator[Violation]:
    env_id = values["env.id"]
    family = family_of(env_id)
    if family is None:
        forms = [f.form for f in FAMILIES.values()]
        plain = [form for form in forms if ":" not in form]
        nearest = difflib.get_close_matches(env_id, plain, n=1)
        yield Violation(
            ("env.id",),
            f"env.id={env_id} is not one of {', '.join(forms)}",
            tuple({"env.id": name} for name in nearest),
        )
    elif family.name in GAMES:
        name = env_id.partition(":")[2]
        if name not in GAMES[family.name]:
            near = difflib.get_close_matches(name, GAMES[family.name], n=3, cutoff=0.4)
            yield Violation(
                ("env.id",),
                f"env.id={env_id}: there is no such game; `millpond envs` lists them",
                tuple({"env.id": f"{family.name}:{game}"} for game in near or ["breakout"]),
            )
    if values["env.frame_stack"] > 1 and (family is None or family.name != "atari"):
        yield Violation(
            ("env.frame_stack", "env.id"),
            f"env.frame_stack={values['env.frame_stack']}: env.id={env_id} has no frames to stack; only atari:GAME has",
            ({"env.frame_stack": 1},),
        )


def _agents(values: Values) -> Iterator[Violation]:
    family = family_of(values["env.id"])
    if family and family.single_agent and values["env.num_agents"] != 1:
        yield Violation(
            ("env.num_agents", "env.id"),
            f"env.num_agents={values['env.num_agents']:,}, but env.id={values['env.id']} has one agent",
            ({"env.num_agents": 1},),
        )


def _grid(values: Values) -> Iterator[Violation]:
    family = family_of(values["env.id"])
    if family is None or family.name not in ("grid", "mettagrid"):
        return
    if values["env.obs_size"] % 2 == 0:
        size = values["env.obs_size"]
        yield Violation(
            ("env.obs_size", "env.id"),
            f"env.obs_size={size} is even, but an agent is in the middle of what it sees",
            ({"env.obs_size": size - 1}, {"env.obs_size": size + 1}),
        )
    if family.name != "grid":
        return
    width, height, agents = values["env.grid.width"], values["env.grid.height"], values["env.num_agents"]
    names = tuple(f"env.grid.{name}" for name in ("walls", "mines", "generators", "altars"))
    things, cells = sum(values[name] for name in names), width * height
    if things > cells // 3 or agents > cells // 6:
        side = isqrt(max(3 * things, 6 * agents)) + 1
        larger = {"env.grid.width": max(side, width), "env.grid.height": max(side, height)}
        yield Violation(
            ("env.grid.width", "env.grid.height", "env.num_agents", *names),
            f"a map of env.grid.width={width} x env.grid.height={height} = {cells:,} cells holds at most {cells // 3:,} "
            f"objects and {cells // 6:,} agents, so that all are reachable; this has {things:,} and {agents:,}",
            (larger,) if side <= LARGEST_MAP else ({"env.num_agents": 1, **dict.fromkeys(names, 1)},),
        )


def _recall(values: Values) -> Iterator[Violation]:
    shortest, longest = values["env.recall.min_delay"], values["env.recall.max_delay"]
    if values["env.id"] == "recall" and shortest > longest:
        yield Violation(
            ("env.recall.min_delay", "env.recall.max_delay"),
            f"env.recall.min_delay={shortest:,} is more than env.recall.max_delay={longest:,}",
            ({"env.recall.max_delay": shortest}, {"env.recall.min_delay": longest}),
        )


def _steps(values: Values) -> Iterator[Violation]:
    """The length of episodes of `recall` is fixed by its delays."""
    if values["env.id"] == "recall" and values["env.max_steps"] is not None:
        yield Violation(
            ("env.max_steps", "env.id"),
            f"env.max_steps={values['env.max_steps']:,} cannot truncate the episodes of env.id=recall; "
            "env.recall.max_delay sets their length",
            ({"env.max_steps": None},),
        )


def _looped(values: Values) -> Iterator[Violation]:
    """Refuse settings of environments that loop over Python objects elsewhere, where they have no effect."""
    family = family_of(values["env.id"])
    if family is None or family.name in LOOPED:
        return
    unused: dict[str, tuple[Any, ...]] = {
        "env.clip_actions": (False,),
        "env.info": ("auto", "mean"),  # mean was the default once, so it is in the configs of older runs
        "env.options": ({},),
    }
    for key, unset in unused.items():
        if values[key] not in unset:
            yield Violation((key, "env.id"), f"{key} has no effect in env.id={values['env.id']}", ({key: unset[0]},))


def _env_settings(values: Values, written: set[str]) -> Iterator[Violation]:
    """Refuse settings of an environment other than the one in use, since they have no effect."""
    family = family_of(values["env.id"])
    for key in sorted(written):
        parts = key.split(".")
        if parts[0] == "env" and len(parts) == 3 and parts[1] in FAMILIES and family and parts[1] != family.name:
            yield Violation((key, "env.id"), f"{key} has no effect in env.id={values['env.id']}; leave it out")


def _presets(values: Values) -> Iterator[Violation]:
    """Refuse mistyped keys in presets, which would otherwise fail only when the preset is used."""
    for name, overlay in values["presets"].items():
        for key in overlay:
            if key not in values:
                near = difflib.get_close_matches(key, list(values), n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                yield Violation(("presets",), f"presets.{name} sets {key}, which is not a known key{hint}")


def _trainer_share(values: Values) -> Iterator[Violation]:
    share, backend = values[TRAINER_SHARE], values[BACKEND]
    if share and backend not in ("auto", "processes"):
        yield Violation(
            (TRAINER_SHARE, BACKEND),
            f"{TRAINER_SHARE}={share:g} is the share of the trainer next to worker processes, and {BACKEND}={backend} has none",
            ({TRAINER_SHARE: 0.0}, {BACKEND: "processes"}),
        )


COMMON: tuple[Rule, ...] = (_env, _agents, _grid, _recall, _steps, _looped, _trainer_share)
