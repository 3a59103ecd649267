"""Typed recipes: read, merged, checked. Start with `load("metta", ["trainer.batch_size=262_144"])`.

Each kind of recipe has a module with its sections and rules (`ppo`, `mixture`, `reward`); `recipe` has the sections and `rules`
the rules and errors that all kinds share, `rank_rules` those of several ranks. `load` reads files, `check` validates values,
`keys` lists every setting, and `env_options` turns the section `env` into an environment.
"""

from millpond.config.files import recipe_names
from millpond.config.load import Loaded, load
from millpond.config.mixture import MixtureRecipe
from millpond.config.ppo import PPORecipe
from millpond.config.recipe import Recipe
from millpond.config.reward import RewardRecipe
from millpond.config.rules import ConfigError, Violation
from millpond.config.sources import RecipeSource

__all__ = [
    "ConfigError",
    "Loaded",
    "MixtureRecipe",
    "PPORecipe",
    "Recipe",
    "RecipeSource",
    "RewardRecipe",
    "Violation",
    "load",
    "recipe_names",
]
