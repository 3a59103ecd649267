"""Section `schedules`: numbers that change during a run, by the path of their key.

    schedules:
      ppo.learning_rate: {kind: cosine, end: 4.0e-5, warmup: 0.02}
      ppo.ent_coef: {end: 0.001}

`ppo.lr_schedule`, `ppo.ent_schedule` and `ppo.clip_schedule` are the same schedules in fewer words.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from millpond.config.recipe import ConfigSection, Fraction, Positive, Real
from millpond.config.rules import Values, Violation, show
from millpond.schedules import named, with_warm_up

SECTION = "schedules"

# All keys that are read anew at every iteration, and the one key that schedules some of them in a word.
SCHEDULED: dict[str, str | None] = {
    "ppo.learning_rate": "ppo.lr_schedule",
    "ppo.clip_coef": "ppo.clip_schedule",
    "ppo.vf_clip_coef": None,
    "ppo.vf_coef": None,
    "ppo.ent_coef": "ppo.ent_schedule",
    "ppo.gamma": None,
    "ppo.gae_lambda": None,
    "ppo.rho_clip": None,
    "ppo.c_clip": None,
    "ppo.log_ratio_clamp": None,
    "ppo.max_grad_norm": None,
    "ppo.target_kl": None,
    "ppo.adam_beta1": None,
    "ppo.adam_beta2": None,
    "ppo.adam_eps": None,
    "ppo.weight_decay": None,
    "ppo.prio_alpha": None,
    "ppo.prio_beta0": None,
    "ppo.reward_centering": None,
}


class ScheduleConfig(ConfigSection):
    """How one number changes. Shares are of the run's iterations."""

    kind: Literal["constant", "linear", "cosine"] = Field("linear", description="Form of the way from start to end.")
    start: Real | None = Field(
        None, description="Value at the start, after the warm-up; null: the value of the key itself."
    )
    end: Real | None = Field(None, description="Value at the end; linear and cosine need it.")
    floor: Real | None = Field(None, description="The value is never below this; null: no such limit.")
    warmup: Fraction = Field(0.0, lt=1, description="Share of the run in which the value first rises from 0 to start.")
    until: Positive = Field(1.0, le=1, description="Share of the run after which the value stays at end.")


@dataclass(frozen=True)
class PathSchedule:
    """The schedule of one key, with all its numbers."""

    path: str
    kind: str
    start: float
    end: float
    floor: float | None = None
    warmup: float = 0.0
    until: float = 1.0

    def at(self, iteration: int, iterations: int) -> float:
        """Return the value during an iteration, counted from 0, of a run of `iterations`."""
        decay = named(self.kind, self.start, over=self.until - self.warmup, end=self.end)
        value = with_warm_up(decay, self.start, self.warmup, iterations)(iteration)
        return value if self.floor is None else max(value, self.floor)


def by_path(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Return a layer of nested values whose schedules are named by whole paths.

    `schedules.ppo.ent_coef.end=0` on a command line nests the path; a file may write it either way.
    """
    section = layer.get(SECTION)
    if not isinstance(section, Mapping):
        return dict(layer)
    named_by_path: dict[str, Any] = {}
    for name, value in section.items():
        nested = (
            isinstance(value, Mapping) and "." not in str(name) and not set(value) & set(ScheduleConfig.model_fields)
        )
        entries = {f"{name}.{key}": each for key, each in value.items()} if nested and value else {str(name): value}
        named_by_path |= entries
    return {**layer, SECTION: named_by_path}


def schedules_of(values: Values) -> tuple[PathSchedule, ...]:
    """Return all schedules of a valid config, from the section and from the keys that name one in a word."""
    found = {}
    for path, word in SCHEDULED.items():
        if word is not None and values[word] != "constant":
            end = values[path] * values["ppo.min_lr_ratio"] if path == "ppo.learning_rate" else 0.0
            found[path] = PathSchedule(path, values[word], values[path], end)
    for path, settings in values[SECTION].items():
        if settings is not None:
            one = ScheduleConfig.model_validate(settings)
            start = values[path] if one.start is None else one.start
            end = start if one.end is None else one.end
            found[path] = PathSchedule(path, one.kind, start, end, one.floor, one.warmup, one.until)
    return tuple(found[path] for path in SCHEDULED if path in found)


def schedule_rules(values: Values) -> Iterator[Violation]:
    """Refuse schedules of keys that have none, that are not valid, or that are stated twice."""
    section: Mapping[str, Any] = values[SECTION]
    for path, settings in section.items():
        if settings is None:  # taken back
            continue
        without = {SECTION: {**section, path: None}}
        unknown = _not_scheduled(path, values)
        if unknown is not None:
            near = difflib.get_close_matches(path, SCHEDULED, n=1, cutoff=0.75)
            other = {SECTION: {**section, path: None, near[0]: settings}} if near and near[0] not in section else None
            yield Violation((SECTION,), unknown, (without,) if other is None or path in values else (other, without))
            continue
        broken = list(_broken(path, settings, section, values))
        yield from broken
        if not broken:
            yield from _no_effect(path, values, without)
            yield from _twice(path, values, without)


def _not_scheduled(path: str, values: Values) -> str | None:
    if path in SCHEDULED:
        return None
    if path in values:
        return (
            f"{SECTION}.{path}: {path} is read once, when a run is built, so it cannot change during the run; "
            f"schedules are for {', '.join(SCHEDULED)}"
        )
    near = difflib.get_close_matches(path, SCHEDULED, n=1)
    hint = f"did you mean {SECTION}.{near[0]}?" if near else f"schedules are for {', '.join(SCHEDULED)}"
    return f"{SECTION}.{path}: {path} is not a known key; {hint}"


def _broken(path: str, settings: Any, section: Mapping[str, Any], values: Values) -> Iterator[Violation]:
    """Yield what is wrong with one schedule; the first thing only, since others may follow from it."""

    def violation(field: str, value: Any, rule: str, *fixes: Any) -> Violation:
        name = f"{SECTION}.{path}.{field}"
        others = settings if isinstance(settings, Mapping) else {}
        choices = tuple({SECTION: {**section, path: {**others, field: fix}}} for fix in fixes)
        return Violation((SECTION,), f"{name}={show(value)} {rule}", choices)

    own = values[path]
    if not isinstance(settings, Mapping):
        yield Violation(
            (SECTION,),
            f"{SECTION}.{path}={show(settings)} must be a section with {', '.join(ScheduleConfig.model_fields)}",
            ({SECTION: {**section, path: None}},),
        )
        return
    try:
        one = ScheduleConfig.model_validate(dict(settings))
    except ValidationError as error:
        entry = error.errors()[0]
        field = ".".join(str(part) for part in entry["loc"][:1])
        if entry["type"] == "extra_forbidden":
            near = difflib.get_close_matches(field, ScheduleConfig.model_fields, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(ScheduleConfig.model_fields)}"
            without = ({SECTION: {**section, path: None}},)
            yield Violation((SECTION,), f"{SECTION}.{path}.{field} is not a known key; {hint}", without)
            return
        default = ScheduleConfig.model_fields[field].default
        yield violation(
            field, entry["input"], _rule_of(entry), default if default is not None or field != "end" else own
        )
        return
    if one.start is None and own is None:
        yield Violation(
            (SECTION, path),
            f"{SECTION}.{path}: {path}=null switches off what the schedule would change; give {path} a value",
            ({SECTION: {**section, path: None}},),
        )
        return
    if one.kind != "constant" and one.end is None:
        yield violation("end", None, f"is missing: a {one.kind} schedule needs the value at its end", own)
        return
    if one.kind == "constant" and one.end is not None:
        yield violation("end", one.end, "has no effect on a constant schedule", None)
        return
    if one.warmup >= one.until:
        yield violation("warmup", one.warmup, f"must be less than {SECTION}.{path}.until={show(one.until)}", 0.0)
        return
    for field in ("start", "end", "floor"):
        value = getattr(one, field)
        rule = None if value is None else _out_of_bounds(path, value, values)
        if rule is not None:
            bound, fix = rule
            yield violation(field, value, f"must be {bound}, as {path}", *([own] if fix is None else [fix]))
            return


def _rule_of(entry: Mapping[str, Any]) -> str:
    bounds = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    context = entry.get("ctx", {})
    for name, sign in bounds.items():
        if name in context:
            return f"must be {sign} {show(context[name])}"
    if entry["type"] == "literal_error":
        return "is not one of constant, linear, cosine"
    return str(context.get("error", entry["msg"]))


def _out_of_bounds(path: str, value: float, values: Values) -> tuple[str, Any] | None:
    """Return the bound of a key that a value violates, and the bound itself if it is a valid value."""
    model = _section_model(path, values["kind"])
    try:
        model.model_validate({path.partition(".")[2]: value})
    except ValidationError as error:
        for entry in error.errors():
            context = entry.get("ctx", {})
            for name, sign in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<")):
                if name in context:
                    return f"{sign} {show(context[name])}", context[name] if name in ("ge", "le") else None
    return None


def _section_model(path: str, kind: str) -> type[BaseModel]:
    from millpond.kinds import KINDS  # a kind's config imports this module

    annotation = KINDS[kind].recipe.load().model_fields[path.partition(".")[0]].annotation
    assert isinstance(annotation, type)
    assert issubclass(annotation, BaseModel)
    return annotation


def _no_effect(path: str, values: Values, without: Mapping[str, Any]) -> Iterator[Violation]:
    if path.startswith("ppo.prio_") and values["ppo.sampling"] != "prioritized":
        yield Violation(
            (SECTION, "ppo.sampling"),
            f"{SECTION}.{path} has no effect with ppo.sampling={values['ppo.sampling']}",
            (without,),
        )


def _twice(path: str, values: Values, without: Mapping[str, Any]) -> Iterator[Violation]:
    word = SCHEDULED[path]
    if word is not None and values[word] != "constant":
        yield Violation(
            (SECTION, word),
            f"{word}={values[word]} and {SECTION}.{path} both set the schedule of {path}",
            ({word: "constant"}, without),
        )
