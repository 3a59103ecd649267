"""Typed recipes: read, merged, checked. Start with `load("metta", ["trainer.batch_size=262_144"])`.

Each kind of recipe has a module with its sections and rules (`ppo`, `mixture`, `reward`); `recipe` and `env` have what all
kinds share. `load` reads files, `check` validates values, `violations` are the errors.
"""

from millpond.config.load import Loaded, load, recipe_names
from millpond.config.mixture import MixtureRecipe
from millpond.config.ppo import PPORecipe
from millpond.config.recipe import Recipe
from millpond.config.reward import RewardRecipe
from millpond.config.violations import ConfigError, Violation

__all__ = [
    "ConfigError",
    "Loaded",
    "MixtureRecipe",
    "PPORecipe",
    "Recipe",
    "RewardRecipe",
    "Violation",
    "load",
    "recipe_names",
]
