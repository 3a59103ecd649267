"""How many agents an environment or a file says there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.config.agents import agents_from
from millpond.config.env import EnvConfig
from millpond.errors import MillpondError

DATA = Path(__file__).parent.parent / "data"
PARALLEL = "pettingzoo:pettingzoo.butterfly.does_not_matter_v1"


@pytest.mark.parametrize(
    ("source", "agents"), [("gymnasium:CartPole-v1", 1), ("atari:gravitar", 1), (str(DATA / "metta.yaml"), 64)]
)
def test_sources(source: str, agents: int) -> None:
    assert agents_from(source).agents == agents


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("game: {agents: 3}", "nowhere"),
        ("a: {num_agents: 3}\nb: {num_agents: 4}", "as 3, 4"),
        ("[", "is not valid YAML"),
        ("", "nowhere"),
    ],
)
def test_files_that_do_not_say(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "environment.yaml"
    path.write_text(content)
    with pytest.raises(MillpondError, match=says):
        agents_from(str(path))


@pytest.mark.parametrize("source", ["grid", "nothing known", "missing.yaml", PARALLEL])
def test_what_cannot_be_asked(source: str) -> None:
    with pytest.raises(MillpondError):
        agents_from(source)


def test_the_env_of_a_config_is_asked_with_the_options_that_it_has_there() -> None:
    env = EnvConfig.model_validate({"id": "gymnasium:CartPole-v1", "options": {"no_such": 1}})
    assert agents_from(env.id).agents == 1
    with pytest.raises(MillpondError, match="no_such"):
        agents_from(env.id, env)
