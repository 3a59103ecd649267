from __future__ import annotations

import numpy as np
import pytest

from millpond.envs.grid.envs import GridEnvs
from millpond.envs.grid.players import ScriptedPlayer, play_baseline


def test_greedy_is_far_above_random():
    random, greedy = (play_baseline(name, {}, num_envs=16) for name in ("random", "greedy"))
    assert greedy["episode_return"] > 10 * random["episode_return"]
    assert greedy["hearts"] > 10 * random["hearts"]
    assert random["hearts"] > 0  # chance finds the whole chain, so there is something to learn from


def test_greedy_walks_a_shortest_path_and_uses_the_object():
    rules = {"num_agents": 1, "width": 7, "height": 5, "walls": 0, "mines": 1, "generators": 1, "altars": 1}
    env_batch = GridEnvs(32, {**rules, "capacity": 1, "stagger": False})
    env_batch.reset(np.arange(32, dtype=np.uint64))
    player = ScriptedPlayer("greedy", env_batch)
    for _ in range(3 * 12):
        player.act(0, 32)
        env_batch.step(0, 32)
    # On an open map of 7x5 no two places are more than 10 steps apart, so 36 steps are enough for the whole chain.
    assert (env_batch.state.made[:, 2] >= 1).all()


def test_players_repeat():
    scores = [play_baseline("random", {"max_steps": 50}, num_envs=8, seed=4) for _ in range(2)]
    assert scores[0] == scores[1]


def test_an_unknown_player_is_refused():
    with pytest.raises(ValueError, match="'clever' must be 'random' or 'greedy'"):
        ScriptedPlayer("clever", GridEnvs(1, {}))  # type: ignore[arg-type]
