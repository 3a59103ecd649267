from __future__ import annotations

import numpy as np
from PIL import Image

from millpond.envs.grid.players import Player
from millpond.envs.grid.render import TILE
from millpond.envs.grid.world import GridWorld
from millpond.envs.render import render_rgb, write_gif


def world_of_one() -> GridWorld:
    world = GridWorld(1, {"width": 9, "height": 6, "walls": 4, "mines": 1, "generators": 1, "altars": 1})
    world.reset(np.array([5], np.uint64))
    return world


def test_text_shows_every_object_and_agent_where_the_map_has_it():
    world = world_of_one()
    lines = world.render_text(0).splitlines()
    assert len(lines) == 6 + 1
    assert all(len(line) == 9 for line in lines[:6])
    drawn = "".join(lines[:6])
    assert [drawn.count(character) for character in "#mgaz012"] == [4, 1, 1, 1, 0, 1, 1, 1]
    assert "0: ore 0 battery 0 heart 0" in lines[6]


def test_rgb_has_one_tile_a_cell_and_changes_when_an_agent_moves():
    world = world_of_one()
    before = render_rgb(world, 0)
    assert before.shape == (6 * TILE, 9 * TILE, 3)
    assert before.dtype == np.uint8
    Player("greedy", world).act(0, 1)
    world.step(0, 1)
    assert (world.render_rgb(0) != before).any()


def test_gif_holds_every_frame_of_an_episode(tmp_path):
    world = world_of_one()
    player, frames = Player("greedy", world), []
    for _ in range(12):
        frames.append(world.render_rgb(0))
        player.act(0, 1)
        world.step(0, 1)
    write_gif(frames, tmp_path / "episode.gif")
    with Image.open(tmp_path / "episode.gif") as image:
        assert image.n_frames == 12
        assert image.size == (9 * TILE, 6 * TILE)
