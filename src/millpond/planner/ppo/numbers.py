"""Numbers of a PPO run, derived once; also its time, the share of each rank, and the total of all ranks.

config -> envs in groups -> rounds of rows -> minibatches -> gradient updates, times iterations
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from math import prod
from typing import Any

from millpond import fast
from millpond.config import Loaded, PPORecipe
from millpond.config.check import flatten, refuse_violations
from millpond.config.ppo import batch_size, num_envs, num_minibatches
from millpond.config.rank_rules import rank_rules
from millpond.config.reward_model import ONLINE
from millpond.envs.spec import EnvSpec
from millpond.formatting import plural, verb
from millpond.planner.device_memory import device_training_memory
from millpond.planner.estimate import Measured, TimeEstimate, speed_sections
from millpond.planner.kind import Plan
from millpond.planner.memory import FLOAT, TrainingMemory, collecting_bytes, training_memory
from millpond.planner.planned import Planned, plan_loaded
from millpond.planner.remembered import AT_THE_START
from millpond.rollout.schema import field_bytes, row_fields, state_shape
from millpond.sizes import rows_per_round, trainer_envs

ACTION_BYTES = 4  # of each number of an action

# Numbers of a plan that are summed over ranks. The others, such as horizon or iterations, are the same for all.
SUMMED = (
    "num_envs", "envs_per_group", "num_workers", "trainer_envs", "total_agents", "batch_size", "segments", "minibatch_size",
    "minibatch_segments", "env_steps", "agent_steps", "agent_steps_per_gradient", "rows_per_round", "top_up_rows",
    "top_up_envs", "surplus_rows", "total_env_steps", "total_agent_steps", "buffer_rows", "buffer_bytes",
)  # fmt: skip


@dataclass(frozen=True)
class PPOPlan(Plan):
    """Numbers of a PPO run, per iteration unless the name says otherwise."""

    num_envs: int
    envs_per_group: int
    groups: int
    num_workers: int
    envs_per_worker: int  # rounded down: workers of a group may differ by one
    trainer_envs: int  # that the trainer steps itself
    vector: str  # how envs are stepped: the backend, or what `auto` does
    num_agents: int
    total_agents: int
    batch_unit: str
    batch_size: int
    segments: int
    bptt_horizon: int
    minibatch_size: int
    minibatch_segments: int
    num_minibatches: int
    update_epochs: int
    gradient_updates: int
    accumulated_parts: int
    env_steps: int
    agent_steps: int
    agent_steps_per_gradient: int
    steps_per_env: float
    rows_per_round: int
    whole_rounds: int
    top_up_rows: int
    top_up_envs: int
    surplus_rows: int
    iterations: int
    total_env_steps: int
    total_agent_steps: int
    total_gradient_updates: int
    unused_timesteps: int
    passes_over_data: float
    buffer_rows: int
    buffer_bytes: int
    observation_bytes: int | None
    field_bytes: tuple[tuple[str, str, int], ...]  # name, shape and dtype, bytes
    collecting_bytes: int | None
    rows_on_device: bool
    training: TrainingMemory | None
    reward_model_bytes: int | None = 0  # of its store and its network with gradients and optimiser state

    @property
    def device_bytes(self) -> int | None:
        """Bytes on a GPU at the peak: the rows, if they are there, states, advantages, and a training step."""
        if self.training is None:
            return None
        rows = self.buffer_bytes if self.rows_on_device else 0
        return rows + (self.collecting_bytes or 0) + self.training.total + (self.reward_model_bytes or 0)

    @property
    def memory_bytes(self) -> int:
        """Bytes of rows, collecting, a training step and a reward model, as far as they are known."""
        training = self.training.total if self.training is not None else 0
        return self.buffer_bytes + (self.collecting_bytes or 0) + training + (self.reward_model_bytes or 0)

    @property
    def updates_in_run(self) -> int:
        return self.total_gradient_updates

    @property
    def env_steps_in_run(self) -> int:
        return self.total_env_steps

    def to_json(self) -> dict[str, Any]:
        flat = {key: value for key, value in asdict(self).items() if key not in ("field_bytes", "training")}
        flat |= {f"{name}_bytes": count for name, _, count in self.field_bytes if name != "observation"}
        if self.training is not None:
            flat |= {f"training_{name}_bytes": count for name, count in asdict(self.training).items()}
            flat["training_bytes"] = self.training.total
            flat["memory_bytes"] = self.memory_bytes
            flat["device_bytes"] = self.device_bytes
        return flat

    def with_agents(self, agents: int) -> str:
        return (
            f"With {agents:,}, {plural(self.num_envs, 'env')} {verb(self.num_envs, 'hold')} "
            f"{plural(self.num_envs * agents, 'agent')}, not "
            f"{self.total_agents:,}: all numbers below are wrong. Find out which is right"
        )


def plan_ppo(recipe: PPORecipe, spec: EnvSpec | None, cores: int = 1, vector: str = AT_THE_START) -> PPOPlan:
    """Derive all numbers. The recipe is valid, so sizes that must divide do.

    `cores` share the rows of a gradient if it is computed on the CPU. `vector` describes what vector.backend=auto does.
    """
    trainer, flat = recipe.trainer, flatten(recipe)
    agents, horizon, unit = recipe.env.num_agents, trainer.bptt_horizon, trainer.batch_unit
    envs, batch = num_envs(flat), batch_size(flat)
    assert envs is not None
    assert batch is not None  # the rules ensure both

    by_trainer = trainer.async_factor * trainer_envs(recipe.vector.trainer_share or 0.0, envs // trainer.async_factor)
    rows = batch // horizon
    agents_per_row = agents if unit == "env_steps" else 1
    per_round = rows_per_round(envs, agents, unit)
    whole_rounds, top_up_rows = divmod(rows, per_round)
    top_up_envs = -(-top_up_rows * agents_per_row // agents)  # whole envs step, which may leave surplus rows
    surplus_rows = top_up_envs * agents // agents_per_row - top_up_rows
    env_steps = (whole_rounds * envs + top_up_envs) * horizon
    minibatches = num_minibatches(batch, trainer.minibatch_size, trainer.replay_ratio)
    iterations = trainer.total_timesteps // batch
    if trainer.total_iterations is not None:
        iterations = min(iterations, trainer.total_iterations)
    # Surplus rows are trained in the next iteration, so envs are rounded up once over the run, not once per iteration.
    run_envs = -(-rows * iterations * agents_per_row // agents)

    # An iteration that whole envs do not fill exactly leaves up to agents - 1 rows in the buffer.
    buffer_rows = rows + (agents - 1 if agents_per_row == 1 and rows % agents else 0)
    policy = recipe.policy
    state_of_agent = state_shape(policy.core, policy.hidden_size, policy.separate_critic, policy.num_layers)
    all_fields = row_fields(
        spec,
        state_of_agent,
        ratio=recipe.ppo.recompute_advantage,
        baseline=recipe.ppo.reward_centering is not None,
        learned_reward=recipe.ppo.reward_model is not None,
    )
    fields = [field for field in all_fields if field.bytes_each]
    sizes = [field_bytes(field, buffer_rows, horizon, agents_per_row) for field in fields]
    shapes = [
        " x ".join(
            map(str, (buffer_rows, *([horizon] if f.per_step else []), *([agents] * (agents_per_row > 1)), *f.shape))
        )
        for f in fields
    ]
    largest = trainer.max_minibatch_size or trainer.minibatch_size
    micro_batch_rows = min(largest, trainer.minibatch_size) // horizon
    return PPOPlan(
        num_envs=envs,
        envs_per_group=envs // trainer.async_factor,
        groups=trainer.async_factor,
        num_workers=trainer.num_workers,
        envs_per_worker=(envs - by_trainer) // trainer.num_workers,
        trainer_envs=by_trainer,
        vector=vector if recipe.vector.backend == "auto" else recipe.vector.backend,
        num_agents=agents,
        total_agents=envs * agents,
        batch_unit=unit,
        batch_size=batch,
        segments=rows,
        bptt_horizon=horizon,
        minibatch_size=trainer.minibatch_size,
        minibatch_segments=trainer.minibatch_size // horizon,
        num_minibatches=minibatches,
        update_epochs=trainer.update_epochs,
        gradient_updates=minibatches * trainer.update_epochs,
        accumulated_parts=trainer.minibatch_size // horizon // micro_batch_rows,
        env_steps=env_steps,
        agent_steps=batch * agents_per_row,
        agent_steps_per_gradient=trainer.minibatch_size * agents_per_row,
        steps_per_env=round(env_steps / envs, 4),
        rows_per_round=per_round,
        whole_rounds=whole_rounds,
        top_up_rows=top_up_rows,
        top_up_envs=top_up_envs,
        surplus_rows=surplus_rows,
        iterations=iterations,
        total_env_steps=run_envs * horizon,
        total_agent_steps=batch * agents_per_row * iterations,
        total_gradient_updates=minibatches * trainer.update_epochs * iterations,
        unused_timesteps=max(0, trainer.total_timesteps - iterations * batch),
        passes_over_data=trainer.update_epochs * minibatches * trainer.minibatch_size / batch,
        buffer_rows=buffer_rows,
        buffer_bytes=sum(sizes),
        observation_bytes=sizes[0] if spec is not None else None,
        field_bytes=tuple(
            (f.name, f"{shape} {f.dtype}", size) for f, shape, size in zip(fields, shapes, sizes, strict=True)
        ),
        collecting_bytes=collecting_bytes(spec, state_of_agent, envs, batch * agents_per_row),
        rows_on_device=not trainer.cpu_offload,
        training=_training_memory(recipe, spec, micro_batch_rows, agents_per_row, cores),
        reward_model_bytes=_reward_model_bytes(recipe, spec) if recipe.ppo.reward_model == ONLINE else 0,
    )


def _training_memory(
    recipe: PPORecipe, spec: EnvSpec | None, rows: int, agents_per_row: int, cores: int
) -> TrainingMemory | None:
    """Return the memory of one gradient over `rows` rows; None if it is not known, as for a custom policy."""
    policy, trainer, optimizer = recipe.policy, recipe.trainer, recipe.ppo.optimizer
    if spec is None or policy.target is not None:
        return None
    if recipe.device != "cpu":
        return device_training_memory(
            spec,
            policy.core,
            policy.hidden_size,
            optimizer,
            rows,
            trainer.bptt_horizon,
            agents_per_row,
            separate_critic=policy.separate_critic,
            num_layers=policy.num_layers,
        )
    return training_memory(
        spec,
        policy.core,
        policy.hidden_size,
        optimizer,
        trainer.precision,
        rows,
        trainer.bptt_horizon,
        agents_per_row,
        cores,
        fast=trainer.fast and fast.is_on() and not trainer.compile,
        separate_critic=policy.separate_critic,
        num_layers=policy.num_layers,
    )


def _reward_model_bytes(recipe: PPORecipe, spec: EnvSpec | None) -> int | None:
    """Return the bytes of a reward model that learns: its store, and four numbers per parameter. None without a spec."""
    if spec is None:
        return None
    observation, action, hidden = spec.observation, spec.action, recipe.reward_model.hidden_size
    record = observation.nbytes + prod(action.shape) * ACTION_BYTES
    width = 2 * prod(observation.shape) + (action.sizes[0] if action.kind == "discrete" else prod(action.shape))
    parameters = (width + 1) * hidden + (hidden + 1) * hidden + hidden + 1
    return recipe.reward_model.records * record + 4 * FLOAT * parameters


def ppo_speed_settings(recipe: PPORecipe) -> dict[str, Any]:
    """Return the settings that decide how long a step takes."""
    trainer = recipe.trainer
    return {
        **speed_sections(recipe, "env", "vector", "policy"),
        "optimizer": recipe.ppo.optimizer,
        "groups": trainer.async_factor,
        "workers": trainer.num_workers,
        "horizon": trainer.bptt_horizon,
        "precision": trainer.precision,
        "compile": trainer.compile,
        "cpu_offload": trainer.cpu_offload,
    }


def estimate_ppo(plan: PPOPlan, measured: Measured) -> TimeEstimate:
    """Scale collecting by agent steps, and training by agent steps times passes over them."""
    sizes, seconds = measured.sizes, measured.seconds
    size = plan.agent_steps / sizes["agent_steps"]
    parts = {
        "collect": seconds["collect"] * size,
        "train": seconds["train"] * size * plan.passes_over_data / sizes["update_epochs"],
        "other": seconds["other"],
    }
    words = ""
    if any(sizes[name] != getattr(plan, name) for name in ("num_envs", "agent_steps", "minibatch_size")):
        words = (
            f"which had {sizes['num_envs']:,} envs, {sizes['agent_steps']:,} agent steps per iteration and minibatches of "
            f"{sizes['minibatch_size']:,}: scaled by agent steps"
        )
    return TimeEstimate("iteration", plan.iterations, parts, sum(parts.values()) * plan.iterations, measured, words)


def ppo_share(loaded: Loaded, ranks: int) -> Loaded:
    """Return the config of one rank: its share of workers, envs, rows and minibatches."""
    recipe = loaded.recipe
    assert isinstance(recipe, PPORecipe)
    refuse_violations(recipe, rank_rules(ranks), loaded.name)
    plan, trainer = _ppo_plan(loaded), recipe.trainer
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
    recipe, share = planned.loaded.recipe, _ppo_plan(loaded)
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
        training=_over_ranks(share.training, ranks),
    )
    return replace(planned, plan=plan)


def _ppo_plan(loaded: Loaded) -> PPOPlan:
    plan = plan_loaded(loaded).plan
    assert isinstance(plan, PPOPlan)
    return plan


def _over_ranks(memory: TrainingMemory | None, ranks: int) -> TrainingMemory | None:
    """Multiply the memory of one rank: each has the network, its optimiser state, and activations of its rows."""
    if memory is None:
        return None
    return TrainingMemory(**{field.name: getattr(memory, field.name) * ranks for field in fields(memory)})
