"""The recorded episodes of a reward run, as far as a plan needs them: sizes are read, frames are not."""

from __future__ import annotations

from dataclasses import dataclass

from millpond.config import RewardRecipe
from millpond.data import DataError, Episodes, open_episodes, unfit
from millpond.data.audit import OBJECTIVES, refusal, split_episodes
from millpond.data.source import data_exists


@dataclass(frozen=True)
class Dataset:
    """Sizes and fields of recorded episodes, and the objectives that they suit."""

    path: str
    layout: str  # such as "imitation npz"
    episodes: int
    steps: int
    shortest: int  # steps of the shortest episode
    longest: int
    training_episodes: int
    training_steps: int
    held_out_episodes: int
    observation: tuple[str, ...]  # the fields in use, such as "obs float32[3]"
    action: str | None  # such as "float32[1]"; None if actions are missing
    objectives: tuple[str, ...]  # for which these episodes are suitable
    refusal: str | None  # why training refuses the recipe's objective, and what to set instead


def open_data(recipe: RewardRecipe, path: str) -> Episodes:
    """Open the episodes at a path with the settings of the recipe's data section."""
    data = recipe.data
    return open_episodes(
        path, data.observation_keys, data.images, drop_columns=data.drop_columns, memory_bytes=data.memory_bytes
    )


def open_training_data(recipe: RewardRecipe) -> Episodes:
    """Open the episodes at data.path, and compare them with the sizes that the recipe expects."""
    data = open_data(recipe, recipe.data.path)
    for key, expected, actual in (
        ("data.expected_episodes", recipe.data.expected_episodes, len(data)),
        ("data.expected_steps", recipe.data.expected_steps, data.total_steps),
    ):
        if expected is not None and expected != actual:
            raise DataError(f"{key}={expected:,}, but {data.path} has {actual:,}; set {key}={actual} or {key}=null")
    return data


def read_dataset(recipe: RewardRecipe) -> tuple[Dataset | None, tuple[str, ...]]:
    """Read the sizes of a recipe's data, and return them with notes for the reader.

    None if nothing is read: full mode learns from its own episodes; and a recipe that sets the size of its data
    (data.expected_episodes) can be planned on a machine that does not have it, such as `reward-libero` without LIBERO.
    """
    if not recipe.reward.reward_only:
        return None, ()
    if recipe.data.expected_episodes is not None and not data_exists(recipe.data.path):
        return None, (
            f"data.path={recipe.data.path} is not on this machine: episodes and steps are those that the recipe expects "
            f"(data.expected_episodes, data.expected_steps). To use another file or folder: data.path=PATH",
        )
    dataset = dataset_of(recipe, open_training_data(recipe))
    if recipe.reward.negatives is not None:
        open_data(recipe, recipe.reward.negatives)
    return dataset, ()


def dataset_of(recipe: RewardRecipe, data: Episodes) -> Dataset:
    """Describe opened episodes for the plan of a recipe."""
    reasons, objective = unfit(data), recipe.reward.objective
    suited = objective if objective not in reasons else ""  # progress leaves out failed episodes
    training, held_out = split_episodes(data, suited, recipe.data.holdout, recipe.data.held_out, recipe.seed)
    return Dataset(
        path=data.path,
        layout=", ".join(sorted({source.layout for source in data.sources})),
        episodes=len(data),
        steps=data.total_steps,
        shortest=int(data.lengths.min()),
        longest=int(data.lengths.max()),
        training_episodes=len(training),
        training_steps=int(data.lengths[training].sum()),
        held_out_episodes=len(held_out),
        observation=tuple(f"{field.name} {field}" for field in data.fields.values()),
        action=None if data.action is None else str(data.action),
        objectives=tuple(name for name in OBJECTIVES if name not in reasons),
        refusal=refusal(data, objective),
    )
