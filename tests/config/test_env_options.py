"""From the `env` section to the environment: options that reach it, and the number of agents that it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millpond.config import load
from millpond.config.env_options import agents_from, env_options
from millpond.config.recipe import EnvConfig
from millpond.envs.registry import describe, make_env_batch
from millpond.errors import MillpondError

ONE = {"env.num_agents": 1, "env.max_steps": None, "env.stagger": False}
DATA = Path(__file__).parent.parent / "data"
PARALLEL = "pettingzoo:pettingzoo.butterfly.does_not_matter_v1"


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


@pytest.mark.parametrize(
    ("source", "agents"), [("gymnasium:CartPole-v1", 1), ("atari:gravitar", 1), (str(DATA / "metta.yaml"), 64)]
)
def test_files_and_environments_give_the_number_of_agents(source: str, agents: int) -> None:
    assert agents_from(source).agents == agents


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("game: {agents: 3}", "does not set num_agents"),
        ("a: {num_agents: 3}\nb: {num_agents: 4}", "to different numbers: 3, 4"),
        ("[", "is not valid YAML"),
        ("", "does not set num_agents"),
    ],
)
def test_a_file_without_one_number_of_agents_is_refused(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "environment.yaml"
    path.write_text(content)
    with pytest.raises(MillpondError, match=says):
        agents_from(str(path))


@pytest.mark.parametrize("source", ["grid", "nothing known", "missing.yaml", PARALLEL])
def test_unknown_sources_of_the_number_of_agents_are_refused(source: str) -> None:
    with pytest.raises(MillpondError):
        agents_from(source)


def test_the_env_of_a_config_is_built_with_its_options() -> None:
    env = EnvConfig.model_validate({"id": "gymnasium:CartPole-v1", "options": {"no_such": 1}})
    assert agents_from(env.id).agents == 1
    with pytest.raises(MillpondError, match="no_such"):
        agents_from(env.id, env)
