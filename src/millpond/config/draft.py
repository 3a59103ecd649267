"""A recipe whose rules between keys are not checked: a sweep's points complete it, and each of them is checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millpond.config.check import check
from millpond.config.load import SECTION, Loaded, _layered, _validated, _without_section
from millpond.config.sources import RecipeSource


def load_draft(recipe: RecipeSource, overrides: Mapping[str, Any]) -> Loaded:
    """Load a recipe without the rules between its keys. Unknown keys and values outside of their limits are errors."""
    layers = _layered(recipe, overrides, None)
    values = {section: value for section, value in layers.values.items() if section != SECTION}
    typed = _validated(values)
    if typed is None:
        typed = check(values, layers.name)  # says what is wrong
    return Loaded(layers.name, _without_section(typed), values, code=layers.code)
