"""Pictures of any world that can draw itself, and a GIF of what it does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from millpond.envs.errors import EnvError
from millpond.envs.world import World

Frame = npt.NDArray[np.uint8]  # [height, width, 3]


@runtime_checkable
class Renderable(Protocol):
    def render_rgb(self, env: int) -> Frame:
        """An image of one env as it is now."""


def render_rgb(world: World, env: int) -> Frame:
    """An image of one env, or an error where the world cannot draw."""
    if not isinstance(world, Renderable):
        raise EnvError(f"env {world.spec.id!r} cannot be drawn: its world has no render_rgb")
    return world.render_rgb(env)


def require_image(frame: Any, env_id: str) -> Frame:
    """What another library's env has drawn, where it is an image; those draw only in one of their modes."""
    if not isinstance(frame, np.ndarray):
        raise EnvError(f"env {env_id!r} draws no image; give it the kwargs {{'render_mode': 'rgb_array'}}")
    return frame


def write_gif(frames: Sequence[Frame], path: Path, *, frames_per_second: float = 15.0) -> None:
    """Write frames of one size as an animated GIF that loops."""
    from PIL import Image

    if not frames:
        raise EnvError(f"there is no frame to write to {path}; step the world at least once")
    images = [Image.fromarray(np.asarray(frame, np.uint8)) for frame in frames]
    images[0].save(
        path,
        format="GIF",
        save_all=True,
        append_images=images[1:],
        duration=max(20, round(1000 / frames_per_second)),  # viewers take less than 20 ms for a mistake
        loop=0,
    )
