"""Advice: what to change, why, and the overrides that do it.

Overrides are checked before they are shown: the config stays valid, the problem is solved, and no new problem appears.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from millpond.config import Recipe
from millpond.config.check import check, find_fix, flatten, overlay, written
from millpond.config.rules import ConfigError, as_overrides

RecipeT = TypeVar("RecipeT", bound=Recipe)


@dataclass(frozen=True)
class Advice:
    """A reason and the overrides that follow from it; these may be empty."""

    topic: str
    reason: str
    overrides: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return f"{self.topic}: {self.reason}" + (f" -> {as_overrides(dict(self.overrides))}" if self.overrides else "")


class Adviser(Generic[RecipeT]):
    """Makes advice about one recipe. `find_problems` returns the topics in which a recipe has a problem."""

    def __init__(self, recipe: RecipeT, find_problems: Callable[[RecipeT], set[str]]) -> None:
        self._recipe = recipe
        self._flat, self._written = flatten(recipe), written(recipe)
        self._values = recipe.model_dump(exclude_unset=True)
        self._find_problems = find_problems
        self._problems = find_problems(recipe)

    def __call__(self, topic: str, reason: str, overrides: Mapping[str, Any]) -> Iterator[Advice]:
        """Yield the advice with its overrides completed until they are valid; nothing if they cause other problems."""
        whole = find_fix(self._flat, self._written, overrides)
        if whole is None:
            return
        try:
            changed = check(overlay(self._values, whole))
        except ConfigError:
            return
        after = self._find_problems(changed)  # type: ignore[arg-type]
        if not after - self._problems and topic not in after:
            yield Advice(topic, reason, tuple(whole.items()))
