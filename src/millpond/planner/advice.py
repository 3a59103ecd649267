"""Advice: what to change, why, and the overrides that do it.

An override that is shown has been tried: the config stays valid, the trouble is gone, and no new trouble has come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from millpond.config import Recipe
from millpond.config.check import check, find_fix, flatten, overlay, written
from millpond.config.violations import ConfigError, as_overrides

RecipeT = TypeVar("RecipeT", bound=Recipe)


@dataclass(frozen=True)
class Advice:
    """`overrides` may be empty where there is something to know but nothing to set."""

    topic: str
    reason: str
    overrides: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return f"{self.topic}: {self.reason}" + (f" -> {as_overrides(dict(self.overrides))}" if self.overrides else "")


class Adviser(Generic[RecipeT]):
    """Makes advice about one recipe. `troubles` says which troubles a recipe has, by topic."""

    def __init__(self, recipe: RecipeT, troubles: Callable[[RecipeT], set[str]]) -> None:
        self._recipe = recipe
        self._flat, self._written = flatten(recipe), written(recipe)
        self._values = recipe.model_dump(exclude_unset=True)
        self._troubles = troubles
        self._known = troubles(recipe)

    def __call__(self, topic: str, reason: str, overrides: Mapping[str, Any]) -> Iterator[Advice]:
        """The advice with its overrides completed until they are valid; nothing where they do more harm than good."""
        whole = find_fix(self._flat, self._written, overrides)
        if whole is None:
            return
        try:
            changed = check(overlay(self._values, whole))
        except ConfigError:
            return
        after = self._troubles(changed)  # type: ignore[arg-type]
        if not after - self._known and topic not in after:
            yield Advice(topic, reason, tuple(whole.items()))
