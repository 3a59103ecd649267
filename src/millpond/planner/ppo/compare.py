"""Comparison of PPO plans: the table, differences that matter, what each is better for; and the table of `--scale`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from millpond.config import PPORecipe
from millpond.config.check import flatten
from millpond.config.rules import show
from millpond.config.style import STYLE_KEYS
from millpond.formatting import number, plural, size, verb
from millpond.planner.kind import ComparisonRow
from millpond.planner.planned import Planned
from millpond.planner.ppo.numbers import PPOPlan
from millpond.planner.ppo.purposes import purposes


def _plan(planned: Planned) -> PPOPlan:
    assert isinstance(planned.plan, PPOPlan)
    return planned.plan


def compare_ppo(a: Planned, b: Planned) -> list[ComparisonRow]:
    """Return the table of a comparison."""
    p, q = _plan(a), _plan(b)

    def row(label: str, value: Callable[[PPOPlan], Any], note: str = "") -> ComparisonRow:
        left, right = value(p), value(q)
        return ComparisonRow(label, left, right, note or _ratio(left, right))

    ours, theirs = a.loaded.recipe, b.loaded.recipe
    unit = "counted differently" if p.batch_unit != q.batch_unit else ""
    return [
        ComparisonRow("Environment setup", heading=True),
        ComparisonRow("Environment", ours.env.id, theirs.env.id),
        row("Total environments", lambda x: x.num_envs),
        row("Environments per group", lambda x: x.envs_per_group, _who_overlaps(p, q)),
        row("Groups", lambda x: x.groups),
        row("Workers", lambda x: x.num_workers),
        row("Environments per worker", lambda x: x.envs_per_worker),
        row("Agents per env", lambda x: x.num_agents, "" if p.num_agents == q.num_agents else "see the alert"),
        ComparisonRow("Batch sizes", heading=True),
        row("batch_unit", lambda x: x.batch_unit, unit),
        row("batch_size, in its unit", lambda x: x.batch_size),
        row("Env steps per iteration", lambda x: x.env_steps),
        row("Agent steps per iteration", lambda x: x.agent_steps),
        row("minibatch_size, in its unit", lambda x: x.minibatch_size),
        row("bptt_horizon", lambda x: x.bptt_horizon),
        row("Steps per env and iteration", lambda x: x.steps_per_env),
        ComparisonRow("Calculated values", heading=True),
        row("Total agents", lambda x: x.total_agents),
        row("Rows", lambda x: x.segments),
        row("Rows per minibatch", lambda x: x.minibatch_segments),
        row("Minibatches", lambda x: x.num_minibatches),
        row("Whole rounds", lambda x: x.whole_rounds),
        row("Rows topped up", lambda x: x.top_up_rows),
        ComparisonRow("Training loop", heading=True),
        row("Update epochs", lambda x: x.update_epochs),
        ComparisonRow("Algorithm (ppo.style)", _recipe(a).ppo.style, _recipe(b).ppo.style),
        ComparisonRow("Advantages", _advantages(a), _advantages(b)),
        ComparisonRow("Rows are sampled", _sampling(a), _sampling(b)),
        row("Gradient updates", lambda x: x.gradient_updates),
        row("Agent steps per gradient", lambda x: x.agent_steps_per_gradient),
        row("Iterations in the run", lambda x: x.iterations),
        row("Agent steps in the run", lambda x: x.total_agent_steps),
        ComparisonRow("Memory", heading=True),
        row("Rows, bytes", lambda x: x.buffer_bytes),
        row("Training step, bytes", lambda x: x.training.total if x.training else None),
    ]


def _who_overlaps(p: PPOPlan, q: PPOPlan) -> str:
    if p.groups > 1 and q.groups > 1:
        return "both overlap"
    if p.groups == q.groups:
        return "neither overlaps"
    return f"only {'the first' if p.groups > 1 else 'the second'} overlaps"


def _recipe(planned: Planned) -> PPORecipe:
    assert isinstance(planned.loaded.recipe, PPORecipe)
    return planned.loaded.recipe


def _sampling(planned: Planned) -> str:
    return _recipe(planned).ppo.sampling


def _advantages(planned: Planned) -> str:
    ppo = _recipe(planned).ppo
    return f"{ppo.advantage}, {'per update' if ppo.recompute_advantage else 'once'}"


def _ratio(a: Any, b: Any) -> str:
    """Return the ratio of the second to the first, if both are numbers."""
    if isinstance(a, str) or isinstance(b, str) or not a or not b:
        return ""
    if a == b:
        return "same"
    ratio = b / a
    return f"x{number(round(ratio, 2))}" if ratio >= 1 else f"/{number(round(1 / ratio, 2))}"


def ppo_differences(a: Planned, b: Planned) -> Iterator[str]:
    """Yield the differences that matter."""
    p, q = _plan(a), _plan(b)
    x, y = a.loaded.name, b.loaded.name
    if p.batch_unit != q.batch_unit:
        yield (
            f"Units: {x} counts {p.batch_unit}, {y} {q.batch_unit}. In agent steps an iteration has {p.agent_steps:,} "
            f"against {q.agent_steps:,}, and a gradient {p.agent_steps_per_gradient:,} against "
            f"{q.agent_steps_per_gradient:,}."
        )
    if _recipe(a).ppo.style != _recipe(b).ppo.style:
        yield from _styles(a, b)
    yield from purposes(_recipe(a), _recipe(b))
    if p.gradient_updates != q.gradient_updates:
        yield (
            f"Updates: {p.gradient_updates:,} against {q.gradient_updates:,} per iteration. Per million agent steps this "
            f"is {number(_per_million(p))} against {number(_per_million(q))}, the fairer measure since iterations differ."
        )
    if p.groups > 1 or q.groups > 1:
        yield f"Overlap: {_overlap(x, p)}; {_overlap(y, q)}."
    if p.num_envs != q.num_envs or p.steps_per_env != q.steps_per_env:
        yield (
            f"Diversity: an iteration has {plural(p.num_envs, 'env')} for {_steps(p.steps_per_env)} each against "
            f"{q.num_envs:,} for {number(q.steps_per_env)}. More envs give more varied experience; more steps per env reach "
            f"later parts of an episode."
        )
    for side, plan in ((a, p), (b, q)):
        yield (
            f"Staleness, {side.loaded.name}: the last of {plural(plan.gradient_updates, 'update')} trains on rows that are "
            f"{plural(plan.gradient_updates - 1, 'update')} old"
            + (f", and every row is used {plan.update_epochs} times" if plan.update_epochs > 1 else "")
            + (
                f"; up to {plural(plan.num_agents - 1, 'row')} {verb(plan.num_agents - 1, 'are')} from the previous iteration."
                if plan.surplus_rows
                else "; none is older."
            )
        )
    if p.buffer_bytes != q.buffer_bytes:
        yield f"Memory: rows of {size(p.buffer_bytes)} against {size(q.buffer_bytes)}{_training_steps(p, q)}."


def _styles(a: Planned, b: Planned) -> Iterator[str]:
    """Yield what the algorithms of PufferLib and of Millpond do differently, as far as these two configs do."""
    puffer, millpond = (a, b) if _recipe(a).ppo.style == "puffer" else (b, a)
    theirs, ours = flatten(_recipe(puffer)), flatten(_recipe(millpond))
    yield (
        f"Algorithm: {puffer.loaded.name} is PufferLib's, {millpond.loaded.name} Millpond's; ppo.style switches either. "
        "What differs:"
    )
    for one in STYLE_KEYS:
        if one.as_millpond and theirs[one.key] == one.puffer and ours[one.key] == one.millpond:
            yield f"{one.key}={show(one.puffer)}: {one.as_puffer}. {show(one.millpond)}: {one.as_millpond}."


def _steps(count: float) -> str:
    return f"{number(count)} {'step' if count == 1 else 'steps'}"


def _per_million(plan: PPOPlan) -> float:
    return round(plan.gradient_updates / plan.agent_steps * 1e6, 1)


def _overlap(name: str, plan: PPOPlan) -> str:
    if plan.groups == 1:
        who = "the one env steps" if plan.num_envs == 1 else f"all {plan.num_envs:,} envs step together"
        return f"in {name} {who}, and the policy waits for {'it' if plan.num_envs == 1 else 'them'}"
    return (
        f"in {name} {plan.groups} groups of {plural(plan.envs_per_group, 'env')} take turns, so envs step while the policy "
        f"computes"
    )


def _training_steps(p: PPOPlan, q: PPOPlan) -> str:
    if p.training is None or q.training is None:
        return ""
    return f"; a training step of about {size(p.training.total)} against {size(q.training.total)}"


def ppo_better_for(a: Planned, b: Planned) -> Iterator[str]:
    """Yield what plan `a` is better for, each with its reason."""
    p, q = _plan(a), _plan(b)
    if _per_million(p) > _per_million(q):
        yield (
            f"sample efficiency: {number(_per_million(p))} updates per million agent steps against "
            f"{number(_per_million(q))}"
        )
    if p.agent_steps_per_gradient > q.agent_steps_per_gradient:
        yield (
            f"low-variance gradients: {plural(p.agent_steps_per_gradient, 'agent step')} each against "
            f"{q.agent_steps_per_gradient:,}"
        )
    if p.num_envs > q.num_envs:
        yield f"varied experience: {plural(p.num_envs, 'env')} against {q.num_envs:,}"
    if p.num_envs < q.num_envs:
        yield f"small machines and debugging: {plural(p.num_envs, 'env')} in memory against {q.num_envs:,}"
    if p.steps_per_env > q.steps_per_env:
        yield (f"long episodes: {_steps(p.steps_per_env)} per env and iteration against {number(q.steps_per_env)}")
    if p.groups > 1 and q.groups == 1:
        yield "hardware utilisation: environments step while the policy computes"
    if p.groups == 1 and q.groups > 1:
        yield "simplicity: one group, one order of events"
    if p.agent_steps < q.agent_steps:
        yield f"on-policy data: a new policy every {plural(p.agent_steps, 'agent step')} against {q.agent_steps:,}"
    if p.num_agents > q.num_agents:
        yield f"multi-agent questions: {p.num_agents} agents share an env against {q.num_agents}"
    if p.buffer_bytes < q.buffer_bytes * 0.9:
        yield f"low memory: rows of {size(p.buffer_bytes)} against {size(q.buffer_bytes)}"
    if not p.top_up_rows and q.top_up_rows:
        yield "whole rounds: no short top-up round in which most envs wait"


SCALE_HEADER = ("envs", "rows", "updates", "agent steps", "per gradient", "memory")


def scale_columns(plan: PPOPlan) -> list[str]:
    """Return the cells of one line of `--scale`."""
    counts = [plan.num_envs, plan.segments, plan.gradient_updates, plan.agent_steps, plan.agent_steps_per_gradient]
    return [*(number(count) for count in counts), size(plan.buffer_bytes)]


def scale_remarks(plan: PPOPlan, own: PPOPlan) -> list[str]:
    """List what changes in gradients, updates, diversity and memory."""
    parts = []
    if plan.agent_steps_per_gradient != own.agent_steps_per_gradient:
        ratio = plan.agent_steps_per_gradient / own.agent_steps_per_gradient
        kind = "less noisy" if ratio > 1 else "noisier"
        parts.append(f"{kind} gradients ({ratio:.3g} times the agent steps)")
    if plan.gradient_updates != own.gradient_updates:
        parts.append(f"{plural(plan.gradient_updates, 'update')} instead of {own.gradient_updates:,}")
    if plan.training and own.training and plan.training.total != own.training.total:
        parts.append(f"{plan.training.total / own.training.total:.2g} times the memory of a training step")
    if plan.num_envs != own.num_envs:
        kind = "fewer" if plan.num_envs < own.num_envs else "more"
        parts.append(f"{kind} environments at once ({plan.num_envs:,} instead of {own.num_envs:,})")
    if plan.agent_steps != own.agent_steps:
        parts.append(f"{plan.agent_steps / own.agent_steps:.3g} times the data per iteration")
    return parts
