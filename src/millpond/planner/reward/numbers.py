"""Numbers of reward learning (epoch > cycle > iteration > batch), and the recorded episodes that they depend on.

Of recorded episodes sizes are read, frames are not.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from millpond.config import RewardRecipe
from millpond.data import DataError, Episodes, open_episodes, unfit
from millpond.data.audit import OBJECTIVES, refusal, split_episodes
from millpond.data.source import data_exists
from millpond.envs.spec import EnvSpec
from millpond.planner.device_memory import reward_device_bytes
from millpond.planner.estimate import Measured, TimeEstimate, speed_sections
from millpond.planner.kind import Plan
from millpond.planner.remembered import AT_THE_START


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


@dataclass(frozen=True)
class RewardPlan(Plan):
    """Numbers of a reward run. One batch is one gradient update."""

    epochs: int
    cycles: int
    iterations: int
    train_batches: int
    batches_per_iteration: int
    batches_per_cycle: int
    batches_per_epoch: int
    batches: int
    records_per_cycle: int
    lines_per_cycle: int
    iteration_lines_per_cycle: int
    tensorboard_points: int
    checkpoints: int
    save_freq: int
    target_updates: int
    objective: str
    reward_only: bool
    episodes_per_batch: int
    steps_per_episode: int
    steps_per_batch: int
    steps_in_all: int
    dataset_episodes: int | None
    dataset_steps: int | None
    training_episodes: int | None
    held_out_episodes: int | None
    passes_over_data: float | None
    batches_per_pass: float | None
    dataset: Dataset | None  # None if the data was not read
    vector: str | None  # how the agent's envs are stepped: the backend, or what `auto` does; None without an agent
    env_steps: int
    env_steps_per_cycle: int
    test_episodes: int
    device_bytes: int | None  # on a GPU, at the peak; None without an agent: the data's size decides

    @property
    def updates_in_run(self) -> int:
        return self.batches

    @property
    def env_steps_in_run(self) -> int:
        return self.env_steps

    def to_json(self) -> dict[str, Any]:
        flat = {key: value for key, value in asdict(self).items() if key != "dataset"}
        if self.dataset is not None:
            flat |= {f"dataset_{name}": value for name, value in asdict(self.dataset).items() if name not in flat}
        return flat


def plan_reward(
    recipe: RewardRecipe, dataset: Dataset | None = None, vector: str = AT_THE_START, spec: EnvSpec | None = None
) -> RewardPlan:
    """Derive all numbers. Without a dataset, its sizes are those that the recipe expects, if it has any."""
    reward, data, agent = recipe.reward, recipe.data, recipe.agent
    epochs = min(reward.epochs, recipe.trainer.total_iterations or reward.epochs)
    per_cycle = reward.iterations * reward.train_batches
    per_epoch = reward.cycles * per_cycle
    batches = epochs * per_epoch
    save_freq = reward.save_freq or recipe.checkpoint.interval or 1
    steps_per_batch = reward.episodes_per_batch * reward.steps_per_episode

    episodes, steps = data.expected_episodes, data.expected_steps
    held_out = training_episodes = training_steps = None
    if dataset is not None:
        episodes, steps, held_out = dataset.episodes, dataset.steps, dataset.held_out_episodes
        training_episodes, training_steps = dataset.training_episodes, float(dataset.training_steps)
    elif episodes is not None:
        held_out = len(set(data.held_out)) or round(episodes * data.holdout)
        training_episodes = episodes - held_out
        training_steps = None if steps is None else steps * training_episodes / episodes
    per_pass = training_steps / steps_per_batch if training_steps else None
    online = not reward.reward_only
    steps_per_env = epochs * reward.cycles * reward.iterations * agent.steps_per_iteration + agent.warmup_steps
    return RewardPlan(
        epochs=epochs,
        cycles=reward.cycles,
        iterations=reward.iterations,
        train_batches=reward.train_batches,
        batches_per_iteration=reward.train_batches,
        batches_per_cycle=per_cycle,
        batches_per_epoch=per_epoch,
        batches=batches,
        records_per_cycle=per_cycle,
        lines_per_cycle=per_cycle // reward.log_batches,
        iteration_lines_per_cycle=reward.iterations,
        tensorboard_points=epochs * reward.cycles,
        checkpoints=-(-epochs // save_freq),
        save_freq=save_freq,
        target_updates=batches // reward.train_target,
        objective=reward.objective,
        reward_only=reward.reward_only,
        episodes_per_batch=reward.episodes_per_batch,
        steps_per_episode=reward.steps_per_episode,
        steps_per_batch=steps_per_batch,
        steps_in_all=batches * steps_per_batch,
        dataset_episodes=episodes,
        dataset_steps=steps,
        training_episodes=training_episodes,
        held_out_episodes=held_out,
        passes_over_data=None if per_pass is None else batches / per_pass,
        batches_per_pass=per_pass,
        dataset=dataset,
        vector=vector if online else None,
        env_steps=steps_per_env * agent.num_envs if online else 0,
        env_steps_per_cycle=reward.iterations * agent.steps_per_iteration * agent.num_envs if online else 0,
        test_episodes=epochs * reward.cycles * agent.test_episodes if online else 0,
        device_bytes=reward_device_bytes(recipe, spec) if online and spec is not None else None,
    )


def reward_speed_settings(recipe: RewardRecipe) -> dict[str, Any]:
    """Return the settings that decide how long a step takes."""
    online = ("env", "vector", "agent") if recipe.acts else ()
    return speed_sections(recipe, "data", "reward", *online)


def estimate_reward(plan: RewardPlan, measured: Measured) -> TimeEstimate:
    """Scale by batches and env steps."""
    sizes, seconds = measured.sizes, measured.seconds
    parts = {
        "act": seconds["act"] * plan.env_steps_per_cycle / sizes["env_steps"] if sizes["env_steps"] else 0.0,
        "train": seconds["train"] * plan.batches_per_cycle / sizes["batches"],
        "other": seconds["other"] * plan.batches_per_cycle / sizes["batches"],
    }
    cycles = plan.epochs * plan.cycles
    return TimeEstimate("cycle", cycles, parts, sum(parts.values()) * cycles, measured)
