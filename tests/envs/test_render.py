"""Rendering envs of other libraries: the render mode is set, and the returned images are checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from PIL import Image

from millpond.envs.env_batch import EnvError
from millpond.envs.registry import make_env_batch
from millpond.envs.render import options_for_drawing, render_rgb, write_gif

OWN = "tests.support.custom_envs"


def drawn(env_id: str, options: dict[str, Any] | None = None) -> np.ndarray:
    """Render an env before its first step."""
    env_batch = make_env_batch(env_id, 1, options_for_drawing(env_id, options or {}))
    env_batch.reset(np.zeros(1, np.uint64))
    try:
        return render_rgb(env_batch, 0)
    finally:
        env_batch.close()


@pytest.mark.parametrize("name", ["make_bar", "make_bar_of_any", "Bar"])
def test_env_with_a_render_mode_is_made_to_render_images(name: str) -> None:
    assert drawn(f"{OWN}:{name}").shape == (8, 56, 3)
    assert drawn(f"{OWN}:{name}", {"kwargs": {"render_mode": "human"}}).shape == (8, 56, 3)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("make_no_render", "it has no render(). Give it one"),
        ("make_raising_render", "render() raised RuntimeError: the window is gone"),
        ("make_bar_in_one_mode", "render() returned None, not a uint8 array [height, width, 3]. Let its constructor"),
        ("make_text", "render() returned an array [4, 4] of float32, not a uint8 array"),
        ("make_counter_of_any", "does not take render_mode='rgb_array'"),
        ("make_constant_env", "its env batch has no method render_rgb(env)"),
    ],
)
def test_env_that_cannot_render_says_why_in_one_line(name: str, words: str) -> None:
    with pytest.raises(EnvError) as caught:
        drawn(f"{OWN}:{name}")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_gymnasium_envs_are_made_with_rgb_array() -> None:
    for env_id in ("gymnasium:CartPole-v1", "gymnasium:Pendulum-v1"):
        env_batch = make_env_batch(env_id, 1, options_for_drawing(env_id, {}))
        assert env_batch.envs[0].render_mode == "rgb_array"  # type: ignore[attr-defined]


def test_a_registered_env_without_the_parameter_is_made_without_it() -> None:
    gymnasium.register("MillpondNoMode-v0", entry_point=f"{OWN}:make_no_render")
    try:
        with pytest.raises(EnvError, match=r"it has no render\(\)"):
            drawn("gymnasium:MillpondNoMode-v0")
    finally:
        del gymnasium.registry["MillpondNoMode-v0"]


def test_other_envs_keep_their_options() -> None:
    assert options_for_drawing("grid", {"num_agents": 2}) == {"num_agents": 2}
    assert options_for_drawing("gymnasium:NoSuchEnv-v9", {}) == {}


@pytest.mark.parametrize("colours", [3, 256, 257])
def test_gif_shows_the_frames(tmp_path: Path, colours: int) -> None:
    rng = np.random.default_rng(colours)
    palette = rng.permutation(1 << 12)[:colours]  # spread over all three channels
    palette = np.stack([palette >> 8, palette >> 4 & 15, palette & 15], axis=1).astype(np.uint8) * 16
    frames = [palette[rng.permutation(300 * 4).reshape(40, 30) % colours] for _ in range(3)]
    write_gif(frames, tmp_path / "frames.gif")
    with Image.open(tmp_path / "frames.gif") as image:
        assert image.n_frames == 3
        for number, frame in enumerate(frames):
            image.seek(number)
            shown = np.asarray(image.convert("RGB")).astype(int)
            # A palette holds 256 colours. Frames that have more are drawn with similar ones.
            assert np.abs(shown - frame).mean() <= (0 if colours <= 256 else 8)
