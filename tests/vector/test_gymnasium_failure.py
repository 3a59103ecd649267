"""The error of a custom env that raises in a worker names the env, its seed, its step and the traceback."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.envs.registry import describe
from millpond.trainers.common.envs import EnvBatchFactory
from millpond.vector import Vector, WorkerError, make_vector


def step_often(vector: Vector) -> None:
    for _ in range(100):
        for _ in range(len(vector)):
            batch = vector.recv()
            vector.send(batch.action * 0)


@pytest.mark.parametrize("options", [{}, {"reward_scale": 2.0}])
def test_the_env_that_raised_is_named(options: dict[str, Any]) -> None:
    env_id = "tests.support.raising_env:make_env"
    vector = make_vector(
        describe(env_id, options),
        EnvBatchFactory(env_id, options),
        num_envs=8,
        groups=2,
        num_workers=2,
        backend="processes",
    )
    with vector:
        vector.reset(3)
        seeds = vector.seeds.copy()
        with pytest.raises(WorkerError) as caught:
            step_often(vector)
    error = caught.value
    assert error.env is not None
    assert error.seed == seeds[error.env]
    assert "this env is tired" in str(error)
    assert "raising_env.py" in str(error)
