"""Millpond: a reinforcement-learning trainer, from configuration to gradients.

import millpond

millpond.plan("metta").gradient_updates                      # 32 per iteration, before anything runs
run = millpond.train(env="gymnasium:CartPole-v1", seed=3)    # an env id, a class, or a function that makes an env
millpond.evaluate(run).mean
action, state = millpond.load(run).predict(observation)
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millpond.config import RecipeSource
    from millpond.loop import Loop
    from millpond.planner import Planned
    from millpond.replay import Lake, Pond, ReplayDataset, ReplayStream
    from millpond.store import Run
    from millpond.trainers.common.callbacks import Event
    from millpond.trainers.common.play import Evaluation
    from millpond.trainers.common.policy import LoadedPolicy

# Let idle threads of torch sleep instead of spin; this must be set before torch is imported. Spinning threads compete
# with the workers of the envs: next to a few busy processes, training was ten times slower.
os.environ.setdefault("GOMP_SPINCOUNT", "0")

__version__ = "0.2.0"
__all__ = [
    "Evaluation",
    "Event",
    "Lake",
    "LoadedPolicy",
    "Loop",
    "Pond",
    "ReplayDataset",
    "ReplayStream",
    "Run",
    "evaluate",
    "load",
    "plan",
    "resume",
    "train",
]

_LAZY = {
    **dict.fromkeys(("Lake", "Pond", "ReplayDataset", "ReplayStream"), "millpond.replay"),
    "Evaluation": "millpond.trainers.common.play",
    "Event": "millpond.trainers.common.callbacks",
    "LoadedPolicy": "millpond.trainers.common.policy",
    "Loop": "millpond.loop",
    "Run": "millpond.store",
}

Overrides = Iterable[str] | Mapping[str, Any]


def __getattr__(name: str) -> Any:
    """Import names with heavy modules when they are first used."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def plan(
    recipe: RecipeSource,
    overrides: Overrides = (),
    *,
    preset: str | None = None,
    agents_from: str | None = None,
    **settings: Any,
) -> Planned:
    """Return what a recipe will do, as `millpond plan` prints it; its numbers are attributes: `plan(...).num_envs`.

    The recipe is a name, an env id (`gymnasium:CartPole-v1`), a YAML file, a PufferLib .ini file, a mapping, or a typed
    recipe such as `millpond.config.PPORecipe(...)`. `overrides` are strings such as "trainer.batch_size=262_144", or a mapping
    of dotted keys. Other keyword arguments are overrides too: `seed=3`, `**{"trainer.num_envs": 64}`. Raises
    `millpond.config.ConfigError`, with every violation and a fix, if the config cannot run.
    """
    from millpond.planner import Host
    from millpond.planner import plan as make_plan
    from millpond.planner.estimate import read_measured

    merged, measured = _merge_overrides(overrides, settings), read_measured()
    return make_plan(recipe, merged, preset=preset, agents_source=agents_from, host=Host.here(), measured=measured)


def train(
    recipe: RecipeSource | None = None,
    *,
    env: str | Callable[..., Any] | None = None,
    policy: str | Callable[..., Any] | None = None,
    callbacks: Any = (),
    run: str | None = None,
    overwrite: bool = False,
    overrides: Overrides = (),
    preset: str | None = None,
    trust: bool | None = None,
    **settings: Any,
) -> Run:
    """Train to the end, as `millpond train` does, and return the run.

    `recipe`     as in `plan`; without one, the recipe of the env's family: `gym`, `mujoco`, `atari`, `multiagent`, ...
    `env`        an env id, a class, or a function that makes a gymnasium.Env or a PettingZoo ParallelEnv
    `policy`     a class or function that builds an nn.Module, or its dotted path; see docs/policies.md
    `callbacks`  functions, called after each iteration, or objects with any of the methods on_start, on_iteration,
                 on_evaluation, on_checkpoint, on_end; each gets an `Event`
    `run`        name of the run and of its folder in `runs`; `overwrite` deletes an existing one of this name
    `overrides`  and other keyword arguments are settings, as in `plan`; `preset` is one of the recipe's
    `trust`      for code that a recipe file names and that is not in the current project: True imports it, False refuses
                 it, None asks if there is a terminal

    An env or policy that other processes cannot import (a lambda, a class in a notebook) stays in this process: its envs are
    not stepped in workers, and `resume`, `load` and `evaluate` in a later process need it again.
    """
    from millpond.trainers.common.interface import train_new

    return train_new(
        recipe,
        _merge_overrides(overrides, settings),
        env=env,
        policy=policy,
        callbacks=callbacks,
        preset=preset,
        run=run,
        overwrite=overwrite,
        trust=trust,
    )


def resume(
    run: Run | str | Path,
    *,
    env: Callable[..., Any] | None = None,
    policy: Callable[..., Any] | None = None,
    callbacks: Any = (),
    overrides: Overrides = (),
    trust: bool | None = None,
    **settings: Any,
) -> Run:
    """Continue a run from its newest checkpoint to its end, as `millpond train --resume` does, and return it.

    Settings are lengths and logging, such as `**{"trainer.total_timesteps": 2e6}`. `env` and `policy` are needed only if the
    run was trained with objects that cannot be imported. Callbacks are not stored with a run: pass them again; those with
    `state_dict` and `load_state_dict` get their state back.
    """
    from millpond.trainers.common.interface import resume_trained

    merged = _merge_overrides(overrides, settings)
    return resume_trained(run, merged, env=env, policy=policy, callbacks=callbacks, trust=trust)


def load(
    run: Run | str | Path,
    *,
    best: bool = False,
    device: str = "cpu",
    env: Callable[..., Any] | None = None,
    policy: Callable[..., Any] | None = None,
    trust: bool | None = None,
) -> LoadedPolicy:
    """Load a trained policy by its run, name or folder: `action, state = policy.predict(observation, state)`.

    `best` takes the checkpoint with the best evaluation instead of the newest. `env` and `policy` are needed only if the run
    was trained with objects that cannot be imported. `trust` is for code that the run names, unless you started the run here:
    True imports it, False refuses it, None asks if there is a terminal.
    """
    from millpond.trainers.common.policy import load_policy

    return load_policy(run, best=best, device=device, env=env, policy=policy, trust=trust)


def evaluate(
    run_or_policy: Run | LoadedPolicy | str | Path,
    *,
    episodes: int = 20,
    env: str | Callable[..., Any] | None = None,
    deterministic: bool | None = None,
    seed: int | None = None,
    best: bool = False,
    overrides: Overrides = (),
    trust: bool | None = None,
    **settings: Any,
) -> Evaluation:
    """Play whole episodes on seeds that training does not use, as `millpond eval` does; print and return the results.

    `mean`, `low` and `high` are the mean return and its 95% interval; `returns` and `lengths` have one entry per episode.
    `env` is another env to play in. `deterministic` is None for how the recipe acts when it trains (`eval.deterministic`).
    Settings are those of the env: `**{"env.max_steps": 100}`. `seed` is the first seed; `best` and `trust` are as in `load`.
    """
    from millpond.trainers.common.play import evaluate_run

    evaluation, _ = evaluate_run(
        run_or_policy,
        episodes=episodes,
        env=env,
        deterministic=deterministic,
        seed=seed,
        best=best,
        overrides=_merge_overrides(overrides, settings),
        trust=trust,
    )
    print(evaluation.describe(), flush=True)
    return evaluation


def _merge_overrides(overrides: Overrides, settings: Mapping[str, Any]) -> dict[str, Any]:
    from millpond.config.load import parse_override
    from millpond.errors import MillpondError

    if isinstance(overrides, str) or not isinstance(overrides, Iterable):
        raise MillpondError(f"overrides={overrides!r}: pass a list of texts or a mapping, such as ['ppo.gamma=0.9']")
    parsed = overrides if isinstance(overrides, Mapping) else dict(parse_override(text) for text in overrides)
    return {**parsed, **settings}
