"""What the plan says of parameters is what the policy has."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.envs.registry import describe
from millpond.planner.memory import parameters
from millpond.policies import build_policy, count_parameters


@pytest.mark.parametrize("core", ["lstm", "gru", "none"])
@pytest.mark.parametrize(
    ("env_id", "options"),
    [
        ("grid", {}),
        ("mettagrid", {}),
        ("atari:gravitar", {}),
        ("atari:pong", {"stack_num": 4}),
        ("minatar:breakout", {}),
        ("gymnasium:CartPole-v1", {}),
        ("gymnasium:Pendulum-v1", {}),
    ],
)
def test_parameters_are_counted_right(env_id: str, options: dict[str, Any], core: Any) -> None:
    spec = describe(env_id, options)
    policy = build_policy(spec.observation, spec.action, core=core, hidden_size=24)
    assert parameters(spec, core, 24) == count_parameters(policy)
