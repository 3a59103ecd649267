"""What the differences between two plans mean. Every judgement carries its reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from millpond.config import MixtureRecipe, PPORecipe, RewardRecipe
from millpond.planner.lines import number, size
from millpond.planner.mixture.numbers import MixturePlan
from millpond.planner.planned import Planned
from millpond.planner.ppo.numbers import PPOPlan
from millpond.planner.reward.numbers import RewardPlan
from millpond.plurals import plural, verb


@dataclass(frozen=True)
class Words:
    """Differences that matter, and what each side is better for."""

    differences: tuple[str, ...]
    a_is_better_for: tuple[str, ...]
    b_is_better_for: tuple[str, ...]


def alerts_between(a: Planned, b: Planned) -> tuple[str, ...]:
    """Mismatches that make the rest misleading unless they are meant."""
    alerts = [*a.alerts, *b.alerts]
    if type(a.plan) is not type(b.plan) or any(isinstance(x.plan, RewardPlan) and x.plan.reward_only for x in (a, b)):
        return tuple(alerts)  # there are not two environments to compare
    first, second = a.loaded.recipe.env, b.loaded.recipe.env
    if first.num_agents != second.num_agents:
        alerts.append(
            f"{a.loaded.name} has {plural(first.num_agents, 'agent')} an env, {b.loaded.name} has {second.num_agents:,}. "
            f"Either they are different tasks, or one config is out of date; settle that before you compare returns"
        )
    if first.id != second.id:
        alerts.append(f"the environments differ: {first.id} against {second.id}; their returns cannot be compared")
    return tuple(alerts)


def words_between(a: Planned, b: Planned) -> Words:
    """In words, for each pair of kinds."""
    if isinstance(a.plan, PPOPlan) and isinstance(b.plan, PPOPlan):
        return Words(
            tuple(_ppo_differences(a, b, a.plan, b.plan)),
            tuple(_ppo_better(a, b, a.plan, b.plan)),
            tuple(_ppo_better(b, a, b.plan, a.plan)),
        )
    if isinstance(a.plan, MixturePlan) and isinstance(b.plan, MixturePlan):
        return Words(
            tuple(_mixture_differences(a, b, a.plan, b.plan)),
            tuple(_mixture_better(a.plan, b.plan)),
            tuple(_mixture_better(b.plan, a.plan)),
        )
    if isinstance(a.plan, RewardPlan) and isinstance(b.plan, RewardPlan):
        return Words(
            tuple(_reward_differences(a, b, a.plan, b.plan)),
            tuple(_reward_better(a.plan, b.plan)),
            tuple(_reward_better(b.plan, a.plan)),
        )
    jobs = {PPORecipe: "learns by acting, on rows of its own policy", MixtureRecipe: "learns Q-values and replays a lake",
            RewardRecipe: "learns a reward from recorded episodes"}  # fmt: skip
    told = " ".join(f"{side.loaded.name} {jobs[type(side.loaded.recipe)]}." for side in (a, b))
    return Words((told,), (), ())


def _ppo_differences(a: Planned, b: Planned, p: PPOPlan, q: PPOPlan) -> Iterator[str]:
    x, y = a.loaded.name, b.loaded.name
    if p.batch_unit != q.batch_unit:
        yield (
            f"Units: {x} counts {p.batch_unit}, {y} {q.batch_unit}. In agent steps an iteration is {p.agent_steps:,} "
            f"against {q.agent_steps:,}, and a gradient {p.agent_steps_per_gradient:,} against "
            f"{q.agent_steps_per_gradient:,}."
        )
    if p.gradient_updates != q.gradient_updates:
        yield (
            f"Updates: {p.gradient_updates:,} against {q.gradient_updates:,} an iteration. For a million agent steps that "
            f"is {number(_per_million(p))} against {number(_per_million(q))}, the fairer measure since iterations differ."
        )
    if p.groups > 1 or q.groups > 1:
        yield f"Overlap: {_overlap(x, p)}; {_overlap(y, q)}."
    if p.num_envs != q.num_envs or p.steps_per_env != q.steps_per_env:
        yield (
            f"Diversity: an iteration sees {plural(p.num_envs, 'env')} for {_steps(p.steps_per_env)} each against "
            f"{q.num_envs:,} for {number(q.steps_per_env)}. More environments are less alike; longer stretches reach later "
            f"parts of an episode."
        )
    for side, plan in ((a, p), (b, q)):
        yield (
            f"Staleness, {side.loaded.name}: the last of {plural(plan.gradient_updates, 'update')} trains on rows that are "
            f"{plural(plan.gradient_updates - 1, 'update')} old"
            + (f", and every row is used {plan.update_epochs} times" if plan.update_epochs > 1 else "")
            + (
                f"; up to {plural(plan.num_agents - 1, 'row')} {verb(plan.num_agents - 1, 'are')} of the iteration before."
                if plan.surplus_rows
                else "; none are older."
            )
        )
    if p.buffer_bytes != q.buffer_bytes:
        yield f"Memory: rows of {size(p.buffer_bytes)} against {size(q.buffer_bytes)}{_training(p, q)}."


def _steps(count: float) -> str:
    return f"{number(count)} {'step' if count == 1 else 'steps'}"


def _per_million(plan: PPOPlan) -> float:
    return round(plan.gradient_updates / plan.agent_steps * 1e6, 1)


def _overlap(name: str, plan: PPOPlan) -> str:
    if plan.groups == 1:
        everyone = "the one env steps" if plan.num_envs == 1 else f"all {plan.num_envs:,} envs step together"
        return f"in {name} {everyone}, and the policy waits for {'it' if plan.num_envs == 1 else 'them'}"
    return (
        f"in {name} {plan.groups} groups of {plural(plan.envs_per_group, 'env')} take turns, so envs step while the policy "
        f"computes"
    )


def _training(p: PPOPlan, q: PPOPlan) -> str:
    if p.training is None or q.training is None:
        return ""
    return f"; a training step of about {size(p.training.total)} against {size(q.training.total)}"


def _ppo_better(a: Planned, b: Planned, p: PPOPlan, q: PPOPlan) -> Iterator[str]:
    """What plan `p` of `a` is better for, each with its reason."""
    if _per_million(p) > _per_million(q):
        yield (
            f"learning from each step: {number(_per_million(p))} updates on a million agent steps against "
            f"{number(_per_million(q))}"
        )
    if p.agent_steps_per_gradient > q.agent_steps_per_gradient:
        yield (
            f"steady gradients: {plural(p.agent_steps_per_gradient, 'agent step')} in each against "
            f"{q.agent_steps_per_gradient:,}"
        )
    if p.num_envs > q.num_envs:
        yield f"varied experience: {plural(p.num_envs, 'env')} against {q.num_envs:,}"
    if p.num_envs < q.num_envs:
        yield f"small machines and debugging: {plural(p.num_envs, 'env')} to make and hold against {q.num_envs:,}"
    if p.steps_per_env > q.steps_per_env:
        yield (
            f"seeing events far apart in one iteration: {_steps(p.steps_per_env)} an env against "
            f"{number(q.steps_per_env)}"
        )
    if p.groups > 1 and q.groups == 1:
        yield "using the hardware: environments step while the policy computes"
    if p.groups == 1 and q.groups > 1:
        yield "simplicity: one group, one order of events"
    if p.agent_steps < q.agent_steps:
        yield f"fresh policies: a new one every {plural(p.agent_steps, 'agent step')} against {q.agent_steps:,}"
    if p.num_agents > q.num_agents:
        yield f"questions about many agents: {p.num_agents} share an environment against {q.num_agents}"
    if p.buffer_bytes < q.buffer_bytes * 0.9:
        yield f"little memory: rows of {size(p.buffer_bytes)} against {size(q.buffer_bytes)}"
    if not p.top_up_rows and q.top_up_rows:
        yield "rounds without a remainder: no short top-up round in which most envs wait"


def _mixture_differences(a: Planned, b: Planned, p: MixturePlan, q: MixturePlan) -> Iterator[str]:
    if p.mode != q.mode:
        yield f"Mode: {a.loaded.name} is {p.mode}, {b.loaded.name} is {q.mode}."
    if p.rounds != q.rounds:
        yield (
            f"Rounds: {p.rounds:,} against {q.rounds:,}, every {p.frames_per_round:,} "
            f"against {plural(q.frames_per_round, 'frame')}."
        )
    if p.big_replay_ratio != q.big_replay_ratio:
        yield (
            f"Replay: the BigAgent trains on a round's transition {p.big_replay_ratio:.2g} against "
            f"{q.big_replay_ratio:.2g} {'time' if q.big_replay_ratio == 1 else 'times'}."
        )
    if p.frames_per_agent != q.frames_per_agent:
        yield f"Experience: an agent sees {p.frames_per_agent:,} against {plural(q.frames_per_agent, 'frame')} of its own."
    if p.lake_bytes and q.lake_bytes and p.lake_bytes != q.lake_bytes:
        yield f"Disk: a lake of {size(p.lake_bytes)} against {size(q.lake_bytes)}."


def _mixture_better(p: MixturePlan, q: MixturePlan) -> Iterator[str]:
    if p.frames < q.frames:
        yield f"a quick answer: {plural(p.frames, 'frame')} against {q.frames:,}"
    if p.frames > q.frames:
        yield f"a firm answer: {plural(p.frames, 'frame')} against {q.frames:,}"
    if p.big_replay_ratio > q.big_replay_ratio and p.big_updates:
        yield f"a BigAgent that has learned from the lake: replay of {p.big_replay_ratio:.2g} against {q.big_replay_ratio:.2g}"
    if p.rounds > q.rounds and p.resets:
        yield f"seeing recovery after resets: {p.resets:,} of them against {q.resets:,}"


def _reward_differences(a: Planned, b: Planned, p: RewardPlan, q: RewardPlan) -> Iterator[str]:
    if p.objective != q.objective:
        yield (
            f"Objective: {a.loaded.name} uses {p.objective}, {b.loaded.name} {q.objective}. lrd and rrd take returns apart "
            f"and need returns that differ; progress learns from order in time."
        )
    if p.batches != q.batches:
        yield f"Length: {p.batches:,} against {plural(q.batches, 'gradient update')}."
    if p.batches_per_cycle != q.batches_per_cycle:
        yield f"Feedback: a TensorBoard point every {p.batches_per_cycle:,} against {plural(q.batches_per_cycle, 'batch')}."
    if p.reward_only != q.reward_only:
        online = a if q.reward_only else b
        yield f"Data: {online.loaded.name} also acts and learns from its own episodes; the other only reads recorded ones."
    if p.passes_over_data and q.passes_over_data and p.passes_over_data != q.passes_over_data:
        yield f"Passes over the training data: {number(p.passes_over_data)} against {number(q.passes_over_data)}."


def _reward_better(p: RewardPlan, q: RewardPlan) -> Iterator[str]:
    if p.batches < q.batches:
        yield f"a quick answer: {plural(p.batches, 'update')} against {q.batches:,}"
    if p.batches > q.batches:
        yield f"a converged network: {plural(p.batches, 'update')} against {q.batches:,}"
    if p.objective in ("lrd", "rrd") and q.objective not in ("lrd", "rrd"):
        yield f"data whose returns differ: {p.objective} explains them step by step"
    if p.objective == "progress" and q.objective in ("lrd", "rrd"):
        yield "demonstrations that all succeed: their returns say nothing, their order in time does"
    if not p.reward_only and q.reward_only:
        yield "judging the reward by what an agent makes of it"
