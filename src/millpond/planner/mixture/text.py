"""The plan of a mixture as text and a diagram, and the comparison of two."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from millpond.config import MixtureRecipe
from millpond.config.mixture import state_shape
from millpond.formatting import box, exact_size, figures, number, plural, sentence, size
from millpond.planner.device_memory import describe_cards
from millpond.planner.kind import ComparisonRow, KindText
from millpond.planner.mixture.numbers import MixturePlan
from millpond.planner.planned import Planned

MODES = {
    "rounds": "the agents learn, the BigAgent learns from the lake, the agents are cloned from it",
    "live": "transitions of the agents reach an acting BigAgent immediately",
    "single": "control: one agent, the same frames, no lake",
    "single-resets": "control: one agent with the same resets and gradient steps",
    "no-resets": "control: the agents are never cloned from the BigAgent",
}


def show_mixture(recipe: MixtureRecipe, plan: MixturePlan) -> list[str]:
    """Return the lines of a plan: summary, a round as a diagram, the run, replay, memory."""
    return [
        *sentence(f"Mode {plan.mode}: {MODES[plan.mode]}."),
        *_round(recipe, plan),
        *_run(recipe, plan),
        *_replay(recipe, plan),
        *_memory(recipe, plan),
    ]


def _round(recipe: MixtureRecipe, plan: MixturePlan) -> list[str]:
    agents = plural(plan.agents, "PQN agent")
    collect = [
        f"{agents}, each {plural(plan.envs_per_agent, 'env')} x {plural(recipe.pqn.num_steps, 'step')} = "
        f"{plural(plan.transitions_per_collection, 'transition')}",
        f"x {plural(plan.collections_per_round, 'collection')}, each {plural(plan.pqn_updates_per_collection, 'update')} "
        f"of {plan.minibatch_transitions:,}",
    ]
    if plan.own_envs:
        collect.append(f"and the BigAgent's own {plural(plan.own_envs, 'env')}")
    lines = [
        "",
        "One round",
        *box(collect, f"{plural(plan.env_steps_per_round, 'env step')} = {plural(plan.frames_per_round, 'frame')}"),
    ]
    if plan.mode == "single":
        return lines
    pond = f"each pond of {plural(plan.pond_transitions, 'transition')}, written {plural(plan.pours_per_round, 'time')}"
    lines += [f"    ↓ {pond}", *box([f"+ {plural(plan.env_steps_per_round, 'transition')}"], "the lake, on disk")]
    rounds = recipe.mixture.big_pond_rounds
    sampled = "sampled uniformly" + ("" if rounds is None else f", from the newest {plural(rounds, 'round')}")
    lines += [
        "    ↓ immediately, in addition to the lake" if plan.mode == "live" else f"    ↓ {sampled}",
        *box(
            [
                f"BigPond of {plural(plan.big_pond_transitions, 'transition')}",
                f"{plural(plan.big_updates, 'gradient step')} of {plan.big_batch_size:,} with {_learner(recipe)}, "
                f"epsilon from {recipe.mixture.big_epsilon_reset_to:g}",
            ],
            "the BigAgent",
        ),
    ]
    if plan.resets:
        ladder = recipe.mixture.epsilon_ladder
        reset = f"[{', '.join(f'{e:g}' for e in ladder)}]" if ladder else f"{recipe.mixture.epsilon_reset_to:g}"
        lines.append(f"    ↓ {plural(plan.agents, 'clone')}, epsilon from {reset}")
    return lines


def _learner(recipe: MixtureRecipe) -> str:
    return {"n_step": "DQN", "q_lambda": "Q(lambda)", "retrace": "Retrace"}[recipe.dqn.target]


def _run(recipe: MixtureRecipe, plan: MixturePlan) -> list[str]:
    last = f"{plan.whole_rounds:,} whole, and a last one of {plural(plan.last_round_collections, 'collection')}"
    rows = [
        (
            "frames requested",
            number(plan.total_frames),
            f"{plan.frame_skip} per env step",
        ),
        ("frames in whole collections", number(plan.frames), f"{plan.unused_frames:,} unused"),
        ("frames per agent", number(plan.frames_per_agent), ""),
        ("rounds", number(plan.rounds), last if plan.last_round_collections else "all whole"),
        (
            "collections per agent",
            number(plan.collections),
            f"{plural(plan.frames_per_collection, 'frame')} of all agents",
        ),
        ("resets", number(plan.resets), "one at the end of each round" if plan.resets else ""),
        ("gradient steps of the BigAgent", number(plan.big_updates_in_all), ""),
        ("vector of each agent", recipe.vector.backend, plan.vector if recipe.vector.backend == "auto" else ""),
    ]
    return ["", "The run", *figures(rows)]


def _replay(recipe: MixtureRecipe, plan: MixturePlan) -> list[str]:
    rows = [("PQN, in its own collection", number(plan.pqn_replay_ratio), "update_epochs; nothing is replayed later")]
    if plan.mode != "single":
        trained = plan.big_updates * plan.big_batch_size
        rows += [
            (
                "BigAgent, transitions of a round",
                f"{plan.big_replay_ratio:.2g}",
                f"{trained:,} / {plan.env_steps_per_round:,}",
            ),
            (
                "BigAgent, transitions of the BigPond",
                f"{plan.big_pond_replay_ratio:.2g}",
                f"{trained:,} / {plan.big_pond_transitions:,}",
            ),
        ]
    return ["", "How often a transition is trained on", *figures(rows)]


def _memory(recipe: MixtureRecipe, plan: MixturePlan) -> list[str]:
    if plan.frame_bytes is None or plan.transition_bytes_twice is None or plan.pond_bytes is None:
        return ["", *sentence(f"Memory: the size of observations is known only to {recipe.env.id} itself.")]
    stack = recipe.env.frame_stack
    twice = plan.transition_bytes_twice
    rows = [
        ("both observations in full", number(twice), f"two stacks of {stack}" if stack > 1 else "stored twice"),
        ("each frame once", number(plan.frame_bytes), f"{twice / plan.frame_bytes:g} times smaller"),
    ]
    memory = state_shape(recipe)
    if memory is not None and plan.mode != "single":
        rows.append(("the agent's state", number(4 * prod(memory)), f"{recipe.policy.core}, stored with every step"))
    lines = ["", "Bytes per transition", *figures(rows)]
    lines += sentence(
        f"A million transitions: {size(twice * 1e6)} in full, {size(plan.frame_bytes * 1e6)} stored once."
    )
    stores = []
    if plan.mode != "single":
        content = "a ring of the newest" if plan.mode == "live" else "at most: no two transitions share a frame"
        stores = [
            (f"{plural(plan.agents, 'pond')}, each", size(plan.pond_bytes), "on the CPU, until it is poured"),
            ("the BigPond", size(plan.big_pond_bytes or 0), f"on {recipe.device}; {content}"),
        ]
        if plan.own_pond_bytes:
            stores.insert(1, ("the BigAgent's own pond", size(plan.own_pond_bytes), "on the CPU, until it is poured"))
    if plan.lake_transitions and plan.lake_bytes is not None and plan.lake_frame_bytes is not None:
        frame = f"{plan.lake_frame_bytes:,.0f} bytes per frame"
        origin = "as measured with lz4" if plan.lake_frame_measured else "an upper bound: uncompressed"
        if not plan.lake_frame_compressed:
            origin = "stored uncompressed, in the records"
        elif recipe.lake.expected_frame_bytes is not None:
            origin = "from lake.expected_frame_bytes"
        stores.append(
            (
                "the lake at the end",
                size(plan.lake_bytes),
                f"{plural(plan.lake_transitions, 'transition')}; {frame}, {origin}",
            )
        )
    if stores:
        lines += ["", "Stores", *figures(stores)]
    if plan.lake_bytes is not None and plan.lake_transitions:
        whole = twice * plan.lake_transitions
        lines += sentence(f"Stored in full, the transitions of the lake would take {exact_size(whole)}.")
    if recipe.device != "cpu" and plan.device_bytes is not None:
        lines += ["", *sentence(f"On the GPU: {describe_cards(plan.device_bytes)}.")]
    return lines


COMPARED = [
    ("Mode", "mode"),
    ("Agents", "agents"),
    ("Envs per agent", "envs_per_agent"),
    ("Transitions per collection", "transitions_per_collection"),
    ("Collections per round", "collections_per_round"),
    ("Frames per round", "frames_per_round"),
    ("Rounds", "rounds"),
    ("Resets", "resets"),
    ("Frames per agent", "frames_per_agent"),
    ("PQN updates per round", "pqn_updates_per_round"),
    ("BigAgent updates per round", "big_updates"),
    ("BigAgent replay ratio", "big_replay_ratio"),
    ("Bytes/transition, in full", "transition_bytes_twice"),
    ("Bytes/transition, once", "transition_bytes_once"),
    ("Lake at the end, bytes", "lake_bytes"),
]


def _plan(planned: Planned) -> MixturePlan:
    assert isinstance(planned.plan, MixturePlan)
    return planned.plan


def compare_mixture(a: Planned, b: Planned) -> list[ComparisonRow]:
    """Return the table of a comparison."""
    return [ComparisonRow(label, getattr(a.plan, name), getattr(b.plan, name)) for label, name in COMPARED]


def mixture_differences(a: Planned, b: Planned) -> Iterator[str]:
    """Yield the differences that matter."""
    p, q = _plan(a), _plan(b)
    if p.mode != q.mode:
        yield f"Mode: {a.loaded.name} is {p.mode}, {b.loaded.name} is {q.mode}."
    if p.rounds != q.rounds:
        yield (
            f"Rounds: {p.rounds:,} against {q.rounds:,}, every {p.frames_per_round:,} "
            f"against {plural(q.frames_per_round, 'frame')}."
        )
    if p.big_replay_ratio != q.big_replay_ratio:
        yield (
            f"Replay: the BigAgent trains on each transition of a round {p.big_replay_ratio:.2g} against "
            f"{q.big_replay_ratio:.2g} {'time' if q.big_replay_ratio == 1 else 'times'}."
        )
    if p.frames_per_agent != q.frames_per_agent:
        yield f"Experience: an agent has {p.frames_per_agent:,} against {plural(q.frames_per_agent, 'frame')} of its own."
    if p.lake_bytes and q.lake_bytes and p.lake_bytes != q.lake_bytes:
        yield f"Disk: a lake of {size(p.lake_bytes)} against {size(q.lake_bytes)}."


def mixture_better_for(a: Planned, b: Planned) -> Iterator[str]:
    """Yield what plan `a` is better for, each with its reason."""
    p, q = _plan(a), _plan(b)
    if p.frames < q.frames:
        yield f"a quick answer: {plural(p.frames, 'frame')} against {q.frames:,}"
    if p.frames > q.frames:
        yield f"a reliable answer: {plural(p.frames, 'frame')} against {q.frames:,}"
    if p.big_replay_ratio > q.big_replay_ratio and p.big_updates:
        yield f"learning from the lake: a replay ratio of {p.big_replay_ratio:.2g} against {q.big_replay_ratio:.2g}"
    if p.rounds > q.rounds and p.resets:
        yield f"observing the recovery after resets: {p.resets:,} of them against {q.resets:,}"


def scale_columns(plan: MixturePlan) -> list[str]:
    """Return the cells of one line of `--scale`."""
    return [
        number(plan.rounds),
        number(plan.frames_per_round),
        number(plan.frames_per_agent),
        f"{plan.big_replay_ratio:.2g}",
        "?" if plan.big_pond_bytes is None else size(plan.big_pond_bytes),
        "?" if plan.lake_bytes is None else size(plan.lake_bytes),
    ]


TEXT = KindText(
    show=show_mixture,
    compare_rows=compare_mixture,
    differences=mixture_differences,
    better_for=mixture_better_for,
    in_table=("mixture.mode", "mixture.agents"),
    scale_header=("rounds", "frames per round", "per agent", "replay", "BigPond", "lake"),
    scale_columns=scale_columns,
)
