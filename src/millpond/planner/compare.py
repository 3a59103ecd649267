"""Two configurations side by side: the table, the differences that matter, and what each is better for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from millpond.config import RewardRecipe
from millpond.config.check import flatten
from millpond.config.violations import show as show_value
from millpond.planner.lines import number, size
from millpond.planner.mixture.numbers import MixturePlan
from millpond.planner.planned import Planned
from millpond.planner.ppo.numbers import PPOPlan
from millpond.planner.reward.numbers import RewardPlan
from millpond.planner.words import Words, alerts_between, words_between


@dataclass(frozen=True)
class Row:
    """One line of the table; a row without values is a heading."""

    label: str
    a: Any = None
    b: Any = None
    note: str = ""
    heading: bool = False


@dataclass(frozen=True)
class Comparison:
    """Everything that `millpond compare A B` says."""

    a: Planned
    b: Planned
    rows: tuple[Row, ...]
    settings: tuple[tuple[str, Any, Any], ...]  # keys that differ and stand in no row
    words: Words
    alerts: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Both plans, the rows, and the words."""
        return {
            "a": self.a.to_json(),
            "b": self.b.to_json(),
            "table": [
                {"parameter": row.label, "a": row.a, "b": row.b, "note": row.note}
                for row in self.rows
                if not row.heading
            ],
            "settings": [{"key": key, "a": a, "b": b} for key, a, b in self.settings],
            "alerts": list(self.alerts),
            "differences": list(self.words.differences),
            "a_is_better_for": list(self.words.a_is_better_for),
            "b_is_better_for": list(self.words.b_is_better_for),
        }


def compare(a: Planned, b: Planned) -> Comparison:
    """Compare two plans, of the same kind or not."""
    rows = _rows(a, b)
    return Comparison(a, b, tuple(rows), tuple(_settings(a, b)), words_between(a, b), alerts_between(a, b))


def _rows(a: Planned, b: Planned) -> list[Row]:
    if isinstance(a.plan, PPOPlan) and isinstance(b.plan, PPOPlan):
        return _ppo_rows(a, b, a.plan, b.plan)
    fields: list[tuple[str, str]]
    if isinstance(a.plan, MixturePlan) and isinstance(b.plan, MixturePlan):
        fields = _MIXTURE
    elif isinstance(a.plan, RewardPlan) and isinstance(b.plan, RewardPlan):
        fields = _REWARD
    else:
        return [
            Row("Kind", a.loaded.recipe.kind, b.loaded.recipe.kind, "different jobs"),
            Row("Learns from", _learns_from(a), _learns_from(b)),
            Row("Gradient updates in the run", _updates(a), _updates(b)),
            Row("Env steps in the run", _env_steps(a), _env_steps(b)),
        ]
    return [Row(label, getattr(a.plan, name), getattr(b.plan, name)) for label, name in fields]


_MIXTURE = [
    ("Mode", "mode"),
    ("Agents", "agents"),
    ("Envs an agent", "envs_per_agent"),
    ("Transitions a collection", "transitions_per_collection"),
    ("Collections a round", "collections_per_round"),
    ("Frames a round", "frames_per_round"),
    ("Rounds", "rounds"),
    ("Resets", "resets"),
    ("Frames each agent sees", "frames_per_agent"),
    ("PQN updates a round", "pqn_updates_per_round"),
    ("BigAgent updates a round", "big_updates"),
    ("BigAgent replay of a round", "big_replay_ratio"),
    ("Bytes a transition, twice", "transition_bytes_twice"),
    ("Bytes a transition, once", "transition_bytes_once"),
    ("Lake at the end, bytes", "lake_bytes"),
]
_REWARD = [
    ("Objective", "objective"),
    ("Epochs", "epochs"),
    ("Batches a cycle", "batches_per_cycle"),
    ("Batches an epoch", "batches_per_epoch"),
    ("Batches in all", "batches"),
    ("Steps a batch", "steps_per_batch"),
    ("Passes over the data", "passes_over_data"),
    ("TensorBoard points", "tensorboard_points"),
    ("Checkpoints", "checkpoints"),
    ("Target network updates", "target_updates"),
    ("Env steps of the agent", "env_steps"),
]


def _learns_from(planned: Planned) -> str:
    recipe = planned.loaded.recipe
    return recipe.data.path if isinstance(recipe, RewardRecipe) and recipe.reward.reward_only else recipe.env.id


def _updates(planned: Planned) -> int:
    plan = planned.plan
    if isinstance(plan, PPOPlan):
        return plan.total_gradient_updates
    if isinstance(plan, RewardPlan):
        return plan.batches
    return plan.agents * plan.pqn_updates_per_collection * plan.collections + plan.big_updates_in_all


def _env_steps(planned: Planned) -> int:
    plan = planned.plan
    if isinstance(plan, PPOPlan):
        return plan.total_env_steps
    return plan.env_steps if isinstance(plan, RewardPlan) else plan.frames // plan.frame_skip


def _ppo_rows(a: Planned, b: Planned, p: PPOPlan, q: PPOPlan) -> list[Row]:
    def row(label: str, value: Callable[[PPOPlan], Any], note: str = "") -> Row:
        left, right = value(p), value(q)
        return Row(label, left, right, note or _ratio(left, right))

    ours, theirs = a.loaded.recipe, b.loaded.recipe
    unit = "counted differently" if p.batch_unit != q.batch_unit else ""
    return [
        Row("Environment setup", heading=True),
        Row("Environment", ours.env.id, theirs.env.id),
        row("Total environments", lambda x: x.num_envs),
        row("Environments a group", lambda x: x.envs_per_group, _overlap(p, q)),
        row("Groups", lambda x: x.groups),
        row("Workers", lambda x: x.num_workers),
        row("Environments a worker", lambda x: x.envs_per_worker),
        row("Agents an env", lambda x: x.num_agents, "" if p.num_agents == q.num_agents else "see the alert"),
        Row("Batch sizes", heading=True),
        row("batch_unit", lambda x: x.batch_unit, unit),
        row("batch_size, in its unit", lambda x: x.batch_size),
        row("Env steps an iteration", lambda x: x.env_steps),
        row("Agent steps an iteration", lambda x: x.agent_steps),
        row("minibatch_size, in its unit", lambda x: x.minibatch_size),
        row("bptt_horizon", lambda x: x.bptt_horizon),
        row("Steps an env, an iteration", lambda x: x.steps_per_env),
        Row("Calculated values", heading=True),
        row("Total agents", lambda x: x.total_agents),
        row("Rows", lambda x: x.segments),
        row("Rows a minibatch", lambda x: x.minibatch_segments),
        row("Minibatches", lambda x: x.num_minibatches),
        row("Whole rounds", lambda x: x.whole_rounds),
        row("Rows topped up", lambda x: x.top_up_rows),
        Row("Training loop", heading=True),
        row("Update epochs", lambda x: x.update_epochs),
        Row("Rows are drawn", _sampling(a), _sampling(b)),
        row("Gradient updates", lambda x: x.gradient_updates),
        row("Agent steps a gradient", lambda x: x.agent_steps_per_gradient),
        row("Iterations in the run", lambda x: x.iterations),
        row("Agent steps in the run", lambda x: x.total_agent_steps),
        Row("Memory", heading=True),
        row("Rows, bytes", lambda x: x.buffer_bytes),
        row("Training step, bytes", lambda x: x.training.total if x.training else None),
    ]


def _overlap(p: PPOPlan, q: PPOPlan) -> str:
    if p.groups > 1 and q.groups > 1:
        return "both overlap"
    if p.groups == q.groups:
        return "neither overlaps"
    return f"only {'the first' if p.groups > 1 else 'the second'} overlaps"


def _sampling(planned: Planned) -> str:
    return str(flatten(planned.loaded.recipe)["ppo.sampling"])


def _ratio(a: Any, b: Any) -> str:
    """How the second relates to the first, where that says something."""
    if isinstance(a, str) or isinstance(b, str) or not a or not b:
        return ""
    if a == b:
        return "same"
    ratio = b / a
    return f"x{number(round(ratio, 2))}" if ratio >= 1 else f"/{number(round(1 / ratio, 2))}"


# Settings that the table tells already, or that do not touch learning.
_TOLD = (
    "trainer.",
    "env.num_agents",
    "env.id",
    "description",
    "presets",
    "run_dir",
    "ppo.sampling",
    "kind",
    "mixture.mode",
)
_TOLD_OF = {"ppo": (), "mixture": ("mixture.agents",), "reward": ("reward.epochs", "reward.objective")}


def _settings(a: Planned, b: Planned) -> list[tuple[str, Any, Any]]:
    ours, theirs = flatten(a.loaded.recipe), flatten(b.loaded.recipe)
    told = (*_TOLD, *_TOLD_OF[a.loaded.recipe.kind])
    kept = ("trainer.precision", "trainer.compile", "trainer.cpu_offload")
    return [
        (key, ours[key], theirs[key])
        for key in ours
        if key in theirs and ours[key] != theirs[key] and (key in kept or not key.startswith(told))
    ]


def cell(value: Any, label: str) -> str:
    """A value as the table shows it."""
    if value is None:
        return "?"
    if isinstance(value, (bool, str)):
        return show_value(value)
    if "bytes" in label.lower() and value >= 1_000_000:
        return size(value)
    return number(value)
