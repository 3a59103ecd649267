"""The search space: config keys with choices, ranges and conditions, from a YAML file."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from millpond.config import Loaded
from millpond.config.check import check, overlay
from millpond.config.keys import keys, nearest_key, sections
from millpond.config.rules import show
from millpond.config.yaml import read_mapping
from millpond.errors import MillpondError
from millpond.kinds import KINDS

if TYPE_CHECKING:
    from optuna.trial import Trial

FORMS = ("choices", "range", "log", "int", "log_int")
OPTIONS = ("step", "if")
NOT_SEARCHED = (
    "seed",
    "run_dir",
    "device",
    "description",
    "log",
    "checkpoint",
    "presets",
    "expect",
    "eval",
    "extends",
    "kind",
)


class SpaceError(MillpondError):
    """A search space that is not valid."""


@dataclass(frozen=True)
class Parameter:
    """One key of the space. `condition` has the values of other keys with which it is searched."""

    key: str
    form: str
    values: tuple[Any, ...]  # choices, or the two ends of a range
    step: float | None = None
    condition: tuple[tuple[str, tuple[Any, ...]], ...] = ()

    def applies(self, chosen: Mapping[str, Any]) -> bool:
        """Return True if the keys that the condition names are searched here and have one of its values."""
        return all(key in chosen and chosen[key] in allowed for key, allowed in self.condition)

    def suggest(self, trial: Trial) -> Any:
        """Let Optuna choose a value."""
        if self.form == "choices":
            return json.loads(trial.suggest_categorical(self.key, [json.dumps(value) for value in self.values]))
        low, high = self.values
        log = self.form.startswith("log")
        if self.form in ("int", "log_int"):
            return trial.suggest_int(self.key, low, high, log=log, step=1 if self.step is None else int(self.step))
        return trial.suggest_float(self.key, low, high, log=log, step=self.step)

    def describe(self) -> str:
        """Return the values in words."""
        if self.form == "choices":
            text = f"one of {', '.join(show(value) for value in self.values)}"
        else:
            low, high = (show(value) for value in self.values)
            whole = "whole numbers from " if self.form in ("int", "log_int") else ""
            text = f"{whole}{low} to {high}" + (", logarithmic" if self.form.startswith("log") else "")
            text += f", in steps of {self.step:g}" if self.step is not None else ""
        conditions = [f"{key} is {' or '.join(show(v) for v in values)}" for key, values in self.condition]
        return text + (f", if {' and '.join(conditions)}" if conditions else "")

    def to_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = {self.form: list(self.values)}
        if self.step is not None:
            fields["step"] = self.step
        if self.condition:
            fields["if"] = {key: list(values) for key, values in self.condition}
        return fields


@dataclass(frozen=True)
class Space:
    """Parameters in an order in which each comes after those that its condition names."""

    parameters: tuple[Parameter, ...]

    def suggest(self, trial: Trial) -> dict[str, Any]:
        """Return the overrides of a point that Optuna chooses."""
        chosen: dict[str, Any] = {}
        for parameter in self.parameters:
            if parameter.applies(chosen):
                chosen[parameter.key] = parameter.suggest(trial)
        return chosen

    def to_json(self) -> dict[str, Any]:
        return {parameter.key: parameter.to_json() for parameter in self.parameters}


def read_space(path: Path) -> dict[str, Any]:
    """Read the plain values of a space."""
    return read_mapping(path, example="ppo.gamma: [0.98, 0.99]")


def make_space(values: Mapping[str, Any], loaded: Loaded, source: str) -> Space:
    """Return the space of plain values. Everything that is wrong with it is listed in one error."""
    problems: list[str] = []
    parameters: dict[str, Parameter] = {}
    for key, value in _leaves(values, sections(loaded.recipe.kind)):
        try:
            _check_key(key, loaded.recipe.kind)
            parameters[key] = _parameter(key, value)
            _check_values(parameters[key], loaded)
        except MillpondError as error:
            problems.append(str(error))
    if not values:
        problems.append("it has no keys; write for example ppo.learning_rate: {log: [1e-4, 1e-2]}")
    ordered: list[Parameter] = []
    if not problems:
        problems += _order(parameters, ordered)
    if problems:
        raise SpaceError("\n  ".join([f"{source} is not a search space of {loaded.name}:", *problems]))
    return Space(tuple(ordered))


def _leaves(values: Mapping[str, Any], known: Collection[str], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys with what the file says about them; `known` sections may be nested."""
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and key in known:
            yield from _leaves(value, known, f"{key}.")
        else:
            yield key, value


def _parameter(key: str, value: Any) -> Parameter:
    """Parse one entry: a list of choices, or a mapping with one of `FORMS`."""
    if isinstance(value, list):
        value = {"choices": value}
    if not isinstance(value, Mapping):
        raise SpaceError(f"{key}={show(value)} is a single value; write [a, b, c] or {{range: [low, high]}}")
    unknown = [name for name in value if name not in (*FORMS, *OPTIONS)]
    if unknown:
        near = difflib.get_close_matches(str(unknown[0]), [*FORMS, *OPTIONS], n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join((*FORMS, *OPTIONS))}"
        raise SpaceError(f"{key}: {unknown[0]} is unknown; {hint}")
    forms = [name for name in FORMS if name in value]
    if len(forms) != 1:
        raise SpaceError(f"{key} needs exactly one of {', '.join(FORMS)}")
    form, given = forms[0], value[forms[0]]
    if not isinstance(given, list) or not given:
        raise SpaceError(f"{key}.{form}={show(given)} must be a list")
    step = value.get("step")
    condition = tuple(
        (str(other), tuple(allowed if isinstance(allowed, list) else [allowed]))
        for other, allowed in dict(value.get("if") or {}).items()
    )
    if form == "choices":
        if len({json.dumps(one) for one in given}) < len(given):
            raise SpaceError(f"{key}.choices={given} has a value twice")
        if step is not None:
            raise SpaceError(f"{key}.step={step}: choices have no steps")
        return Parameter(key, form, tuple(given), None, condition)
    low, high = _ends(key, form, given)
    return Parameter(key, form, (low, high), _step(key, form, step, low, high), condition)


def _ends(key: str, form: str, given: list[Any]) -> tuple[Any, ...]:
    if len(given) != 2 or any(isinstance(end, bool) or not isinstance(end, int | float) for end in given):
        raise SpaceError(f"{key}.{form}={given} must be two numbers: [low, high]")
    low, high = given
    if not low < high:
        raise SpaceError(f"{key}.{form}={given}: low must be below high")
    if form in ("log", "log_int") and low <= 0:
        raise SpaceError(
            f"{key}.{form}={given}: a logarithmic range must be above 0; use {form.replace('log', 'range')[:5]}"
        )
    if form in ("int", "log_int"):
        if any(float(end) != int(end) for end in given):
            raise SpaceError(f"{key}.{form}={given} must be whole numbers; use range for others")
        return int(low), int(high)
    return float(low), float(high)


def _step(key: str, form: str, step: Any, low: float, high: float) -> float | None:
    if step is None:
        return None
    if form.startswith("log"):
        raise SpaceError(f"{key}.step={step}: a logarithmic range has no steps")
    if isinstance(step, bool) or not isinstance(step, int | float) or step <= 0:
        raise SpaceError(f"{key}.step={show(step)} must be a number above 0")
    if form == "int" and step != int(step):
        raise SpaceError(f"{key}.step={step} must be a whole number")
    steps = (high - low) / step
    if abs(steps - round(steps)) > 1e-6:
        last = low + math.floor(steps) * step
        raise SpaceError(
            f"{key}.{form}=[{low:g}, {high:g}]: steps of {step:g} from {low:g} do not reach {high:g}; "
            f"the last value would be {last:.6g}. Write [{low:g}, {last:.6g}]"
            if last > low
            else f"{key}.step={step:g} is larger than the range from {low:g} to {high:g}"
        )
    return step


def _check_key(key: str, kind: str) -> None:
    """Refuse keys that the recipe does not have, or that are not searched."""
    known = keys(kind)
    if key in NOT_SEARCHED or key.partition(".")[0] in NOT_SEARCHED:
        raise SpaceError(f"{key} is not searched: it does not change what is learned, or each trial sets it")
    parent = known.get(key.rpartition(".")[0])
    if key not in known and (parent is None or "mapping" not in parent.type):
        near = nearest_key(key, kind)
        hint = f"did you mean {near}?" if near else "docs/configuration.md lists all keys"
        raise SpaceError(f"{key} is not a key of kind {kind}; {hint}")


def _check_values(parameter: Parameter, loaded: Loaded) -> None:
    """Refuse values outside of a key's limits."""
    key, kind = parameter.key, loaded.recipe.kind
    model = KINDS[kind].recipe.load()
    for value in parameter.values:
        changed = overlay(loaded.values, {key: value})
        try:
            model.model_validate(changed)  # limits of the key alone: rules between keys depend on the point
        except ValidationError:
            check(changed)  # says it in words
            raise


def _order(parameters: Mapping[str, Parameter], ordered: list[Parameter]) -> Iterator[str]:
    """Fill `ordered`, and yield what is wrong with the conditions."""
    waiting = dict(parameters)
    for parameter in parameters.values():
        for other, allowed in parameter.condition:
            if other not in parameters:
                yield f"{parameter.key}: its condition names {other}, which is not searched"
            elif parameters[other].form == "choices" and not set(map(str, allowed)) & set(
                map(str, parameters[other].values)
            ):
                yield f"{parameter.key}: {other} never is {' or '.join(map(show, allowed))}"
    while waiting:
        ready = [p for p in waiting.values() if not any(other in waiting for other, _ in p.condition)]
        if not ready:
            yield f"conditions of {', '.join(waiting)} depend on each other"
            return
        for parameter in ready:
            ordered.append(parameter)
            del waiting[parameter.key]


def shown(params: Mapping[str, Any]) -> str:
    """Return a point as overrides, with numbers that people can read."""
    return " ".join(f"{key}={_short(value)}" for key, value in params.items())


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else show(value)
