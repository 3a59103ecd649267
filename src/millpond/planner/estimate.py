"""How long a run will take, from what was measured on this machine."""

from __future__ import annotations

import json
import platform
import socket
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from millpond.config import MixtureRecipe, PPORecipe, Recipe, RewardRecipe
from millpond.errors import MillpondError
from millpond.planner.host import Host
from millpond.planner.lines import figures, sentence
from millpond.planner.mixture.numbers import MixturePlan
from millpond.planner.ppo.numbers import PPOPlan
from millpond.planner.reward.numbers import RewardPlan
from millpond.plurals import plural
from millpond.processor import cache_folder

NAMES = {"train_big": "BigAgent"}  # parts that are called otherwise in words


@dataclass(frozen=True)
class Estimate:
    """Seconds, and the figures that they are from. Evaluations and checkpoints come on top."""

    whole: str  # what the run is made of: iteration, round or cycle
    count: int  # of them in the run
    parts: dict[str, float]  # seconds of one whole
    seconds: float  # of the run
    measured: Measured
    other_sizes: str = ""  # in words, where what was measured had others

    @property
    def whole_seconds(self) -> float:
        return sum(self.parts.values())


def estimate_time(
    recipe: Recipe, plan: PPOPlan | MixturePlan | RewardPlan, measured: Iterable[Measured]
) -> Estimate | None:
    """From the newest figures of the same environment, network, precision and workers; None where there are none."""
    wanted = settings_of(recipe)
    found = next((one for one in measured if one.settings == wanted), None)
    if found is None:
        return None
    if isinstance(plan, PPOPlan):
        return _ppo(plan, found)
    return _mixture(plan, found) if isinstance(plan, MixturePlan) else _reward(plan, found)


def _ppo(plan: PPOPlan, found: Measured) -> Estimate:
    """Collecting grows with agent steps, training with agent steps times epochs."""
    sizes, seconds = found.sizes, found.seconds
    size = plan.agent_steps / sizes["agent_steps"]
    parts = {
        "collect": seconds["collect"] * size,
        "train": seconds["train"] * size * plan.update_epochs / sizes["update_epochs"],
        "other": seconds["other"],
    }
    words = ""
    if any(sizes[name] != getattr(plan, name) for name in ("num_envs", "agent_steps", "minibatch_size")):
        words = (
            f"which had {sizes['num_envs']:,} envs, {sizes['agent_steps']:,} agent steps an iteration and minibatches of "
            f"{sizes['minibatch_size']:,}: scaled by agent steps"
        )
    return Estimate("iteration", plan.iterations, parts, sum(parts.values()) * plan.iterations, found, words)


def _mixture(plan: MixturePlan, found: Measured) -> Estimate:
    """Collections and the BigAgent's updates are counted; filling grows with what is drawn from a lake that grows."""
    sizes, seconds = found.sizes, found.seconds
    a_collection = {
        name: seconds[name] / sizes["collections_per_round"] for name in ("collect", "pour", "learn", "other")
    }
    an_update = seconds["train_big"] / sizes["big_updates"] if sizes["big_updates"] else 0.0
    a_transition = seconds["fill"] / sizes["drawn"] if sizes["drawn"] else 0.0
    parts = {name: spent * plan.collections_per_round for name, spent in a_collection.items()}
    parts |= {"fill": a_transition * drawn_in_round(plan, plan.rounds), "train_big": an_update * plan.big_updates}
    fills = sum(drawn_in_round(plan, number + 1) for number in range(plan.rounds)) if a_transition else 0
    whole_run = (
        plan.collections * sum(a_collection.values()) + plan.big_updates_in_all * an_update + fills * a_transition
    )
    return Estimate("round", plan.rounds, parts, whole_run, found)


def drawn_in_round(plan: MixturePlan, number: int) -> int:
    """Transitions drawn into the BigPond at the end of round `number`, counted from 1."""
    if plan.mode in ("live", "single"):
        return 0
    return min(plan.big_pond_transitions, number * plan.env_steps_per_round, plan.lake_transitions)


def _reward(plan: RewardPlan, found: Measured) -> Estimate:
    """Batches and env steps are counted; the rest is a cycle's own."""
    sizes, seconds = found.sizes, found.seconds
    parts = {
        "act": seconds["act"] * plan.env_steps_per_cycle / sizes["env_steps"] if sizes["env_steps"] else 0.0,
        "train": seconds["train"] * plan.batches_per_cycle / sizes["batches"],
        "other": seconds["other"] * plan.batches_per_cycle / sizes["batches"],
    }
    cycles = plan.epochs * plan.cycles
    return Estimate("cycle", cycles, parts, sum(parts.values()) * cycles, found)


def show_estimate(estimate: Estimate) -> list[str]:
    """The section of the plan."""
    parts = ", ".join(
        f"{NAMES.get(name, name)} {duration(seconds)}"
        for name, seconds in estimate.parts.items()
        if name != "other" and seconds >= estimate.whole_seconds / 1000
    )
    article = "an" if estimate.whole[0] in "aeiou" else "a"
    of_run = f"{plural(estimate.count, estimate.whole)}, without evaluations and checkpoints"
    rows = [
        (f"{article} {estimate.whole}", duration(estimate.whole_seconds), parts),
        ("the run", duration(estimate.seconds), of_run),
    ]
    source = f"From the bench of {estimate.measured.date[:10]} on this machine"
    if estimate.other_sizes:
        source += f", {estimate.other_sizes}"
    return ["", "Time, estimated", *figures(rows), *sentence(f"{source}.")]


def duration(seconds: float) -> str:
    """A time with three digits or so: 85 ms, 12.3 s, 4.2 min, 7.5 h, 2.7 days."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


# -- Speeds that `millpond bench` found on this machine, kept for plans to estimate times with.

FORMAT = 2
COUNTS = {  # of a recipe: they say how much is done, not how long each piece of it takes
    "mixture": {"total_frames", "collections_per_round", "big_updates", "recovery_checks", "epsilon_reset_to",
                "big_epsilon_reset_to", "epsilon_ladder"},
    "reward": {"epochs", "cycles", "iterations", "train_batches", "save_freq", "log_batches", "learning_rate"},
    "agent": {"steps_per_iteration", "warmup_steps", "test_episodes", "learning_rate", "gamma", "target_tau"},
    "vector": {"timeout", "on_crash"},
}  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """One recipe's speed: seconds of what was measured, by part, and the sizes that they grow with.

    ppo      an iteration   collect (advantages in it), train, other
    mixture  a round        collect, pour, learn, fill, train_big, other (the reset in it)
    reward   a cycle        act, train, other
    """

    machine: str
    date: str
    recipe: str
    settings: str  # what must be the same for the figures to hold
    sizes: dict[str, float]
    seconds: dict[str, float]


def kept_path() -> Path:
    """The user's cache folder: figures belong to a machine, not to a folder of runs."""
    return cache_folder() / "bench.json"


def this_machine() -> str:
    """A home folder may be shared by several machines, so figures say whose they are."""
    return f"{socket.gethostname()}, {platform.machine()}, {Host.here().cores} cores"


def settings_of(recipe: Recipe) -> str:
    """The settings that decide how long a step takes; counts of steps, envs and updates are not among them."""
    if isinstance(recipe, PPORecipe):
        decisive = _of_ppo(recipe)
    elif isinstance(recipe, MixtureRecipe):
        decisive = {
            **_sections(recipe, "env", "vector", "policy", "mixture"),
            "pqn": recipe.pqn.model_dump(
                mode="json", include={"num_envs", "num_steps", "num_minibatches", "update_epochs"}
            ),
            "dqn": recipe.dqn.model_dump(mode="json", include={"batch_size", "n_step", "double", "loss"}),
        }
    else:
        assert isinstance(recipe, RewardRecipe)
        online = () if recipe.reward.reward_only else ("env", "vector", "agent")
        decisive = _sections(recipe, "data", "reward", *online)
    return json.dumps({"kind": recipe.kind, "device": recipe.device, **decisive}, sort_keys=True)


def _sections(recipe: Recipe, *names: str) -> dict[str, Any]:
    return {name: getattr(recipe, name).model_dump(mode="json", exclude=COUNTS.get(name)) for name in names}


def _of_ppo(recipe: PPORecipe) -> dict[str, Any]:
    trainer = recipe.trainer
    return {
        **_sections(recipe, "env", "vector", "policy"),
        "optimizer": recipe.ppo.optimizer,
        "groups": trainer.async_factor,
        "workers": trainer.num_workers,
        "horizon": trainer.bptt_horizon,
        "precision": trainer.precision,
        "compile": trainer.compile,
        "cpu_offload": trainer.cpu_offload,
    }


def read_measured() -> tuple[Measured, ...]:
    """The figures of this machine, newest first; none where nothing was measured on it."""
    here = this_machine()
    return tuple(sorted((one for one in read_kept() if one.machine == here), key=lambda one: one.date, reverse=True))


def read_kept() -> tuple[Measured, ...]:
    """All figures that are kept, of whichever machine."""
    path = kept_path()
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return ()
    try:
        tree = json.loads(text)
        if tree["format"] != FORMAT:  # of another version of millpond
            return ()
        names = [field.name for field in fields(Measured)]
        return tuple(Measured(**{name: entry[name] for name in names}) for entry in tree["measured"])
    except (ValueError, KeyError, TypeError) as error:
        raise MillpondError(
            f"{path} is damaged ({error}); remove it, and measure again with `millpond bench`"
        ) from error


def with_measured(new: Measured, kept: tuple[Measured, ...]) -> dict[str, Any]:
    """What is to be kept when a new figure takes the place of those of the same machine and settings."""
    others = [one for one in kept if (one.machine, one.settings) != (new.machine, new.settings)]
    return {"format": FORMAT, "measured": [asdict(one) for one in (new, *others)]}
