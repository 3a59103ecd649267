"""Observations after steps: of the next step, after an episode's end, and after a row, each of its own agent."""

from __future__ import annotations

import numpy as np
import pytest

from millpond.envs.spec import ActionSpec, EnvSpec, ObservationSpec
from millpond.rollout.following import FollowingObservations, write_by_agent
from millpond.rollout.rows import Rows
from millpond.rollout.schema import row_fields

ENVS, AGENTS, STEPS = 2, 2, 3
SPEC = EnvSpec(
    id="test",
    observation=ObservationSpec.single((1,), "float32", "vector"),
    action=ActionSpec.discrete(2),
    num_agents=AGENTS,
)


def number(env: int, agent: int, t: float) -> float:
    """The observation of an agent of env 4 + `env` at a time."""
    return 100 * (4 + env) + 10 * agent + t


@pytest.mark.parametrize("agents_per_row", [1, AGENTS])
def test_next_observation_is_of_the_same_agent_and_final_at_an_end(agents_per_row: int) -> None:
    fields = row_fields(SPEC, (0, 0), learned_reward=True)
    rows = Rows(fields, 6, STEPS, AGENTS, agents_per_row, "cpu")
    first_row = 1
    after = FollowingObservations()
    for t in range(STEPS):
        seen = np.array([[[number(env, agent, t)] for agent in range(AGENTS)] for env in range(ENVS)], np.float32)
        rows.write("observation", first_row, t, seen)
    ended = np.array([[False, True], [True, False]])
    final = np.array([[[number(env, agent, 0.5)] for agent in range(AGENTS)] for env in range(ENVS)], np.float32)
    rows.write("terminated", first_row, 1, ended)
    after.after_ends(first_row, 1, ended, final)
    after.after_ends(first_row, 2, np.zeros_like(ended), -final)  # nobody's episode ended
    following = np.array([[[number(env, agent, STEPS)] for agent in range(AGENTS)] for env in range(ENVS)], np.float32)
    after.after_rows(first_row, 4, following)

    (filled,) = after.transitions(rows)
    assert filled.lanes.tolist() == [8, 9, 10, 11]
    expected = [[number(env, agent, t) for t in (1, 2, 3)] for env in range(ENVS) for agent in range(AGENTS)]
    expected[1][1], expected[2][1] = number(0, 1, 0.5), number(1, 0, 0.5)
    assert filled.next_observation[..., 0].tolist() == expected
    assert filled.steps["ended"].tolist() == [[False, lane in (1, 2), False] for lane in range(4)]

    write_by_agent(rows, "learned_reward", filled, filled.steps["observation"][..., 0])
    written = rows["learned_reward"]
    assert np.array_equal(written.numpy(), rows["observation"][..., 0].numpy())
    assert not written[0].any()
