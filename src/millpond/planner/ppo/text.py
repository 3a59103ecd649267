"""A PPO plan as text and diagrams."""

from __future__ import annotations

from math import ceil

from millpond.config import PPORecipe
from millpond.config.check import flatten
from millpond.config.reward_model import ONLINE
from millpond.config.rules import as_override
from millpond.config.schedules import schedules_of
from millpond.config.style import STYLE_KEYS
from millpond.formatting import bar, box, exact_size, figures, number, plural, sentence, size, verb
from millpond.planner.device_memory import CARDS, describe_cards, largest_steps
from millpond.planner.kind import KindText
from millpond.planner.ppo.compare import (
    SCALE_HEADER,
    compare_ppo,
    ppo_better_for,
    ppo_differences,
    scale_columns,
    scale_remarks,
)
from millpond.planner.ppo.numbers import PPOPlan

FLOAT32 = 4
CORE_NAMES = {"lstm": "LSTM", "gru": "GRU", "mingru": "MinGRU"}


def show_ppo(recipe: PPORecipe, plan: PPOPlan) -> list[str]:
    """Return the lines of a plan: summary, collection, rows, minibatches, one minibatch, the run, memory."""
    return [
        *_summary(plan),
        *_environments(recipe, plan),
        *_collection(plan),
        *_training(recipe, plan),
        *_style(recipe),
        *_run(recipe, plan),
        *_schedules(recipe, plan),
        *_reward_model(recipe, plan),
        *_rows_memory(recipe, plan),
        *_training_memory(recipe, plan),
    ]


def _summary(plan: PPOPlan) -> list[str]:
    return sentence(
        f"{plural(plan.num_envs, 'env')} of {plural(plan.num_agents, 'agent')} {verb(plan.num_envs, 'fill')} "
        f"{plural(plan.segments, 'row')} of {plural(plan.bptt_horizon, 'step')}; "
        f"{plural(plan.num_minibatches, 'minibatch')} {verb(plan.num_minibatches, 'give')} "
        f"{plural(plan.gradient_updates, 'gradient update')} "
        f"per iteration, each on "
        f"{plural(plan.agent_steps_per_gradient, 'agent step')}; {plural(plan.iterations, 'iteration')} in the run."
    )


def _environments(recipe: PPORecipe, plan: PPOPlan) -> list[str]:
    trainer = recipe.trainer
    target = trainer.forward_pass_minibatch_target_size
    rows: list[tuple[str, str, str]] = []
    if target is not None:
        envs = target // plan.num_agents
        rows.append(("forward target // agents per env", number(envs), f"{target:,} // {plan.num_agents}"))
        rows.append(("rounded down to whole workers", number(plan.envs_per_group), "envs per group"))
    else:
        rows.append(("envs per group", number(plan.envs_per_group), f"{plural(plan.num_envs, 'env')} in {plan.groups}"))
    overlap = "one steps while the policy acts for another" if plan.groups > 1 else "envs and policy take turns"
    rows += [
        ("groups", number(plan.groups), overlap),
        ("envs", number(plan.num_envs), _stepped_by(plan)),
        ("agents", number(plan.total_agents), f"{plan.num_agents:,} per env"),
    ]
    if recipe.vector.backend == "auto":
        rows.append(("vector", "auto", plan.vector))
    return ["", "Environments", *figures(rows)]


def _stepped_by(plan: PPOPlan) -> str:
    each = f"{plan.envs_per_worker:,} in each of {plural(plan.num_workers, 'worker')}"
    return f"{each}, {plan.trainer_envs:,} in the trainer itself" if plan.trainer_envs else each


def _collection(plan: PPOPlan) -> list[str]:
    per_row = plural(plan.num_agents, "agent") if plan.batch_unit == "env_steps" else "one agent"
    lines = [
        "",
        "Collection",
        *figures(
            [
                ("rows", number(plan.segments), f"{plural(plan.bptt_horizon, 'step')} of one env with {per_row}")
                if plan.batch_unit == "env_steps"
                else ("rows", number(plan.segments), f"{plural(plan.bptt_horizon, 'step')} of one agent"),
                ("env steps", number(plan.env_steps), _counted(plan, "env_steps")),
                ("agent steps", number(plan.agent_steps), _counted(plan, "agent_steps")),
                ("steps per env, on average", number(plan.steps_per_env)),
            ]
        ),
    ]
    width = 24
    for group in range(min(plan.groups, 4)):
        first, last = group * plan.envs_per_group, (group + 1) * plan.envs_per_group
        lines.append(
            f"  group {_letter(group)} {bar(first, last, plan.num_envs, width)} envs {first:,} to {last - 1:,}"
        )
    if plan.groups > 4:
        lines.append(f"  ... {plural(plan.groups - 4, 'more group')}")
    if plan.whole_rounds:
        rounds = plural(plan.whole_rounds, "whole round")
        lines.append(f"  {rounds}: every env steps {plural(plan.bptt_horizon, 'time')} and fills {_rows_per_env(plan)}")
    if plan.top_up_rows:
        whose = "so every row is of the current policy"
        if plan.surplus_rows:
            surplus = f"{plural(plan.surplus_rows, 'surplus row')} (at most {plan.num_agents - 1})"
            whose = f"whole envs at a time; {surplus} {verb(plan.surplus_rows, 'go')} into the next iteration"
        lines += sentence(
            f"1 top-up round: {plural(plan.top_up_envs, 'env')} (in rotation) "
            f"{verb(plan.top_up_envs, 'fill')} the last {plural(plan.top_up_rows, 'row')}, {whose}"
        )
    return lines


def _rows_per_env(plan: PPOPlan) -> str:
    return "one row" if plan.batch_unit == "env_steps" else plural(plan.num_agents, "row")


def _counted(plan: PPOPlan, unit: str) -> str:
    return "the unit of batch_size" if plan.batch_unit == unit else ""


def _letter(group: int) -> str:
    return "ABCD"[group]


def _training(recipe: PPORecipe, plan: PPOPlan) -> list[str]:
    agents = f" x {plan.num_agents} agents" if plan.batch_unit == "env_steps" and plan.num_agents > 1 else ""
    last = plan.segments - 1
    steps = (
        f"[t0 t1 t2 ... t{plan.bptt_horizon - 1}]"
        if plan.bptt_horizon > 3
        else f"[{plural(plan.bptt_horizon, 'step')}]"
    )
    shown = [0, 1, last] if plan.segments > 2 else list(range(plan.segments))
    label_width = len(f"row {last:,}")
    buffer = [f"{f'row {row:,}':<{label_width}}  {steps}{agents}" for row in shown]
    if plan.segments > 3:
        buffer.insert(2, "...")
    order = {
        "uniform": "a new permutation per epoch: every row exactly once",
        "sequential": "in order: every row exactly once",
        "prioritized": "sampled by priority for each minibatch, with importance weights",
        "independent": "drawn for each minibatch on its own, all rows alike",
    }[recipe.ppo.sampling]
    unit = plan.batch_unit.removesuffix("s").replace("_", " ")
    title = f"{plural(plan.segments, 'row')} x {plural(plan.bptt_horizon, 'step')} = {plural(plan.batch_size, unit)}"
    return [
        "",
        "Training",
        *box(buffer, title),
        f"    ↓ {order}",
        *box(
            _minibatch_bars(plan),
            f"{plural(plan.num_minibatches, 'minibatch')}, {plural(plan.update_epochs, 'update epoch')}",
        ),
        "    ↓ each of them",
        *box(_one_minibatch(recipe, plan, agents), "one minibatch"),
    ]


def _one_minibatch(recipe: PPORecipe, plan: PPOPlan, agents: str) -> list[str]:
    lines = [
        f"{plural(plan.minibatch_segments, 'row')} x {plural(plan.bptt_horizon, 'step')}{agents} "
        f"= {plural(plan.agent_steps_per_gradient, 'agent step')}"
    ]
    if plan.accumulated_parts > 1:
        rows = plural(plan.minibatch_segments // plan.accumulated_parts, "row")
        lines.append(f"in {plan.accumulated_parts} micro-batches of {rows}, their gradients accumulated")
    if recipe.ppo.recompute_advantage:
        lines.insert(0, f"advantages of all {plan.segments:,} rows recomputed, with newest ratios and values")
    return [*lines, _unrolled(recipe, plan), "forward, losses, backward, one gradient update"]


def _unrolled(recipe: PPORecipe, plan: PPOPlan) -> str:
    sequences = plan.minibatch_segments * (plan.num_agents if plan.batch_unit == "env_steps" else 1)
    if recipe.policy.core == "none":
        return f"{plural(sequences, 'sequence')}, no recurrent core"
    steps, layers = plural(plan.bptt_horizon, "step"), recipe.policy.num_layers
    name = CORE_NAMES[recipe.policy.core] + (f" of {layers} layers" if layers > 1 else "")
    return f"{name} unrolled over {steps} of {plural(sequences, 'sequence')}, in order"


def _minibatch_bars(plan: PPOPlan) -> list[str]:
    width, rows = 32, plan.minibatch_segments
    count = plan.num_minibatches
    shown = list(range(count)) if count <= 5 else [0, 1, 2, count - 1]
    label_width = len(f"{count - 1:,}")
    lines = [
        f"{number:>{label_width},} {bar(start, start + rows, plan.segments, width)} {plural(rows, 'row')}"
        for number in shown
        for start in [number * rows % plan.segments]  # a replay ratio may give more minibatches than there are rows for
    ]
    if count > 5:
        lines.insert(3, "...")
    return lines


def _style(recipe: PPORecipe) -> list[str]:
    """List what is kept as PufferLib has it, each with what Millpond does instead."""
    if recipe.ppo.style != "puffer":
        return []
    flat = flatten(recipe)
    lines = ["", "Kept as in PufferLib (ppo.style=puffer; millpond switches to the other)"]
    for one in STYLE_KEYS:
        if one.key.startswith("ppo.prio_") and recipe.ppo.sampling != "prioritized":
            continue
        if one.as_millpond and flat[one.key] == one.puffer != one.millpond:
            said = f"{as_override(one.key, one.puffer)}: {one.as_puffer}. Millpond: {one.as_millpond}."
            lines += sentence(said, first="- ")
    others = [as_override(one.key, flat[one.key]) for one in STYLE_KEYS if flat[one.key] != one.puffer]
    return lines + (sentence(f"Set otherwise: {', '.join(others)}.") if others else [])


def _run(recipe: PPORecipe, plan: PPOPlan) -> list[str]:
    trainer = recipe.trainer
    unit = plan.batch_unit.removesuffix("s").replace("_", " ")
    limited = trainer.total_iterations is not None and plan.iterations == trainer.total_iterations
    why = (
        "limited by trainer.total_iterations"
        if limited
        else f"{trainer.total_timesteps:,} // {plural(plan.batch_size, unit)}, rounded down"
    )
    at_most = "at most; ppo.target_kl may end an iteration early" if recipe.ppo.target_kl else ""
    passes = "on average" if recipe.ppo.sampling in ("prioritized", "independent") else "update_epochs"
    rows = [
        ("iterations", number(plan.iterations), why),
        ("env steps", number(plan.total_env_steps), ""),
        ("agent steps", number(plan.total_agent_steps), ""),
        ("gradient updates", number(plan.total_gradient_updates), at_most),
        ("passes over each row", number(plan.passes_over_data), passes),
    ]
    return ["", "The run", *figures(rows)]


def _schedules(recipe: PPORecipe, plan: PPOPlan) -> list[str]:
    """List what changes during the run."""
    rows = []
    for one in schedules_of(flatten(recipe)):
        parts = [one.kind]
        if one.warmup:
            first = min(ceil(one.warmup * plan.iterations), plan.iterations)
            parts.append(f"after a warm-up of {plural(first, 'iteration')}")
        if one.until < 1:
            parts.append(f"until {one.until:.3g} of the run")
        if one.floor is not None:
            parts.append(f"never below {one.floor:.3g}")
        change = f"{one.start:.3g}" if one.kind == "constant" else f"{one.start:.3g} to {one.end:.3g}"
        rows.append((one.path, change, ", ".join(parts)))
    return ["", "Schedules", *figures(rows)] if rows else []


def _reward_model(recipe: PPORecipe, plan: PPOPlan) -> list[str]:
    """Say where rewards come from if they are not the env's, and what that costs."""
    name, settings = recipe.ppo.reward_model, recipe.reward_model
    if name is None:
        return []
    lines = ["", "Reward model (ppo.reward_model)"]
    if name != ONLINE:
        return lines + sentence(
            f"Advantages are estimated from the rewards that run {name} predicts; it learns no more."
        )
    steps = settings.episodes_per_batch * settings.steps_per_episode
    memory = "" if plan.reward_model_bytes is None else f"{size(plan.reward_model_bytes)}; "
    shape = f"{settings.episodes_per_batch:,} episodes x {settings.steps_per_episode:,} steps = {steps:,} steps each"
    rows = [
        ("records in its store", number(settings.records), f"{memory}saved in every checkpoint"),
        ("finished episodes to begin", number(settings.min_episodes), "until then the env's rewards count"),
        ("updates per iteration", number(settings.updates), f"{settings.objective}, {shape}"),
        ("updates in the run", number(settings.updates * plan.iterations), "at most"),
    ]
    return lines + figures(rows)


def _rows_memory(recipe: PPORecipe, plan: PPOPlan) -> list[str]:
    rows = [(name, f"{count:,}", shape) for name, shape, count in plan.field_bytes]
    rows.append(("all fields", f"{plan.buffer_bytes:,}", size(plan.buffer_bytes)))
    lines = ["", "Memory of the rows, in bytes", *figures(rows)]
    if plan.observation_bytes is None:
        lines += sentence(
            f"Observations of {recipe.env.id} are not included: their size is known only to the environment itself."
        )
    elif recipe.env.id == "grid":
        check = plan.segments * plan.bptt_horizon * recipe.env.obs_size**2 * FLOAT32
        lines += sentence(
            f"(As float32, one {recipe.env.obs_size}x{recipe.env.obs_size} view per row and step would take "
            f"{exact_size(check)}; here a cell is one byte, and every agent's view is stored.)"
        )
    return lines


def _training_memory(recipe: PPORecipe, plan: PPOPlan) -> list[str]:
    training = plan.training
    if training is None:
        return []
    parts = " (one micro-batch)" if plan.accumulated_parts > 1 else ""
    sets, on_cpu = training.gradients // training.parameters, recipe.device == "cpu"
    rows = [
        (f"minibatch{parts}", size(training.minibatch), "observations, stored for the backward pass"),
        ("activations", size(training.activations), f"and their gradients, {recipe.trainer.precision}"),
        *(
            [
                (
                    "workspace",
                    size(training.workspace),
                    "at most; it depends on the processor" if on_cpu else "to clip gradients",
                )
            ]
            if training.workspace
            else []
        ),
        ("parameters", size(training.parameters), f"{training.parameters // FLOAT32:,} numbers"),
        ("gradients", size(training.gradients), f"{sets} sets, one per thread" if sets > 1 else ""),
        ("optimiser state", size(training.optimizer), recipe.ppo.optimizer),
        ("total", size(training.total), f"on {recipe.device}, in addition to the rows"),
    ]
    lines = ["", "Memory of one training step, estimated", *figures(rows)]
    collecting = size(plan.collecting_bytes or 0)
    if on_cpu:
        return lines + sentence(
            f"With the rows, and {collecting} for env arrays, recurrent states and advantages: "
            f"{size(plan.memory_bytes)}, without the interpreter and its libraries."
        )
    assert plan.device_bytes is not None
    rows_of = "the rows stay in the computer's memory" if not plan.rows_on_device else "with the rows"
    lines += sentence(f"On the GPU, {rows_of}: {describe_cards(plan.device_bytes)}.")
    steps = plan.agent_steps_per_gradient // plan.accumulated_parts
    other = plan.device_bytes - training.total
    each = plan.bptt_horizon * (plan.agent_steps_per_gradient // plan.minibatch_size)  # agent steps of a row
    rows_by_card = {card: largest_steps(training, steps, other, card) // each for card in CARDS}
    limits = ", ".join(f"{card} GB {rows * plan.bptt_horizon:,}" for card, rows in rows_by_card.items())
    return lines + sentence(f"Largest trainer.max_minibatch_size by card: {limits}.")


TEXT = KindText(
    show=show_ppo,
    compare_rows=compare_ppo,
    differences=ppo_differences,
    better_for=ppo_better_for,
    in_table=("ppo.sampling", "ppo.style", "ppo.advantage", "ppo.recompute_advantage"),
    scale_header=SCALE_HEADER,
    scale_columns=scale_columns,
    scale_remarks=scale_remarks,
)
