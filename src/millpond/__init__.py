"""Millpond: a reinforcement-learning trainer, from configuration to gradients.

import millpond

planned = millpond.plan("metta", {"trainer.minibatch_size": 8_192})
planned.plan.gradient_updates   # 64, before anything runs
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millpond.planner import Planned
    from millpond.store import Run
    from millpond.trainers.play import LoadedPolicy

# Torch's threads sleep while they wait, which must be said before torch is imported. Left alone they spin, against the
# envs' workers and whatever else the machine does: beside a few busy processes, training became ten times slower.
os.environ.setdefault("GOMP_SPINCOUNT", "0")

__version__ = "0.1.0"
__all__ = ["load", "plan", "train"]


def plan(
    recipe: str | Path,
    overrides: Iterable[str] | Mapping[str, Any] = (),
    *,
    preset: str | None = None,
    agents_from: str | None = None,
) -> Planned:
    """What a recipe (its name, a YAML file or a PufferLib .ini) will do, as `millpond plan` prints it.

    `overrides` are texts such as "trainer.batch_size=262_144", or a mapping of dotted keys. Raises
    `millpond.config.ConfigError`, with every violation and a fix, where the config cannot run.
    """
    from millpond.planner import Host
    from millpond.planner import plan as make_plan

    return make_plan(recipe, overrides, preset=preset, agents_source=agents_from, host=Host.here())


def train(
    recipe: str | Path,
    overrides: Iterable[str] | Mapping[str, Any] = (),
    *,
    preset: str | None = None,
    run: str | None = None,
    overwrite: bool = False,
) -> Run:
    """Train a recipe to its end, as `millpond train` does, and return its run, whose folder has everything."""
    from millpond.config import Loaded
    from millpond.config import load as load_config
    from millpond.ranks import join
    from millpond.trainers.kinds import make_trainer, require_trainer
    from millpond.trainers.session import run_of_all, start_run

    with join() as ranks:

        def begin() -> tuple[Loaded, Run]:
            loaded = load_config(recipe, overrides, preset)
            require_trainer(loaded)
            return loaded, start_run(loaded, run, overwrite=overwrite, ranks=ranks.count)

        loaded, started = run_of_all(ranks, begin)
        trainer = make_trainer(loaded, started, ranks=ranks)
        try:
            trainer.train()
        finally:
            trainer.close()
    return started


def load(run: str | Path, *, best: bool = False, device: str = "cpu") -> LoadedPolicy:
    """A trained policy, by its run's name or folder: `action, state = policy.act(observation, state)`."""
    from millpond.trainers.play import LoadedPolicy

    return LoadedPolicy(str(run), best=best, device=device)
