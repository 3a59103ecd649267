"""Advice about the plan of a mixture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from millpond.config import MixtureRecipe
from millpond.envs.spec import EnvSpec
from millpond.formatting import number, plural, size, verb
from millpond.planner.estimate import Host
from millpond.planner.kind import Advice, Adviser
from millpond.planner.mixture.numbers import MixturePlan, plan_mixture

SINGLE_AGENT_COLLECTION = 128 * 32  # transitions of one agent on Atari and MinAtar in the PQN paper
MIN_REPLAY, MAX_REPLAY = 0.05, 64.0
USUAL_REPLAY = 1.0
MAX_EPSILON = 0.5
MIN_ROUNDS = 3
MEMORY_SHARE = 0.8


def advise_mixture(recipe: MixtureRecipe, plan: MixturePlan, spec: EnvSpec | None, host: Host | None) -> list[Advice]:
    """Return all advice, the most important first."""
    adviser = Adviser(recipe, lambda changed: _find_problems(changed, plan_mixture(changed, spec), host))
    context = MixtureAdviceContext(recipe, plan, host, adviser)
    checks = (_replay, _agent_batch, _epsilon, _rounds, _big_pond, _memory)
    return [advice for check in checks for advice in check(context)]


@dataclass(frozen=True)
class MixtureAdviceContext:
    """The plan that advice is about, and the adviser that collects it."""

    recipe: MixtureRecipe
    plan: MixturePlan
    host: Host | None
    advise: Adviser[MixtureRecipe]


def _find_problems(recipe: MixtureRecipe, plan: MixturePlan, host: Host | None) -> set[str]:
    problems = {
        "replay ratio": bool(plan.big_updates) and not MIN_REPLAY <= plan.big_replay_ratio <= MAX_REPLAY,
        "agents' batch": plan.agents > 1 and plan.transitions_per_collection < SINGLE_AGENT_COLLECTION,
        "rounds": bool(plan.resets) and plan.rounds < MIN_ROUNDS,
        "BigPond": 0 < plan.lake_transitions < plan.big_pond_transitions,
        "memory": recipe.device == "cpu"
        and host is not None
        and host.memory > 0
        and _pond_bytes(plan) > host.memory * MEMORY_SHARE,
    }
    return {topic for topic, present in problems.items() if present}


def _pond_bytes(plan: MixturePlan) -> int:
    return (plan.pond_bytes or 0) * plan.agents + (plan.own_pond_bytes or 0) + (plan.big_pond_bytes or 0)


def _replay(s: MixtureAdviceContext) -> Iterator[Advice]:
    plan = s.plan
    if "replay ratio" not in _find_problems(s.recipe, plan, s.host):
        return
    too_low = plan.big_replay_ratio < MIN_REPLAY
    updates = max(1, round(USUAL_REPLAY * plan.env_steps_per_round / plan.big_batch_size))
    yield from s.advise(
        "replay ratio",
        f"{plural(plan.big_updates, 'gradient step')} of {plan.big_batch_size:,} "
        f"{verb(plan.big_updates, 'replay')} each transition of a round "
        f"{plan.big_replay_ratio:.1g} times: the BigAgent "
        + (
            "sees almost nothing of what the agents collected, and the clones start from it"
            if too_low
            else "will overfit"
        )
        + f"; {plural(updates, 'step')} {verb(updates, 'sample')} as many transitions as a round has",
        {"mixture.big_updates": updates} if s.recipe.mixture.big_updates else {"dqn.replay_ratio": USUAL_REPLAY},
    )


def _agent_batch(s: MixtureAdviceContext) -> Iterator[Advice]:
    plan = s.plan
    if plan.transitions_per_collection >= SINGLE_AGENT_COLLECTION or plan.agents == 1:
        return
    yield from s.advise(
        "agents' batch",
        f"each agent learns from {plural(plan.transitions_per_collection, 'transition')} at a time, a single agent from "
        f"{SINGLE_AGENT_COLLECTION:,}; smaller batches hurt, so each agent should have as many",
        {"pqn.num_envs": -(-SINGLE_AGENT_COLLECTION // s.recipe.pqn.num_steps)},
    )


def _epsilon(s: MixtureAdviceContext) -> Iterator[Advice]:
    mixture = s.recipe.mixture
    for key, value, who in (
        ("mixture.epsilon_reset_to", mixture.epsilon_reset_to, "the clones"),
        ("mixture.big_epsilon_reset_to", mixture.big_epsilon_reset_to, "the BigAgent"),
    ):
        has_ladder = key == "mixture.epsilon_reset_to" and mixture.epsilon_ladder is not None
        if s.plan.resets and value > MAX_EPSILON and not has_ladder:
            yield from s.advise(
                "exploration",
                f"a reset to {value:g} makes {who} act mostly at random for a while, which wastes what was just learned; "
                f"0.1 to 0.25 is usual after a reset",
                {key: 0.1},
            )


def _rounds(s: MixtureAdviceContext) -> Iterator[Advice]:
    plan = s.plan
    collections = max(1, plan.total_frames // plan.frames_per_collection // 10)
    if plan.resets and plan.rounds < MIN_ROUNDS and collections < plan.collections_per_round:
        yield from s.advise(
            "rounds",
            f"only {plural(plan.rounds, 'round')} {verb(plan.rounds, 'fit')} into "
            f"{plural(plan.total_frames, 'frame')}, too few to see agents recover from "
            f"a reset; this gives about ten",
            {"mixture.collections_per_round": collections},
        )


def _big_pond(s: MixtureAdviceContext) -> Iterator[Advice]:
    plan = s.plan
    if "BigPond" in _find_problems(s.recipe, plan, s.host):
        yield from s.advise(
            "BigPond",
            f"the BigPond of {number(plan.big_pond_transitions)} transitions is larger than the whole lake at the end, "
            f"{number(plan.lake_transitions)}",
            {"mixture.big_pond_transitions": plan.lake_transitions},
        )


def _memory(s: MixtureAdviceContext) -> Iterator[Advice]:
    plan, host = s.plan, s.host
    if host is None or "memory" not in _find_problems(s.recipe, plan, host):
        return
    available = f"{MEMORY_SHARE:.0%} of this machine's {size(host.memory)}"
    reason = f"ponds and BigPond take {size(_pond_bytes(plan))}, more than {available}"
    transitions = min(plan.big_pond_transitions, plan.lake_transitions or plan.big_pond_transitions)
    while transitions > plan.big_batch_size:
        transitions //= 2
        advice = list(s.advise("memory", f"{reason}; this fits", {"mixture.big_pond_transitions": transitions}))
        if advice:
            yield from advice
            return
    yield Advice("memory", f"{reason}; use fewer agents or smaller ponds")
