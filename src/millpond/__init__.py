"""Millpond: a reinforcement-learning trainer, from configuration to gradients.

import millpond

planned = millpond.plan("metta", {"trainer.minibatch_size": 8_192})
planned.plan.gradient_updates   # 64, before anything runs
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millpond.loop import Loop
    from millpond.planner import Planned
    from millpond.replay import Lake, Pond
    from millpond.store import Run
    from millpond.trainers.common.play import LoadedPolicy

# Torch's threads sleep while they wait, which must be said before torch is imported. Left alone they spin, against the
# envs' workers and whatever else the machine does: beside a few busy processes, training became ten times slower.
os.environ.setdefault("GOMP_SPINCOUNT", "0")

__version__ = "0.2.0"
__all__ = ["Lake", "Loop", "Pond", "load", "plan", "train"]

_LATER = {"Lake": "millpond.replay", "Pond": "millpond.replay", "Loop": "millpond.loop"}


def __getattr__(name: str) -> Any:
    """Names that bring heavy modules along are imported when they are first used."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)


def plan(
    recipe: str | Path | Mapping[str, Any],
    overrides: Iterable[str] | Mapping[str, Any] = (),
    *,
    preset: str | None = None,
    agents_from: str | None = None,
    **settings: Any,
) -> Planned:
    """What a recipe will do, as `millpond plan` prints it. It is a name, a YAML file, a PufferLib .ini, or a mapping.

    `overrides` are texts such as "trainer.batch_size=262_144", or a mapping of dotted keys; so are the other keyword
    arguments: `seed=3`, `**{"trainer.num_envs": 64}`. Raises `millpond.config.ConfigError`, with every violation and
    a fix, where the config cannot run.
    """
    from millpond.planner import Host
    from millpond.planner import plan as make_plan
    from millpond.planner.estimate import read_measured

    changes, measured = _together(overrides, settings), read_measured()
    return make_plan(recipe, changes, preset=preset, agents_source=agents_from, host=Host.here(), measured=measured)


def train(
    recipe: str | Path | Mapping[str, Any],
    overrides: Iterable[str] | Mapping[str, Any] = (),
    *,
    preset: str | None = None,
    run: str | None = None,
    overwrite: bool = False,
    **settings: Any,
) -> Run:
    """Train a recipe to its end, as `millpond train` does, and return its run, whose folder has everything.

    Recipe, overrides and settings are as in `plan`.
    """
    from millpond.config import Loaded
    from millpond.config import load as load_config
    from millpond.distributed import join
    from millpond.trainers.common.envs import env_agents
    from millpond.trainers.common.kinds import make_trainer, require_trainer
    from millpond.trainers.common.session import run_of_all, setting_up, start_run

    together = _together(overrides, settings)
    recorded = None
    with join() as ranks:

        def begin() -> tuple[Loaded, Run]:
            nonlocal recorded
            loaded = load_config(recipe, together, preset, ask_env=env_agents)
            recorded = require_trainer(loaded)
            return loaded, start_run(loaded, run, overwrite=overwrite, ranks=ranks.count, recorded=recorded)

        loaded, started = run_of_all(ranks, begin)
        with setting_up(started, ranks):
            trainer = make_trainer(loaded, started, ranks=ranks, recorded=recorded)
        try:
            trainer.train()
        finally:
            trainer.close()
    return started


def load(run: str | Path, *, best: bool = False, device: str = "cpu") -> LoadedPolicy:
    """A trained policy, by its run's name or folder: `action, state = policy.act(observation, state)`."""
    from millpond.trainers.common.play import LoadedPolicy

    return LoadedPolicy(str(run), best=best, device=device)


def _together(overrides: Iterable[str] | Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    from millpond.config.load import parse_override

    given = overrides if isinstance(overrides, Mapping) else dict(parse_override(text) for text in overrides)
    return {**given, **settings}
