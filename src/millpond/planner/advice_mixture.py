"""Advice on a mixture's plan."""

from __future__ import annotations

from collections.abc import Iterator

from millpond.config.check import flatten, written
from millpond.config.recipe import MixtureRecipe
from millpond.planner.advice import Advice, advise
from millpond.planner.host import Host
from millpond.planner.lines import number, size
from millpond.planner.mixture import MixturePlan

SINGLE_AGENT_COLLECTION = 128 * 32  # what PQN's authors give one agent on Atari and MinAtar
LEAST_REPLAY, MOST_REPLAY = 0.05, 64.0
SANE_REPLAY = 1.0
MOST_EPSILON = 0.5


def advise_mixture(recipe: MixtureRecipe, plan: MixturePlan, host: Host | None) -> list[Advice]:
    """Everything worth saying, what matters most first."""
    advice = [*_replay(recipe, plan), *_agent_batch(recipe, plan), *_epsilon(recipe, plan), *_rounds(recipe, plan)]
    if host is not None:
        advice += _memory(recipe, plan, host)
    return advice


def _replay(recipe: MixtureRecipe, plan: MixturePlan) -> Iterator[Advice]:
    if not plan.big_updates or LEAST_REPLAY <= plan.big_replay_ratio <= MOST_REPLAY:
        return
    few = plan.big_replay_ratio < LEAST_REPLAY
    updates = max(1, round(SANE_REPLAY * plan.env_steps_per_round / plan.big_batch_size))
    yield from advise(
        "replay ratio",
        f"{plan.big_updates:,} gradient steps of {plan.big_batch_size:,} replay a round's transition "
        f"{plan.big_replay_ratio:.1g} times: the BigAgent "
        + ("sees next to nothing of what the agents collected, and the clones start from it" if few else "will overfit")
        + f"; once each would be {updates:,} steps",
        flatten(recipe),
        written(recipe),
        {"mixture.big_updates": updates},
    )


def _agent_batch(recipe: MixtureRecipe, plan: MixturePlan) -> Iterator[Advice]:
    if plan.transitions_per_collection >= SINGLE_AGENT_COLLECTION or plan.agents == 1:
        return
    envs = -(-SINGLE_AGENT_COLLECTION // recipe.pqn.num_steps)
    yield from advise(
        "agents' batch",
        f"each agent learns from {plan.transitions_per_collection:,} transitions at a time, a single agent from "
        f"{SINGLE_AGENT_COLLECTION:,}; smaller batches hurt, so each agent should keep the single one's",
        flatten(recipe),
        written(recipe),
        {"pqn.num_envs": envs},
    )


def _epsilon(recipe: MixtureRecipe, plan: MixturePlan) -> Iterator[Advice]:
    for key, value, who in (
        ("mixture.epsilon_reset_to", recipe.mixture.epsilon_reset_to, "the clones"),
        ("mixture.big_epsilon_reset_to", recipe.mixture.big_epsilon_reset_to, "the BigAgent"),
    ):
        if plan.resets and value > MOST_EPSILON and not (recipe.mixture.epsilon_ladder and "big" not in key):
            yield from advise(
                "exploration",
                f"a reset to {value:g} makes {who} act at random for a while and throws away what was just learned; "
                f"0.1 to 0.25 is usual after a reset",
                flatten(recipe),
                written(recipe),
                {key: 0.1},
            )


def _rounds(recipe: MixtureRecipe, plan: MixturePlan) -> Iterator[Advice]:
    if plan.resets and plan.rounds < 3:
        frames = plan.frames_per_collection
        wanted = max(1, plan.total_frames // frames // 10)
        if wanted < plan.collections_per_round:
            yield from advise(
                "rounds",
                f"only {number(plan.rounds)} rounds fit into {plan.total_frames:,} frames, too few to see agents recover "
                f"from a reset; ten would",
                flatten(recipe),
                written(recipe),
                {"mixture.collections_per_round": wanted},
            )


def _memory(recipe: MixtureRecipe, plan: MixturePlan, host: Host) -> Iterator[Advice]:
    if plan.pond_bytes is None or plan.big_pond_bytes is None or recipe.device != "cpu" or not host.memory:
        return
    needed = plan.pond_bytes * plan.agents + plan.big_pond_bytes
    if needed > host.memory * 0.8:
        fits = int(plan.big_pond_transitions * 0.5 * host.memory / needed)
        yield from advise(
            "memory",
            f"ponds and BigPond take {size(needed)}, more than 80% of this machine's {size(host.memory)}",
            flatten(recipe),
            written(recipe),
            {"mixture.big_pond_transitions": max(fits, plan.big_batch_size + recipe.dqn.n_step)},
        )
