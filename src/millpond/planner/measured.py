"""Speeds that `millpond bench` found on this machine, kept for plans to estimate times with."""

from __future__ import annotations

import json
import platform
import socket
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from millpond.config import MixtureRecipe, PPORecipe, Recipe, RewardRecipe
from millpond.errors import MillpondError
from millpond.planner.host import Host
from millpond.processor import cache_folder

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
