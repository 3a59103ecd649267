"""Validate plain values: the typed recipe, or an error that lists everything that is wrong."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from millpond.config import rules
from millpond.config.keys import keys, kinds_of, nearest_key, sections
from millpond.config.recipe import Recipe
from millpond.config.rules import ConfigError, Overrides, Rule, Values, Violation, show
from millpond.kinds import KINDS

MAX_FIXES = 20  # more than there are rules; each fix repairs one


def flatten(model: BaseModel, prefix: str = "") -> dict[str, Any]:
    """Return every key of a validated recipe with its value, by dotted name."""
    flat: dict[str, Any] = {}
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def flatten_mapping(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested mappings by dotted name."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= flatten_mapping(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def written(model: BaseModel, prefix: str = "") -> set[str]:
    """Return the keys that were set rather than left at their defaults."""
    names: set[str] = set()
    for name in model.model_fields_set:
        value = getattr(model, name)
        names |= written(value, f"{prefix}{name}.") if isinstance(value, BaseModel) else {f"{prefix}{name}"}
    return names


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two layers: sections key by key; any other value of `above` replaces that of `below`."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(old, value) if both else value  # type: ignore[arg-type]
    return merged


def overlay(values: Mapping[str, Any], dotted: Mapping[str, Any]) -> dict[str, Any]:
    """Set dotted keys, creating sections as needed."""
    result = dict(values)
    for key, value in dotted.items():
        nested: Any = value
        for part in reversed(key.split(".")):
            nested = {part: nested}
        result = merge(result, nested)
    return result


def check(values: Mapping[str, Any], source: str = "") -> Recipe:
    """Return the recipe that these values describe. Raise ConfigError with every violation, not only the first."""
    kind = values.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ConfigError([_wrong_kind(kind)], source=source)
    model = KINDS[kind].recipe.load()
    try:
        recipe = model.model_validate(dict(values))
    except ValidationError as error:
        violations, bad_keys = _field_violations(error, kind)
        rest = _without(values, bad_keys)
        try:  # check the other keys, apart from rules that read a bad one
            recipe = model.model_validate(rest)
        except ValidationError:
            raise ConfigError(violations, source=source) from None
        flat, set_keys = flatten(recipe), written(recipe)
        broken_rules = [
            violation
            for violation in rules.violations(flat, set_keys)
            if not any(_touches(key, bad) for key in violation.keys for bad in bad_keys)
        ]
        violations = [_within_limits(violation, rest, model) for violation in violations]
        fix = None
        if all(violation.fixes for violation in violations):
            fix = find_fix(flat, set_keys, {key: value for v in violations for key, value in v.fixes[0].items()})
        raise ConfigError(_with_valid_fixes(violations + broken_rules, flat, set_keys), fix, source=source) from None
    flat, set_keys = flatten(recipe), written(recipe)
    violations = rules.violations(flat, set_keys)
    if violations:
        raise ConfigError(_with_valid_fixes(violations, flat, set_keys), find_fix(flat, set_keys), source=source)
    return recipe


def refuse_violations(recipe: Recipe, rule: Rule, source: str = "") -> None:
    """Raise ConfigError if a valid recipe violates one more rule. The proposed fixes satisfy all rules."""
    flat, set_keys = flatten(recipe), written(recipe)
    violations = list(rule(flat))
    if violations:
        fix = find_fix(flat, set_keys, None, rule)
        raise ConfigError(_with_valid_fixes(violations, flat, set_keys, rule), fix, source)


def _no_rule(values: Values) -> Iterator[Violation]:
    return iter(())


def find_fix(
    flat: Mapping[str, Any], set_keys: set[str], first: Overrides | None = None, more: Rule = _no_rule
) -> dict[str, Any] | None:
    """Return overrides after which no rule is violated: `first`, then the best fix of each remaining violation.

    None if a violation has no fix.
    """
    fix: dict[str, Any] = dict(first or {})
    for _ in range(MAX_FIXES):
        values = {**flat, **fix}
        broken = rules.violations(values, set_keys - {k for k, v in fix.items() if v is None}) or list(more(values))
        if not broken:
            return fix
        if not broken[0].fixes:
            return None
        fix.update(broken[0].fixes[0])
    return None


def _with_valid_fixes(
    violations: list[Violation], flat: Mapping[str, Any], set_keys: set[str], more: Rule = _no_rule
) -> list[Violation]:
    """Complete the fixes of a single violation; for several, the error has one fix for all."""
    return [_completed(violations[0], flat, set_keys, more)] if len(violations) == 1 else violations


def _within_limits(violation: Violation, rest: Mapping[str, Any], model: type[BaseModel]) -> Violation:
    """Return the violation with only those fixes that are within the limits of the key."""
    allowed = []
    for fix in violation.fixes:
        try:
            model.model_validate(overlay(rest, fix))
        except ValidationError:
            continue
        allowed.append(fix)
    return Violation(violation.keys, violation.message, tuple(allowed))


def _completed(violation: Violation, flat: Mapping[str, Any], set_keys: set[str], more: Rule = _no_rule) -> Violation:
    """Return the violation with each fix extended until it is enough by itself; those that cannot be are dropped."""
    completed: list[Overrides] = []
    for fix in violation.fixes:
        whole = find_fix(flat, set_keys | set(fix), fix, more)
        if whole is not None and whole not in completed:
            completed.append(whole)
    return Violation(violation.keys, violation.message, tuple(completed))


def _touches(key: str, bad_key: str) -> bool:
    return key == bad_key or key.startswith(f"{bad_key}.")


def _wrong_kind(kind: Any) -> Violation:
    if kind is None:
        return Violation(("kind",), f"kind is missing; it is one of {', '.join(KINDS)} (or inherit it with `extends`)")
    nearest = difflib.get_close_matches(str(kind), KINDS, n=1)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    return Violation(("kind",), f"kind={show(kind)} is not one of {', '.join(KINDS)}{hint}")


def _without(values: Mapping[str, Any], bad_keys: set[str], prefix: str = "") -> dict[str, Any]:
    rest = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        if key in bad_keys:
            continue
        rest[name] = _without(value, bad_keys, f"{key}.") if isinstance(value, Mapping) else value
    return rest


def _field_violations(error: ValidationError, kind: str) -> tuple[list[Violation], set[str]]:
    """Translate pydantic's errors, one per key."""
    known = keys(kind).keys() | sections(kind).keys()
    by_key: dict[str, Violation] = {}
    for entry in error.errors():
        key, path = "", [str(part) for part in entry["loc"]]
        for length in range(len(path), 0, -1):  # after the key, pydantic names the branch of a union
            key = ".".join(path[:length])
            if key in known or entry["type"] == "extra_forbidden":
                break
        violation = _violation(key, kind, dict(entry))
        if violation and (key not in by_key or len(violation.message) < len(by_key[key].message)):
            by_key[key] = violation
    return list(by_key.values()), set(by_key)


def _top_sections(kind: str) -> list[str]:
    return [name for name in sections(kind) if "." not in name]


def _violation(key: str, kind: str, entry: dict[str, Any]) -> Violation | None:
    value, context = entry["input"], entry.get("ctx", {})
    if entry["type"] == "extra_forbidden":
        others = [other for other in kinds_of(key) if other != kind]
        if others:
            return Violation((key,), f"{key} is a key of kind {others[0]}; this recipe is of kind {kind}")
        nearest = nearest_key(key, kind)
        section = key.split(".")[0]
        if nearest:
            hint = f"did you mean {nearest}?"
        elif section in _top_sections(kind):
            hint = f"`millpond plan --explain {section}` lists keys"
        else:
            hint = f"sections are {', '.join(_top_sections(kind))}"
        return Violation((key,), f"{key} is not a known key; {hint}")
    if entry["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return Violation((key,), f"{key}={show(value)} must be a section with keys")
    for name, sign in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<")):
        if name in context:
            bound = context[name]
            fixes = ({key: bound},) if name in ("ge", "le") else ()
            return Violation((key,), f"{key}={show(value)} must be {sign} {show(bound)}", fixes)
    if entry["type"] == "literal_error":
        key_type = keys(kind)[key].type
        choices = [choice for part in key_type.split(" or ") for choice in part.split(", ")]
        close = difflib.get_close_matches(str(value), choices, n=1)
        one_of = (
            "one of " if " or " not in key_type and len(choices) > 2 else "a " if key_type.startswith("whole") else ""
        )
        return Violation(
            (key,), f"{key}={show(value)} is not {one_of}{key_type}", tuple({key: choice} for choice in close)
        )
    if entry["type"] == "value_error":
        around = getattr(context["error"], "around", ())
        return Violation((key,), f"{key}={show(value)} {context['error']}", tuple({key: number} for number in around))
    if entry["type"] in ("bool_type", "bool_parsing"):
        return Violation((key,), f"{key}={show(value)} must be true or false")
    if entry["type"] == "string_pattern_mismatch":
        form = keys(kind)[key].description.rstrip(".")
        return Violation((key,), f"{key}={show(value)} is not {form[0].lower()}{form[1:]}")
    if entry["type"] == "none_required":  # the other branch of `X or null` says it better
        return None
    message = entry["msg"][0].lower() + entry["msg"][1:]
    return Violation((key,), f"{key}={show(value)}: {message}")
