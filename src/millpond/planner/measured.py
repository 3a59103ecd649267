"""Speeds that `millpond bench` found on this machine, kept for plans to estimate times with."""

from __future__ import annotations

import json
import os
import platform
import socket
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from millpond.config.recipe import PPORecipe
from millpond.errors import MillpondError
from millpond.planner.host import Host

FORMAT = 1


@dataclass(frozen=True)
class Measured:
    """One recipe's speed: seconds of a real iteration by what they grow with."""

    machine: str
    date: str
    recipe: str
    settings: str  # what must be the same for the figures to hold
    num_envs: int
    minibatch_size: int
    agent_steps: int  # of an iteration
    update_epochs: int
    collect_seconds: float  # of an iteration; grows with agent steps, as do the advantages in it
    train_seconds: float  # of an iteration; grows with agent steps times epochs
    other_seconds: float  # of an iteration, whatever its size


def kept_path() -> Path:
    """The user's cache folder: figures belong to a machine, not to a folder of runs."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "millpond" / "bench.json"


def this_machine() -> str:
    """A home folder may be shared by several machines, so figures say whose they are."""
    return f"{socket.gethostname()}, {platform.machine()}, {Host.here().cores} cores"


def settings_of(recipe: PPORecipe) -> str:
    """The settings that decide how long a step takes; counts of steps, envs and updates are not among them."""
    trainer = recipe.trainer
    decisive = {
        "device": recipe.device,
        "env": recipe.env.model_dump(mode="json"),
        "vector": recipe.vector.model_dump(mode="json", exclude={"timeout", "on_crash"}),
        "policy": recipe.policy.model_dump(mode="json"),
        "optimizer": recipe.ppo.optimizer,
        "groups": trainer.async_factor,
        "workers": trainer.num_workers,
        "horizon": trainer.bptt_horizon,
        "precision": trainer.precision,
        "compile": trainer.compile,
        "cpu_offload": trainer.cpu_offload,
    }
    return json.dumps(decisive, sort_keys=True)


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
