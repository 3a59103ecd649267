"""Advice on a mixture's plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from millpond.config import MixtureRecipe
from millpond.envs.spec import EnvSpec
from millpond.planner.advice import Advice, Adviser
from millpond.planner.host import Host
from millpond.planner.lines import number, size
from millpond.planner.mixture.numbers import MixturePlan, plan_mixture
from millpond.plurals import plural, verb

SINGLE_AGENT_COLLECTION = 128 * 32  # what PQN's authors give one agent on Atari and MinAtar
LEAST_REPLAY, MOST_REPLAY = 0.05, 64.0
SANE_REPLAY = 1.0
MOST_EPSILON = 0.5
FEWEST_ROUNDS = 3
MEMORY_SHARE = 0.8


def advise_mixture(recipe: MixtureRecipe, plan: MixturePlan, spec: EnvSpec | None, host: Host | None) -> list[Advice]:
    """Everything worth saying, what matters most first."""
    adviser = Adviser(recipe, lambda changed: _troubles(changed, plan_mixture(changed, spec), host))
    subject = MixtureAdviceContext(recipe, plan, host, adviser)
    checks = (_replay, _agent_batch, _epsilon, _rounds, _big_pond, _memory)
    return [advice for check in checks for advice in check(subject)]


@dataclass(frozen=True)
class MixtureAdviceContext:
    recipe: MixtureRecipe
    plan: MixturePlan
    host: Host | None
    advise: Adviser[MixtureRecipe]


def _troubles(recipe: MixtureRecipe, plan: MixturePlan, host: Host | None) -> set[str]:
    found = {
        "replay ratio": bool(plan.big_updates) and not LEAST_REPLAY <= plan.big_replay_ratio <= MOST_REPLAY,
        "agents' batch": plan.agents > 1 and plan.transitions_per_collection < SINGLE_AGENT_COLLECTION,
        "rounds": bool(plan.resets) and plan.rounds < FEWEST_ROUNDS,
        "BigPond": 0 < plan.lake_transitions < plan.big_pond_transitions,
        "memory": recipe.device == "cpu"
        and host is not None
        and host.memory > 0
        and _needed(plan) > host.memory * MEMORY_SHARE,
    }
    return {topic for topic, there in found.items() if there}


def _needed(plan: MixturePlan) -> int:
    return (plan.pond_bytes or 0) * plan.agents + (plan.own_pond_bytes or 0) + (plan.big_pond_bytes or 0)


def _replay(s: MixtureAdviceContext) -> Iterator[Advice]:
    plan = s.plan
    if "replay ratio" not in _troubles(s.recipe, plan, s.host):
        return
    few = plan.big_replay_ratio < LEAST_REPLAY
    updates = max(1, round(SANE_REPLAY * plan.env_steps_per_round / plan.big_batch_size))
    yield from s.advise(
        "replay ratio",
        f"{plural(plan.big_updates, 'gradient step')} of {plan.big_batch_size:,} "
        f"{verb(plan.big_updates, 'replay')} a round's transition "
        f"{plan.big_replay_ratio:.1g} times: the BigAgent "
        + ("sees next to nothing of what the agents collected, and the clones start from it" if few else "will overfit")
        + f"; as many samples as a round has transitions are {plural(updates, 'step')}",
        {"mixture.big_updates": updates},
    )


def _agent_batch(s: MixtureAdviceContext) -> Iterator[Advice]:
    plan = s.plan
    if plan.transitions_per_collection >= SINGLE_AGENT_COLLECTION or plan.agents == 1:
        return
    yield from s.advise(
        "agents' batch",
        f"each agent learns from {plural(plan.transitions_per_collection, 'transition')} at a time, a single agent from "
        f"{SINGLE_AGENT_COLLECTION:,}; smaller batches hurt, so each agent should keep the single one's",
        {"pqn.num_envs": -(-SINGLE_AGENT_COLLECTION // s.recipe.pqn.num_steps)},
    )


def _epsilon(s: MixtureAdviceContext) -> Iterator[Advice]:
    mixture = s.recipe.mixture
    for key, value, who in (
        ("mixture.epsilon_reset_to", mixture.epsilon_reset_to, "the clones"),
        ("mixture.big_epsilon_reset_to", mixture.big_epsilon_reset_to, "the BigAgent"),
    ):
        laddered = key == "mixture.epsilon_reset_to" and mixture.epsilon_ladder is not None
        if s.plan.resets and value > MOST_EPSILON and not laddered:
            yield from s.advise(
                "exploration",
                f"a reset to {value:g} makes {who} act at random for a while and throws away what was just learned; "
                f"0.1 to 0.25 is usual after a reset",
                {key: 0.1},
            )


def _rounds(s: MixtureAdviceContext) -> Iterator[Advice]:
    plan = s.plan
    wanted = max(1, plan.total_frames // plan.frames_per_collection // 10)
    if plan.resets and plan.rounds < FEWEST_ROUNDS and wanted < plan.collections_per_round:
        yield from s.advise(
            "rounds",
            f"only {plural(plan.rounds, 'round')} {verb(plan.rounds, 'fit')} into "
            f"{plural(plan.total_frames, 'frame')}, too few to see agents recover from "
            f"a reset; ten would",
            {"mixture.collections_per_round": wanted},
        )


def _big_pond(s: MixtureAdviceContext) -> Iterator[Advice]:
    plan = s.plan
    if "BigPond" in _troubles(s.recipe, plan, s.host):
        yield from s.advise(
            "BigPond",
            f"the BigPond of {number(plan.big_pond_transitions)} transitions is larger than the whole lake at the end, "
            f"{number(plan.lake_transitions)}",
            {"mixture.big_pond_transitions": plan.lake_transitions},
        )


def _memory(s: MixtureAdviceContext) -> Iterator[Advice]:
    plan, host = s.plan, s.host
    if host is None or "memory" not in _troubles(s.recipe, plan, host):
        return
    reason = f"ponds and BigPond take {size(_needed(plan))}, more than {MEMORY_SHARE:.0%} of this machine's {size(host.memory)}"
    transitions = min(plan.big_pond_transitions, plan.lake_transitions or plan.big_pond_transitions)
    while transitions > plan.big_batch_size:
        transitions //= 2
        found = list(s.advise("memory", f"{reason}; this fits", {"mixture.big_pond_transitions": transitions}))
        if found:
            yield from found
            return
    yield Advice("memory", f"{reason}; take fewer agents or smaller ponds")
