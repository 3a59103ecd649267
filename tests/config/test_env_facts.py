"""What the `env` section says reaches the environment."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.config import load
from millpond.config.env_facts import env_options
from millpond.envs.registry import describe, make_env_batch

ONE = {"env.num_agents": 1, "env.max_steps": None, "env.stagger": False}


@pytest.mark.parametrize(
    ("env_id", "settings", "reaches"),
    [
        ("recall", {"env.recall.cues": 3, "env.recall.max_delay": 9}, {"cues": 3, "min_delay": 8, "max_delay": 9}),
        ("gymnasium:Pendulum-v1", {"env.clip_actions": True, "env.info": "last"}, {"clip_actions": True, "info": "last"}),
        ("atari:pong", {"env.atari.num_threads": 3}, {"num_threads": 3}),
    ],
)  # fmt: skip
def test_settings_reach_the_env(env_id: str, settings: dict[str, Any], reaches: dict[str, Any]) -> None:
    recipe = load("grid", {"env.id": env_id, **ONE, **settings}).recipe
    _, options = env_options(recipe.env)
    assert {name: options[name] for name in reaches} == reaches
    assert describe(env_id, options).id == env_id
    env_batch = make_env_batch(env_id, 1, options)
    try:
        held = env_batch.options  # type: ignore[attr-defined]
        assert {name: getattr(held, name) for name in reaches} == reaches
    finally:
        env_batch.close()
