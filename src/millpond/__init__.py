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
    from millpond.replay import Lake, Pond, ReplayDataset, ReplayStream
    from millpond.store import Run
    from millpond.trainers.common.play import LoadedPolicy

# Let idle threads of torch sleep instead of spin; this must be set before torch is imported. Spinning threads compete
# with the workers of the envs: next to a few busy processes, training was ten times slower.
os.environ.setdefault("GOMP_SPINCOUNT", "0")

__version__ = "0.2.0"
__all__ = ["Lake", "Loop", "Pond", "ReplayDataset", "ReplayStream", "load", "plan", "train"]

_LAZY = {
    **dict.fromkeys(("Lake", "Pond", "ReplayDataset", "ReplayStream"), "millpond.replay"),
    "Loop": "millpond.loop",
}


def __getattr__(name: str) -> Any:
    """Import names with heavy modules when they are first used."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def plan(
    recipe: str | Path | Mapping[str, Any],
    overrides: Iterable[str] | Mapping[str, Any] = (),
    *,
    preset: str | None = None,
    agents_from: str | None = None,
    **settings: Any,
) -> Planned:
    """Return what a recipe will do, as `millpond plan` prints it.

    The recipe is a name, an env id (`gymnasium:CartPole-v1`), a YAML file, a PufferLib .ini file, or a mapping.
    `overrides` are strings such as "trainer.batch_size=262_144", or a mapping of dotted keys. Other keyword arguments are
    overrides too: `seed=3`, `**{"trainer.num_envs": 64}`. Raises `millpond.config.ConfigError`, with every violation and a
    fix, if the config cannot run.
    """
    from millpond.planner import Host
    from millpond.planner import plan as make_plan
    from millpond.planner.estimate import read_measured

    merged, measured = _merge_overrides(overrides, settings), read_measured()
    return make_plan(recipe, merged, preset=preset, agents_source=agents_from, host=Host.here(), measured=measured)


def train(
    recipe: str | Path | Mapping[str, Any],
    overrides: Iterable[str] | Mapping[str, Any] = (),
    *,
    preset: str | None = None,
    run: str | None = None,
    overwrite: bool = False,
    trust: bool | None = None,
    **settings: Any,
) -> Run:
    """Train a recipe to its end, as `millpond train` does, and return its run.

    Recipe, overrides and settings are as in `plan`. `trust` is for code that a recipe file names and that is not in the
    current project: True imports it, False refuses it, None asks if there is a terminal.
    """
    from millpond.config import Loaded
    from millpond.distributed import join
    from millpond.trainers.common.session import (
        begin_on_all_ranks,
        load_to_run,
        make_trainer,
        require_trainer,
        setting_up,
        start_run,
    )

    merged = _merge_overrides(overrides, settings)
    cwd = Path.cwd()  # an env may change it, even when it is only asked for its agents
    recorded = None
    with join() as ranks:

        def begin() -> tuple[Loaded, Run]:
            nonlocal recorded
            loaded = load_to_run(recipe, merged, preset, trust=trust)
            recorded = require_trainer(loaded)
            return loaded, start_run(loaded, run, overwrite=overwrite, ranks=ranks.count, recorded=recorded, cwd=cwd)

        loaded, started = begin_on_all_ranks(ranks, begin)
        with setting_up(started, ranks):
            trainer = make_trainer(loaded, started, ranks=ranks, recorded=recorded)
        try:
            trainer.train()
        finally:
            trainer.close()
    return started


def load(run: str | Path, *, best: bool = False, device: str = "cpu", trust: bool | None = None) -> LoadedPolicy:
    """Load a trained policy by the name or folder of its run: `action, state = policy.act(observation, state)`.

    `trust` is for code that the run names, unless you started the run here: True imports it, False refuses it, None asks
    if there is a terminal.
    """
    from millpond.trainers.common.play import LoadedPolicy

    return LoadedPolicy(str(run), best=best, device=device, trust=trust)


def _merge_overrides(overrides: Iterable[str] | Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    from millpond.config.load import parse_override

    parsed = overrides if isinstance(overrides, Mapping) else dict(parse_override(text) for text in overrides)
    return {**parsed, **settings}
