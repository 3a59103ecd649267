"""The global generators of Python, NumPy and torch are seeded when a run starts, whatever was drawn before."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import millpond
from tests.support import mixture_runs, ppo_runs
from tests.support.custom_envs import GlobalDraws
from tests.support.ppo_runs import train_small
from tests.support.records import records
from tests.support.reward_runs import TINY_REWARD

RECIPES: dict[str, dict[str, Any]] = {
    "grid": ppo_runs.SMALL,
    "mixture": mixture_runs.SMALL,
    "reward": TINY_REWARD,
}


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)


def draws_after_a_run(root: Path, recipe: str, name: str, seed: int) -> tuple[float, ...]:
    settings = {**RECIPES[recipe], "run_dir": str(root), "seed": seed}
    millpond.train(recipe, overrides=settings, run=name)
    return random.random(), float(np.random.random()), float(torch.rand(()))  # noqa: NPY002


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_kind_of_run_seeds_all_global_generators(tmp_path: Path, recipe: str) -> None:
    seed_all(11)
    first = draws_after_a_run(tmp_path, recipe, "first", 1)
    seed_all(12)
    second = draws_after_a_run(tmp_path, recipe, "second", 1)
    other = draws_after_a_run(tmp_path, recipe, "other", 2)
    assert first == second
    assert all(one != another for one, another in zip(first, other, strict=True))


def test_env_that_draws_from_the_global_generator_of_numpy_trains_to_the_same_records(tmp_path: Path) -> None:
    env_id = f"{GlobalDraws.__module__}:{GlobalDraws.__name__}"
    written = []
    for seed in (11, 12):
        seed_all(seed)
        changes = {"env.id": env_id, "vector.backend": "inline", "env.max_steps": None}
        written.append(records(train_small(tmp_path, f"run-{seed}", **changes).run.folder))
    assert written[0] == written[1]
