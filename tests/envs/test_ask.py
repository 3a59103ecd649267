"""How many agents a world or a file says there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.envs.ask import agents_from, agents_of_world
from millpond.errors import MillpondError
from millpond.planner import plan

DATA = Path(__file__).parent.parent / "data"


@pytest.mark.parametrize(
    ("source", "agents"),
    [
        ("gymnasium:CartPole-v1", 1),
        ("atari:gravitar", 1),
        (str(DATA / "metta.yaml"), 64),
        ("pettingzoo:pettingzoo.butterfly.does_not_matter_v1", None),
    ],
)
def test_sources(source: str, agents: int | None) -> None:
    if agents is None:
        with pytest.raises(MillpondError, match="cannot be imported"):
            agents_from(source)
    else:
        assert agents_from(source).agents == agents


class TwoPlayers:
    """What a parallel env shows of its agents."""

    def __init__(self) -> None:
        self.possible_agents = ["left", "right"]


def test_a_world_of_ones_own_is_asked() -> None:
    env = {"id": f"{__name__}:TwoPlayers", "options": {}, "mettagrid.config": None}
    count = agents_of_world(env)
    assert count is not None
    assert count.agents == 2
    planned = plan("metta", {"env.id": f"{__name__}:TwoPlayers"})
    assert "the config says 3 agents an env" in planned.alerts[0]
    assert "has 2" in planned.alerts[0]
    assert not plan("metta", {"env.id": f"{__name__}:TwoPlayers", "env.num_agents": 2}).alerts


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("game: {agents: 3}", "nowhere"),
        ("a: {num_agents: 3}\nb: {num_agents: 4}", "as 3, 4"),
        ("[", "is not YAML"),
        ("", "nowhere"),
    ],
)
def test_files_that_do_not_say(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "world.yaml"
    path.write_text(content)
    with pytest.raises(MillpondError, match=says):
        agents_from(str(path))


@pytest.mark.parametrize("source", ["grid", "nothing known", "missing.yaml"])
def test_what_cannot_be_asked(source: str) -> None:
    with pytest.raises(MillpondError):
        agents_from(source)
