from __future__ import annotations

import numpy as np
from PIL import Image

from millpond.envs.grid.envs import TILE, GridEnvs
from millpond.envs.grid.players import ScriptedPlayer
from millpond.envs.render import render_rgb, write_gif


def env_of_one() -> GridEnvs:
    env_batch = GridEnvs(1, {"width": 9, "height": 6, "walls": 4, "mines": 1, "generators": 1, "altars": 1})
    env_batch.reset(np.array([5], np.uint64))
    return env_batch


def test_text_shows_every_object_and_agent_at_its_position():
    env_batch = env_of_one()
    lines = env_batch.render_text(0).splitlines()
    assert len(lines) == 6 + 1
    assert all(len(line) == 9 for line in lines[:6])
    drawn = "".join(lines[:6])
    assert [drawn.count(character) for character in "#mgaz012"] == [4, 1, 1, 1, 0, 1, 1, 1]
    assert "0: ore 0 battery 0 heart 0" in lines[6]


def test_rgb_has_one_tile_per_cell_and_changes_when_an_agent_moves():
    env_batch = env_of_one()
    before = render_rgb(env_batch, 0)
    assert before.shape == (6 * TILE, 9 * TILE, 3)
    assert before.dtype == np.uint8
    ScriptedPlayer("greedy", env_batch).act(0, 1)
    env_batch.step(0, 1)
    assert (env_batch.render_rgb(0) != before).any()


def test_gif_holds_every_frame_of_an_episode(tmp_path):
    env_batch = env_of_one()
    player, frames = ScriptedPlayer("greedy", env_batch), []
    for _ in range(12):
        frames.append(env_batch.render_rgb(0))
        player.act(0, 1)
        env_batch.step(0, 1)
    write_gif(frames, tmp_path / "episode.gif")
    with Image.open(tmp_path / "episode.gif") as image:
        assert image.n_frames == 12
        assert image.size == (9 * TILE, 6 * TILE)
