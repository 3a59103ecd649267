"""Ponds and the lake take exactly the planned bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millpond.config import load
from millpond.planner import MixturePlan, plan
from millpond.replay import Lake, Pond, Schema, Steps
from millpond.trainers.common.envs import make_spec

SIZES = {"mixture.agents": 4, "pqn.num_envs": 2, "pqn.num_steps": 8, "pqn.num_minibatches": 1,
         "mixture.collections_per_round": 1, "mixture.total_frames": 4 * 2 * 8}  # fmt: skip


def planned(overrides: dict[str, Any]) -> tuple[MixturePlan, Schema]:
    numbers = plan("mixture", overrides).plan
    assert isinstance(numbers, MixturePlan)
    return numbers, Schema.from_spec(make_spec(load("mixture", overrides).recipe.env, stacked=False))


def write(folder: Path, schema: Schema, numbers: MixturePlan) -> None:
    """Write the planned number of steps, one stream per agent, as noise that lz4 can only partly compress."""
    rng, lanes = np.random.default_rng(0), numbers.envs_per_agent
    steps = numbers.frames_per_agent // lanes
    field = schema.observation[0]
    with Lake.create(folder, schema) as lake:
        for agent in range(numbers.agents):
            with lake.writer(f"agent{agent}", lanes) as writer:
                ends = np.zeros((steps, lanes), bool)
                observation = rng.integers(0, 9, (steps, lanes, *field.shape)).astype(field.dtype)
                action = np.zeros((steps, lanes, *schema.action.shape), schema.action.dtype)
                writer.append(Steps(observation, action, np.zeros((steps, lanes)), ends, ends))


def stored(folder: Path, *kinds: str) -> int:
    return sum(path.stat().st_size for kind in kinds for path in folder.rglob(f"*.{kind}"))


def test_a_lake_of_vectors_has_the_planned_size(tmp_path: Path) -> None:
    """Small observations are stored uncompressed in the records, so the plan is exact."""
    numbers, schema = planned({**SIZES, "env.id": "gymnasium:CartPole-v1"})
    assert not schema.compressed
    write(tmp_path, schema, numbers)
    assert numbers.lake_transitions == 64
    assert numbers.lake_bytes == stored(tmp_path, "steps", "lz4")
    assert numbers.lake_bytes == 64 * (48 + 4 + 16)  # header, action, four float32


def test_a_lake_of_frames_has_the_planned_size(tmp_path: Path) -> None:
    """The plan is exact apart from how well frames compress."""
    numbers, schema = planned({**SIZES, "env.id": "minatar:breakout"})
    assert schema.compressed
    write(tmp_path, schema, numbers)
    records, frames = stored(tmp_path, "steps"), stored(tmp_path, "lz4")
    lz4 = frames / numbers.lake_transitions - 8
    told, _ = planned({**SIZES, "env.id": "minatar:breakout", "lake.expected_frame_bytes": lz4})
    assert told.lake_bytes == records + frames
    assert numbers.lake_bytes == records + numbers.lake_transitions * (schema.observation[0].nbytes + 8)


@pytest.mark.parametrize("env_id", ["minatar:breakout", "gymnasium:CartPole-v1"])
def test_ponds_have_the_planned_size(env_id: str) -> None:
    settings = {**SIZES, "env.id": env_id, "mixture.pond_transitions": 64, "mixture.big_pond_transitions": 200}
    numbers, schema = planned(settings)
    assert Pond.init(schema, 64, lanes=2).nbytes == numbers.pond_bytes
    recipe = load("mixture", settings).recipe
    rows = 200 * (recipe.env.frame_stack + recipe.dqn.n_step)  # maximum of a fill
    assert Pond.init(schema, rows).nbytes == numbers.big_pond_bytes
