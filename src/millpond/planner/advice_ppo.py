"""Advice on a PPO plan."""

from __future__ import annotations

from collections.abc import Iterator

from millpond.config.check import flatten, written
from millpond.config.recipe import PPORecipe
from millpond.planner.advice import Advice, advise
from millpond.planner.host import Host
from millpond.planner.lines import number, plural, size
from millpond.planner.ppo import PPOPlan
from millpond.sizes import nearest_divisors, nearest_multiples

MANY_AGENTS = 24
FEW_AGENTS = 2
AGENT_STEPS_OF_THREE = 3  # the documents' agent count, which their sizes were chosen for
MEMORY_SHARE = 0.8  # of the machine's, that a run should stay below


def advise_ppo(recipe: PPORecipe, plan: PPOPlan, host: Host | None) -> list[Advice]:
    """Everything worth saying, what matters most first."""
    advice = [*_top_up(recipe, plan), *_idle_envs(recipe, plan)]
    if host is not None:
        advice += [*_memory(recipe, plan, host), *_workers(recipe, plan, host)]
    if plan.num_agents >= MANY_AGENTS:
        advice += _many_agents(recipe, plan)
    elif plan.num_agents <= FEW_AGENTS:
        advice += _few_agents(recipe, plan)
    return [*advice, *_speed(recipe, plan, host)]


def _top_up(recipe: PPORecipe, plan: PPOPlan) -> Iterator[Advice]:
    """The nearest batch size that whole rounds fill."""
    if not plan.top_up_rows or not plan.whole_rounds:
        return
    flat, keys = flatten(recipe), written(recipe)
    one_round = plan.rows_per_round * plan.bptt_horizon
    batch = nearest_multiples(plan.batch_size, one_round)[0]
    minibatch = nearest_divisors(plan.minibatch_size, batch, plan.bptt_horizon)[0]
    overrides = {"trainer.batch_size": batch}
    if minibatch != plan.minibatch_size:
        overrides["trainer.minibatch_size"] = minibatch
    yield from advise(
        "top-up round",
        f"{plan.segments:,} rows are not a multiple of the {plan.rows_per_round:,} that one round fills, so a short round "
        f"of {plural(plan.top_up_envs, 'env')} fills the last {plan.top_up_rows:,} while the others wait; "
        f"{batch // one_round} whole rounds need none",
        flat,
        keys,
        overrides,
    )


def _idle_envs(recipe: PPORecipe, plan: PPOPlan) -> Iterator[Advice]:
    if plan.whole_rounds:
        return
    yield from advise(
        "idle envs",
        f"an iteration of {plan.segments:,} rows is less than one round of {plan.rows_per_round:,}: most envs wait while "
        f"{plural(plan.top_up_envs, 'env')} step; one round for all",
        flatten(recipe),
        written(recipe),
        {"trainer.batch_size": plan.rows_per_round * plan.bptt_horizon},
    )


def _memory(recipe: PPORecipe, plan: PPOPlan, host: Host) -> Iterator[Advice]:
    if plan.training is None or not host.memory or recipe.device != "cpu":
        return
    limit = int(host.memory * MEMORY_SHARE)
    needed = plan.buffer_bytes + plan.training.total
    if needed <= limit:
        return
    reason = (
        f"rows ({size(plan.buffer_bytes)}) and a training step ({size(plan.training.total)}) together exceed "
        f"{MEMORY_SHARE:.0%} of this machine's {size(host.memory)}"
    )
    flat, keys = flatten(recipe), written(recipe)
    per_step = (plan.training.minibatch + plan.training.activations) / plan.minibatch_size * plan.accumulated_parts
    room = limit - plan.buffer_bytes - (plan.training.total - plan.training.minibatch - plan.training.activations)
    if room >= per_step * plan.bptt_horizon:
        fits = [
            part
            for part in nearest_divisors(int(room / per_step), plan.minibatch_size, plan.bptt_horizon)
            if part * per_step <= room
        ]
        if fits:
            parts = {"trainer.max_minibatch_size": fits[0]}
            yield from advise("memory", f"{reason}; parts of this size fit", flat, keys, parts)
            return
    smaller = max(plan.bptt_horizon, int(plan.batch_size * limit / needed / 2))
    yield from advise(
        "memory",
        f"{reason}; a smaller batch fits",
        flat,
        keys,
        {"trainer.batch_size": nearest_multiples(smaller, plan.bptt_horizon)[0]},
    )


def _workers(recipe: PPORecipe, plan: PPOPlan, host: Host) -> Iterator[Advice]:
    if plan.num_workers > host.cores and recipe.vector.backend in ("auto", "processes"):
        yield Advice(
            "workers",
            f"{plan.num_workers} workers share {plural(host.cores, 'core')} here. They sleep while they wait, so this costs "
            f"memory and switching, nothing else. Env counts are rounded to workers: trainer.num_workers={host.cores} "
            f"gives {_envs_with(recipe, plan, host.cores)}",
        )


def _envs_with(recipe: PPORecipe, plan: PPOPlan, workers: int) -> str:
    target = recipe.trainer.forward_pass_minibatch_target_size
    if target is None:
        return f"the same {plan.num_envs:,} envs" if plan.num_envs % workers == 0 else "another count of envs"
    envs = target // plan.num_agents // workers * workers * plan.groups
    return f"{envs:,} envs instead of {plan.num_envs:,}"


def _many_agents(recipe: PPORecipe, plan: PPOPlan) -> Iterator[Advice]:
    flat, keys = flatten(recipe), written(recipe)
    if plan.batch_unit == "env_steps":
        wanted = plan.batch_size * AGENT_STEPS_OF_THREE // plan.num_agents
        batch = nearest_multiples(wanted, plan.minibatch_size)[0]
        if batch < plan.batch_size:
            yield from advise(
                "many agents",
                f"batch_size counts env steps, so {plan.num_agents} agents an env make an iteration "
                f"{plan.agent_steps:,} agent steps long; about as many as three agents would give, and the policy is "
                f"renewed {plan.batch_size / batch:.0f} times as often",
                flat,
                keys,
                {"trainer.batch_size": batch},
            )
    minibatch = plan.minibatch_size * 2
    if plan.batch_size % minibatch == 0:
        yield from advise(
            "many agents",
            "agents of one env see the same events, so a gradient averages over fewer independent ones than it has "
            "steps; larger minibatches steady it, at fewer updates",
            flat,
            keys,
            {"trainer.minibatch_size": minibatch},
        )
    yield from advise(
        "many agents",
        f"an env with {plan.num_agents} agents is slow to step, and {plan.envs_per_worker:,} of them queue in each worker; "
        f"more workers shorten the queue where there are cores for them",
        flat,
        keys,
        {"trainer.num_workers": plan.num_workers * 2},
    )


def _few_agents(recipe: PPORecipe, plan: PPOPlan) -> Iterator[Advice]:
    flat, keys = flatten(recipe), written(recipe)
    if plan.batch_unit == "env_steps":
        yield from advise(
            "few agents",
            f"{plural(plan.num_agents, 'agent')} an env leave {plan.agent_steps_per_gradient:,} agent steps to a gradient; "
            f"a larger batch gives each iteration more",
            flat,
            keys,
            {"trainer.batch_size": plan.batch_size * 2},
        )
    target = recipe.trainer.forward_pass_minibatch_target_size
    if target is not None and target // 2 // plan.num_agents >= plan.num_workers:
        yield from advise(
            "few agents",
            f"{plan.num_envs:,} envs of {plural(plan.num_agents, 'agent')} are many to hold; a smaller forward target needs "
            f"half of them and steps each twice as long",
            flat,
            keys,
            {"trainer.forward_pass_minibatch_target_size": target // 2},
        )
    if plan.num_workers > 1 and plan.num_workers % 2 == 0:
        yield from advise(
            "few agents",
            f"small envs step fast, and {plan.num_workers} workers then spend more on waking up than on stepping",
            flat,
            keys,
            {"trainer.num_workers": plan.num_workers // 2},
        )


def _speed(recipe: PPORecipe, plan: PPOPlan, host: Host | None) -> Iterator[Advice]:
    flat, keys = flatten(recipe), written(recipe)
    if plan.groups == 1 and plan.num_workers > 1:
        yield from advise(
            "speed",
            "envs and policy take turns; with two groups one steps while the other is with the policy",
            flat,
            keys,
            {"trainer.async_factor": 2},
        )
    has_bfloat16 = recipe.device.startswith("cuda") or (recipe.device == "cpu" and host is not None and host.bfloat16)
    if recipe.trainer.precision == "float32" and has_bfloat16:
        yield from advise(
            "speed",
            "bfloat16 roughly halves the time of network arithmetic on this hardware; compare curves before you rely on it",
            flat,
            keys,
            {"trainer.precision": "bfloat16"},
        )
    if not recipe.trainer.compile:
        yield from advise(
            "speed",
            "a compiled policy fuses small operations; the first iteration is slower while it compiles",
            flat,
            keys,
            {"trainer.compile": True},
        )
    if plan.num_minibatches >= 4 and plan.batch_size % (plan.minibatch_size * 2) == 0 and recipe.device != "cpu":
        yield from advise(
            "speed",
            f"{number(plan.agent_steps_per_gradient)} agent steps may not fill an accelerator; twice as many a minibatch "
            f"are fewer, larger products, but {plan.gradient_updates // 2} updates instead of {plan.gradient_updates}",
            flat,
            keys,
            {"trainer.minibatch_size": plan.minibatch_size * 2},
        )
