"""Advice about a PPO plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from millpond.config import PPORecipe
from millpond.envs.spec import EnvSpec
from millpond.formatting import number, plural, size, verb
from millpond.planner.estimate import Host, Measured, estimate_time
from millpond.planner.kind import Advice, Adviser, PlanInputs
from millpond.planner.ppo.numbers import PPOPlan, plan_ppo
from millpond.sizes import nearest_divisors, nearest_multiples

MANY_AGENTS = 24
FEW_AGENTS = 2
USUAL_AGENTS = 3  # for which the sizes of the Metta recipe were chosen
MIN_SPEEDUP = 1.1  # that benches must show before another precision is advised
CRITIC_IN_PLAIN_PYTORCH = (
    "on the CPU a separate critic trains in compiled code only without memory, on vectors and in float32"
)
GTD_IN_PLAIN_PYTORCH = (
    "the losses with gradient TD(lambda) are in plain PyTorch; encoder, core and head are compiled parts"
)
MEMORY_SHARE = 0.8  # of the machine's memory that a run should not exceed


def advise_ppo(recipe: PPORecipe, plan: PPOPlan, inputs: PlanInputs) -> list[Advice]:
    """Return all advice, the most important first."""
    spec, host = inputs.spec, inputs.host
    cores = host.cores if host is not None else 1
    adviser = Adviser(recipe, lambda changed: _find_problems(changed, plan_ppo(changed, spec, cores), host))
    context = PPOAdviceContext(recipe, plan, host, adviser)
    advice = [*_experiment(context), *_top_up(context), *_idle_envs(context), *_memory(context), *_workers(context)]
    if plan.num_agents >= MANY_AGENTS:
        advice += _many_agents(context)
    elif plan.num_agents <= FEW_AGENTS:
        advice += _few_agents(context)
    return [*advice, *_critic(context, spec), *_speed(context), *_precision(context, inputs.measured)]


def plain_reasons(recipe: PPORecipe) -> list[str]:
    """Return why a run whose compiled code is switched on may train in plain PyTorch."""
    if not recipe.trainer.fast or recipe.policy.target is not None:
        return []
    reasons = [f"plain PyTorch; {CRITIC_IN_PLAIN_PYTORCH}"] if recipe.policy.separate_critic else []
    return [*reasons, GTD_IN_PLAIN_PYTORCH] if recipe.ppo.critic == "gtd_lambda" else reasons


@dataclass(frozen=True)
class PPOAdviceContext:
    """The plan that advice is about, and the adviser that collects it."""

    recipe: PPORecipe
    plan: PPOPlan
    host: Host | None
    advise: Adviser[PPORecipe]


def _find_problems(recipe: PPORecipe, plan: PPOPlan, host: Host | None) -> set[str]:
    """Return the topics in which a plan has a problem."""
    problems = {
        "top-up round": bool(plan.top_up_rows and plan.whole_rounds),
        "idle envs": not plan.whole_rounds,
        "memory": plan.memory_bytes > _limit(recipe, host),
        "workers": host is not None
        and plan.num_workers > host.cores
        and recipe.vector.backend in ("auto", "processes"),
    }
    return {topic for topic, present in problems.items() if present}


def _limit(recipe: PPORecipe, host: Host | None) -> float:
    known = host is not None and host.memory and recipe.device == "cpu"
    return host.memory * MEMORY_SHARE if host is not None and known else float("inf")


def _experiment(s: PPOAdviceContext) -> Iterator[Advice]:
    """Advise against a setting that exists for experiments only."""
    if not s.recipe.ppo.bootstrap_truncation:
        yield from s.advise(
            "for experiments",
            "every truncated episode counts as terminated, so values are too low wherever episodes are truncated",
            {"ppo.bootstrap_truncation": True},
        )


def _top_up(s: PPOAdviceContext) -> Iterator[Advice]:
    """Advise the nearest batch size that whole rounds fill."""
    plan = s.plan
    if not plan.top_up_rows or not plan.whole_rounds:
        return
    one_round = plan.rows_per_round * plan.bptt_horizon
    batch = nearest_multiples(plan.batch_size, one_round)[0]
    minibatch = nearest_divisors(plan.minibatch_size, batch, plan.bptt_horizon)[0]
    overrides = {"trainer.batch_size": batch}
    if minibatch != plan.minibatch_size:
        overrides["trainer.minibatch_size"] = minibatch
    rounds = batch // one_round
    yield from s.advise(
        "top-up round",
        f"{plan.segments:,} rows are not a multiple of the {plan.rows_per_round:,} that one round fills, so a short round "
        f"of {plural(plan.top_up_envs, 'env')} fills the last {plan.top_up_rows:,} while the others wait; "
        f"{plural(rounds, 'whole round')} {verb(rounds, 'avoid')} this",
        overrides,
    )


def _idle_envs(s: PPOAdviceContext) -> Iterator[Advice]:
    if s.plan.whole_rounds:
        return
    yield from s.advise(
        "idle envs",
        f"an iteration of {plural(s.plan.segments, 'row')} is less than one round of {s.plan.rows_per_round:,}: "
        f"most envs wait while "
        f"{plural(s.plan.top_up_envs, 'env')} {verb(s.plan.top_up_envs, 'step')}; in one whole round all of them step",
        {"trainer.batch_size": s.plan.rows_per_round * s.plan.bptt_horizon},
    )


def _memory(s: PPOAdviceContext) -> Iterator[Advice]:
    """Advise smaller micro-batches, which do not change what is learned; else a smaller batch."""
    plan, limit = s.plan, _limit(s.recipe, s.host)
    if s.host is None or plan.training is None or plan.memory_bytes <= limit:
        return
    reason = (
        f"rows ({size(plan.buffer_bytes)}), a training step ({size(plan.training.total)}) and collecting together exceed "
        f"{MEMORY_SHARE:.0%} of this machine's {size(s.host.memory)}"
    )
    rows = plan.minibatch_segments // plan.accumulated_parts
    while rows > 1:
        rows = nearest_divisors(rows // 2, plan.minibatch_segments)[0]
        advice = list(
            s.advise(
                "memory",
                f"{reason}; micro-batches of this size fit",
                {"trainer.max_minibatch_size": rows * plan.bptt_horizon},
            )
        )
        if advice:
            yield from advice
            return
    minibatches = plan.num_minibatches
    while minibatches > 1:
        minibatches //= 2
        batch = minibatches * plan.minibatch_size
        advice = list(s.advise("memory", f"{reason}; a smaller batch fits", {"trainer.batch_size": batch}))
        if advice:
            yield from advice
            return
    yield Advice("memory", f"{reason}; use fewer envs, a smaller batch or a smaller minibatch")


def _workers(s: PPOAdviceContext) -> Iterator[Advice]:
    plan, host = s.plan, s.host
    if host is None or "workers" not in _find_problems(s.recipe, plan, host):
        return
    advice = list(
        s.advise(
            "workers",
            f"{plan.num_workers} workers share {plural(host.cores, 'core')} here. They sleep while they wait, so this costs "
            f"only memory and context switches; one per core is enough. Numbers of envs are rounded to workers, so they may "
            f"change a little",
            {"trainer.num_workers": host.cores},
        )
    )
    yield from advice or [Advice("workers", f"{plan.num_workers} workers share {plural(host.cores, 'core')} here")]


def _many_agents(s: PPOAdviceContext) -> Iterator[Advice]:
    plan = s.plan
    if plan.batch_unit == "env_steps":
        comparable = plan.batch_size * USUAL_AGENTS // plan.num_agents
        batch = nearest_multiples(comparable, plan.minibatch_size)[0]
        if batch < plan.batch_size:
            yield from s.advise(
                "many agents",
                f"batch_size counts env steps, so with {plan.num_agents} agents per env an iteration has "
                f"{plan.agent_steps:,} agent steps; this is about what three agents would give, and the policy is "
                f"updated {plan.batch_size / batch:.0f} times as often",
                {"trainer.batch_size": batch},
            )
    minibatch = plan.minibatch_size * 2
    if plan.batch_size % minibatch == 0:
        yield from s.advise(
            "many agents",
            "agents of one env see the same events, so the steps of a gradient are not independent; larger minibatches "
            "make it less noisy, with fewer updates",
            {"trainer.minibatch_size": minibatch},
        )
    if s.host is None or s.host.cores >= plan.num_workers * 2:
        yield from s.advise(
            "many agents",
            f"an env with {plan.num_agents} agents is slow to step, and {plan.envs_per_worker:,} of them queue in each "
            f"worker; more workers shorten the queue",
            {"trainer.num_workers": plan.num_workers * 2},
        )


def _few_agents(s: PPOAdviceContext) -> Iterator[Advice]:
    plan = s.plan
    agents = f"{plural(plan.num_agents, 'agent')} per env"
    if plan.batch_unit == "env_steps":
        yield from s.advise(
            "few agents",
            f"with {agents} an iteration has only {plan.agent_steps:,} agent steps; a larger batch gives each "
            f"iteration more to learn from",
            {"trainer.batch_size": plan.batch_size * 2},
        )
    target = s.recipe.trainer.forward_pass_minibatch_target_size
    if target is not None and target // 2 // plan.num_agents >= plan.num_workers:
        yield from s.advise(
            "few agents",
            f"with {agents}, {plan.num_envs:,} envs are many; a smaller forward target needs half of them and "
            f"steps each twice as long",
            {"trainer.forward_pass_minibatch_target_size": target // 2},
        )
    if plan.num_workers > 1 and plan.num_workers % 2 == 0:
        yield from s.advise(
            "few agents",
            f"small envs step fast, and {plan.num_workers} workers then spend more time on waking up than on stepping",
            {"trainer.num_workers": plan.num_workers // 2},
        )


def _critic(s: PPOAdviceContext, spec: EnvSpec | None) -> Iterator[Advice]:
    """Say that a separate critic trains in plain PyTorch, where it is known to."""
    recipe, policy = s.recipe, s.recipe.policy
    vectors = spec is None or all(part.kind == "vector" for part in spec.observation.parts)
    compiled = policy.core == "none" and vectors and recipe.trainer.precision == "float32"
    if (
        policy.separate_critic
        and policy.target is None
        and recipe.device == "cpu"
        and recipe.trainer.fast
        and not compiled
    ):
        yield from s.advise(
            "separate critic",
            f"{CRITIC_IN_PLAIN_PYTORCH}, so this run trains in plain PyTorch, which is slower",
            {"policy.separate_critic": False},
        )


def _speed(s: PPOAdviceContext) -> Iterator[Advice]:
    recipe, plan = s.recipe, s.plan
    if plan.groups == 1 and plan.num_workers > 1:
        yield from s.advise(
            "speed",
            "envs and policy take turns; with two groups one steps while the policy acts for the other",
            {"trainer.async_factor": 2},
        )
    on_cpu = recipe.device == "cpu"
    if not recipe.trainer.compile:
        yield from s.advise(
            "speed",
            "a compiled policy fuses small operations; the first iteration is slower while it compiles",
            {"trainer.compile": True},
        )
    double = plan.minibatch_size * 2
    unsplit = recipe.trainer.max_minibatch_size is None or recipe.trainer.max_minibatch_size >= double
    if plan.num_minibatches >= 4 and plan.batch_size % double == 0 and unsplit and not on_cpu:
        yield from s.advise(
            "speed",
            f"{number(plan.agent_steps_per_gradient)} agent steps may not fill an accelerator; twice as many per minibatch "
            f"give fewer, larger products, but {plan.gradient_updates // 2} updates instead of {plan.gradient_updates}",
            {"trainer.minibatch_size": double},
        )


def _precision(s: PPOAdviceContext, measured: Sequence[Measured]) -> Iterator[Advice]:
    """Advise the other precision if benches of both on this machine show that it is faster."""
    current: Literal["float32", "bfloat16"] = s.recipe.trainer.precision
    other: Literal["float32", "bfloat16"] = "bfloat16" if current == "float32" else "float32"
    trainer = s.recipe.trainer.model_copy(update={"precision": other})
    now = estimate_time(s.recipe, s.plan, measured)
    then = estimate_time(s.recipe.model_copy(update={"trainer": trainer}), s.plan, measured)
    if now is None or then is None or now.whole_seconds < MIN_SPEEDUP * then.whole_seconds:
        return
    caution = "; compare learning curves before you rely on it" if other == "bfloat16" else ""
    yield from s.advise(
        "speed",
        f"an iteration in {other} takes {then.whole_seconds / now.whole_seconds:.2f} of the time of one in {current}, "
        f"as measured on this machine{caution}",
        {"trainer.precision": other},
    )
