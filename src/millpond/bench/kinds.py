"""What a bench of each kind of recipe is of, and the words for it."""

from __future__ import annotations

from dataclasses import dataclass

from millpond.plurals import plural


@dataclass(frozen=True)
class Kind:
    """`whole`: what a run is made of. `phases`: of a run, in order, with their names. `stages`: measured beside each."""

    whole: str
    phases: dict[str, str]
    stages: dict[str, str]
    notes: str


KINDS = {
    "ppo": Kind(
        "iteration",
        {
            "collect/step": "waiting for envs",
            "collect/infer": "inference",
            "collect/store": "storing",
            "collect/rest": "rest of collecting",
            "advantage": "advantage",
            "train": "training",
            "other": "loop and records",
        },
        {
            "waiting for envs": "vector",
            "inference": "inference",
            "storing": "storing",
            "advantage": "advantage",
            "training": "training",
            "loop and records": "loop",
        },
        "Alone: one iteration's work, or one call for the lake. Share: of the iteration; of the environment, its time alone. "
        "A second: env steps of the first two, updates of the loop, transitions of the lake, else agent steps. In a run "
        "envs step while the policy looks at others, so they may be waited for less, and the policy may take longer, "
        "than alone. Limits of products count matrix products only, not tables, gates and losses.",
    ),
    "mixture": Kind(
        "round",
        {
            "collect": "collecting",
            "pour": "waiting for ponds",
            "learn": "learning",
            "fill": "filling the BigPond",
            "train_big": "BigAgent",
            "other": "reset and records",
        },
        {
            "collecting": "collect",
            "waiting for ponds": "pour",
            "learning": "learn",
            "filling the BigPond": "fill",
            "BigAgent": "BigAgent",
        },
        "A part of a round is run and scaled up to a whole one. Alone: one round's work, or one call for the lake. "
        "Share: of the round; of the envs, their time alone. In a run ponds are poured out beside the learning, so they "
        "are waited for less than pouring takes alone. A second: env steps of envs, collect and pour, transitions else. "
        "The limit of collect is that of the envs and the products together.",
    ),
    "reward": Kind(
        "cycle",
        {"act": "acting", "train": "batches", "other": "loop and records"},
        {"acting": "act", "batches": "update", "loop and records": "record"},
        "Alone: one cycle's work. Update is a batch as a run trains it, so sample and target are in it too. Share: of the "
        "cycle, without test rollouts. A second: env steps of act, else batches.",
    ),
}


def opening(kind: str, sizes: dict[str, int], vector: str, precision: str) -> str:
    """The sizes of what was measured, in a sentence."""
    if kind == "ppo":
        return (
            f"{plural(sizes['num_envs'], 'env')} of {plural(sizes['num_agents'], 'agent')} ({vector}), "
            f"{plural(sizes['agent_steps'], 'agent step')} and {plural(sizes['gradient_updates'], 'update')} an iteration, "
            f"{precision}"
        )
    if kind == "mixture":
        return (
            f"{plural(sizes['agents'], 'agent')} of {plural(sizes['envs_per_agent'], 'env')} ({vector}); a round: "
            f"{plural(sizes['collections_per_round'], 'collection')}, {plural(sizes['env_steps_per_round'], 'env step')}, "
            f"{plural(sizes['drawn'], 'transition')} drawn, {plural(sizes['big_updates'], 'update')} of the BigAgent"
        )
    acting = f", {plural(sizes['env_steps'], 'env step')} ({vector})" if sizes["env_steps"] else ""
    return f"a cycle: {plural(sizes['batches'], 'batch')} of {plural(sizes['steps_per_batch'], 'step')}{acting}"
