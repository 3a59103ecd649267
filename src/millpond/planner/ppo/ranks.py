"""PPO over several ranks: the config of one, and the plan of all together."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from millpond.config import Loaded, PPORecipe
from millpond.config.check import refuse_violations
from millpond.config.rank_rules import rank_rules
from millpond.planner.memory import TrainingMemory
from millpond.planner.planned import Planned, plan_loaded
from millpond.planner.ppo.numbers import PPOPlan

# Numbers of a plan that are summed over ranks. The others, such as horizon or iterations, are the same for all.
SUMMED = (
    "num_envs", "envs_per_group", "num_workers", "trainer_envs", "total_agents", "batch_size", "segments", "minibatch_size",
    "minibatch_segments", "env_steps", "agent_steps", "agent_steps_per_gradient", "rows_per_round", "top_up_rows",
    "top_up_envs", "surplus_rows", "total_env_steps", "total_agent_steps", "buffer_rows", "buffer_bytes",
)  # fmt: skip


def ppo_share(loaded: Loaded, ranks: int) -> Loaded:
    """Return the config of one rank: its share of workers, envs, rows and minibatches."""
    recipe = loaded.recipe
    assert isinstance(recipe, PPORecipe)
    refuse_violations(recipe, rank_rules(ranks), loaded.name)
    plan, trainer = _plan(loaded), recipe.trainer
    sizes: dict[str, Any] = {
        "num_workers": trainer.num_workers // ranks,
        "num_envs": plan.num_envs // ranks,
        "forward_pass_minibatch_target_size": None,
        "batch_size": plan.batch_size // ranks,
        "minibatch_size": trainer.minibatch_size // ranks,
        "max_minibatch_size": trainer.max_minibatch_size
        and min(trainer.max_minibatch_size, trainer.minibatch_size) // ranks,
        "total_timesteps": trainer.total_timesteps // ranks,
    }
    vector = recipe.vector.model_copy(update={"threads": recipe.vector.threads and recipe.vector.threads // ranks})
    share = recipe.model_copy(update={"trainer": trainer.model_copy(update=sizes), "vector": vector})
    return replace(loaded, recipe=share)


def ppo_total(planned: Planned, loaded: Loaded, ranks: int) -> Planned:
    """Return the plan of all ranks, from the config of one.

    Each rank tops up its own rows with whole envs, so with batch_unit=agent_steps a few more rows may be left for
    the next iteration than with one rank.
    """
    recipe, share = planned.loaded.recipe, _plan(loaded)
    assert isinstance(recipe, PPORecipe)
    total: dict[str, Any] = {name: getattr(share, name) * ranks for name in SUMMED}
    if share.observation_bytes is not None:
        total["observation_bytes"] = share.observation_bytes * ranks
    if share.collecting_bytes is not None:
        total["collecting_bytes"] = share.collecting_bytes * ranks
    plan = replace(
        share,
        **total,
        unused_timesteps=max(0, recipe.trainer.total_timesteps - share.iterations * share.batch_size * ranks),
        field_bytes=tuple((name, f"{ranks} ranks of {shape}", size * ranks) for name, shape, size in share.field_bytes),
        training=_times(share.training, ranks),
    )
    return replace(planned, plan=plan)


def _plan(loaded: Loaded) -> PPOPlan:
    plan = plan_loaded(loaded).plan
    assert isinstance(plan, PPOPlan)
    return plan


def _times(memory: TrainingMemory | None, ranks: int) -> TrainingMemory | None:
    """Multiply the memory of one rank: each has the network, its optimiser state, and activations of its rows."""
    if memory is None:
        return None
    return TrainingMemory(**{field.name: getattr(memory, field.name) * ranks for field in fields(memory)})
