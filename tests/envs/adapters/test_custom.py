from __future__ import annotations

import numpy as np
import pytest

from millpond.envs.env_batch import Buffers, EnvError
from millpond.envs.registry import describe, make_env_batch
from tests.support import custom_envs

OWN = custom_envs.__name__


def test_function_with_num_envs_makes_a_whole_batch_in_the_given_buffers():
    path = f"{OWN}:make_constant_env"
    spec = describe(path, {"kwargs": {"length": 3}})
    assert spec.max_steps == 3
    buffers = Buffers.allocate(spec, 4)
    env_batch = make_env_batch(path, 4, {"kwargs": {"length": 3}}, buffers)
    env_batch.reset(np.array([1, 2, 3, 100], np.uint64))
    assert buffers.observation[:, 0, 0].tolist() == [1.0, 2.0, 3.0, 3.0]
    assert env_batch.buffers is buffers


def test_max_steps_limits_a_custom_env():
    env_batch = make_env_batch(f"{OWN}:Counter", 2, {"kwargs": {"length": 50}, "max_steps": 6})
    assert env_batch.spec.max_steps == 6
    env_batch.reset(np.array([1, 2], np.uint64))
    for _ in range(6):
        env_batch.step(0, 2)
    assert env_batch.buffers.truncated.all()
    assert not env_batch.buffers.terminated.any()
    env_batch.close()


def test_turn_based_pettingzoo_env_is_refused_with_a_fix(monkeypatch):
    class ByTurns:
        def agent_iter(self):
            return iter(())

    monkeypatch.setattr(custom_envs, "by_turns", ByTurns, raising=False)
    with pytest.raises(EnvError, match="aec_to_parallel"):
        make_env_batch(f"{OWN}:by_turns", 1, {})


def test_objects_that_are_not_envs_are_refused(monkeypatch):
    monkeypatch.setattr(custom_envs, "half", lambda num_envs, buffers: object(), raising=False)
    with pytest.raises(EnvError, match="must make an EnvBatch, but its result has no 'spec'"):
        make_env_batch(f"{OWN}:half", 1, {})
    stubborn = lambda num_envs, buffers: custom_envs.Constant(num_envs, None, 3)  # noqa: E731
    monkeypatch.setattr(custom_envs, "stubborn", stubborn, raising=False)
    buffers = Buffers.allocate(describe(f"{OWN}:stubborn", {}), 1)
    with pytest.raises(EnvError, match="must write into the buffers it is given"):
        make_env_batch(f"{OWN}:stubborn", 1, {}, buffers)


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"shown": "int64", "size": 3}, "got an unexpected keyword argument 'size'"),
        ({}, "missing a required argument: 'shown'"),
    ],
)
def test_unknown_and_missing_arguments_are_named(kwargs, says):
    with pytest.raises(EnvError, match=rf"takes \(shown: .*{says}; its arguments are env.options.NAME=VALUE"):
        make_env_batch(f"{OWN}:make_strange", 1, {"kwargs": kwargs})
