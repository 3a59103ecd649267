"""Plans for several values of one key, side by side: `millpond plan --scale KEY=a,b,c`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from millpond.config.check import flatten
from millpond.config.keys import keys, nearest_key
from millpond.config.load import parse_override
from millpond.config.rules import show as show_value
from millpond.errors import MillpondError
from millpond.formatting import sentence, table
from millpond.kinds import KINDS
from millpond.planner.host import Host
from millpond.planner.planned import Planned, plan

MAX_VALUES = 32
MAX_NAME_LENGTH = 16  # leaves room for the columns


@dataclass(frozen=True)
class Scaled:
    """A key, and for each of its values the plan or the error."""

    key: str
    own: Planned  # with the recipe's own value
    own_value: Any
    plans: tuple[tuple[Any, Planned | str], ...]

    def to_json(self) -> dict[str, Any]:
        """Return one object per value; a value that is refused has `error`."""
        return {
            "key": self.key,
            "plans": [
                {"value": value, **({"error": planned} if isinstance(planned, str) else planned.to_json())}
                for value, planned in self.plans
            ],
        }


def scale(
    recipe: str, overrides: Iterable[str], text: str, preset: str | None = None, host: Host | None = None
) -> Scaled:
    """Plan the recipe for each value in `text`, which is KEY=a,b,c."""
    overrides = list(overrides)
    key, equals, values = (part.strip() for part in text.partition("="))
    choices = [value.strip() for value in values.split(",") if value.strip()]
    if not equals or not choices:
        raise MillpondError(f"--scale {text!r} is not KEY=a,b,c, such as env.num_agents=3,4,8,24")
    if len(choices) > MAX_VALUES:
        raise MillpondError(f"--scale {key} has {len(choices)} values; at most {MAX_VALUES} are shown")
    own = plan(recipe, overrides, preset=preset, host=host)
    flat = flatten(own.loaded.recipe)
    if key not in flat:
        near = nearest_key(key, own.loaded.recipe.kind)
        raise MillpondError(f"{key} is not a key that can be scaled" + (f"; did you mean {near}?" if near else ""))
    plans: list[tuple[Any, Planned | str]] = []
    for choice in choices:
        try:
            planned = plan(recipe, [*overrides, f"{key}={choice}"], preset=preset, host=host)
        except MillpondError as error:
            plans.append((parse_override(f"{key}={choice}")[1], str(error)))
        else:
            plans.append((flatten(planned.loaded.recipe)[key], planned))
    if all(isinstance(planned, str) for _, planned in plans):
        raise MillpondError(str(plans[0][1]))
    return Scaled(key, own, flat[key], tuple(plans))


def show_scale(scaled: Scaled) -> str:
    """Return the table, and what each value changes against the recipe's own."""
    name = scaled.key.rpartition(".")[2]
    lines = [*sentence(f"{scaled.own.loaded.name}, by {scaled.key}", 0), ""]
    rows = [(show_value(value), planned.plan) for value, planned in scaled.plans if not isinstance(planned, str)]
    first = name if len(name) <= MAX_NAME_LENGTH else "value"
    text = KINDS[scaled.own.loaded.recipe.kind].text.load()
    lines += table([first, *text.scale_header], [[value, *text.scale_columns(plan)] for value, plan in rows])
    for value, planned in scaled.plans:
        if isinstance(planned, str):
            lines += ["", *sentence(f"{show_value(value)} is refused: {planned}", 2)]
    remarks = []
    for value, other in rows:
        changes = text.scale_remarks(other, scaled.own.plan) if other != scaled.own.plan else []
        remarks += sentence(f"{value}: {'; '.join(changes)}.", 2, "- ") if changes else []
    if remarks:
        lines += ["", f"  Against {name}={show_value(scaled.own_value)}:", *remarks]
    lines += ["", *sentence(keys(scaled.own.loaded.recipe.kind)[scaled.key].description)]
    return "\n".join(lines)
