"""Render envs that can draw themselves, and write GIFs."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from millpond.envs.env_batch import EnvBatch, EnvError
from millpond.envs.families import family_of, load_dotted

Frame = npt.NDArray[np.uint8]  # [height, width, 3]
MAX_COLOURS = 256  # of a GIF's palette


@runtime_checkable
class Renderable(Protocol):
    def render_rgb(self, env: int) -> Frame:
        """Return an image of the current state of one env."""


def render_rgb(env_batch: EnvBatch, env: int) -> Frame:
    """Render one env; raise an error if the env batch cannot."""
    if not isinstance(env_batch, Renderable):
        raise EnvError(
            f"env {env_batch.spec.id!r} cannot be drawn: its env batch has no method render_rgb(env) that returns a uint8 "
            "array [height, width, 3]"
        )
    return env_batch.render_rgb(env)


def options_for_drawing(env_id: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return an environment's options with render_mode='rgb_array', if the constructor of its envs takes it."""
    if not _takes_render_mode(env_id):
        return dict(options)
    return {**options, "kwargs": {**options.get("kwargs", {}), "render_mode": "rgb_array"}}


def _takes_render_mode(env_id: str) -> bool:
    family, name = family_of(env_id), env_id.partition(":")[2]
    if family is None:
        return False
    if family.name == "pettingzoo":  # the API has the parameter, but constructors often hide it in **kwargs
        return True
    if family.name == "custom":
        return _takes(load_dotted(env_id), "render_mode")
    if family.name == "gymnasium":
        import gymnasium
        from gymnasium.envs.registration import load_env_creator

        try:
            entry_point = gymnasium.spec(name).entry_point
            creator = load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
        except (gymnasium.error.Error, ImportError, AttributeError):
            return False  # the env cannot be made at all; making it raises the error that says why
        return creator is not None and _takes(creator, "render_mode")
    return False


def _takes(function: Callable[..., Any], name: str) -> bool:
    """True if a keyword argument can be passed to a function, under its name or in **kwargs."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(parameter.name == name or parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def render_env(env: Any, env_id: str) -> Frame:
    """Call `render()` of another library's env, and check that it returns an image."""
    try:
        with warnings.catch_warnings():  # the error below says it
            warnings.filterwarnings("ignore", message=".*render method without specifying any render mode")
            frame = env.render()
    except NotImplementedError as error:
        raise EnvError(
            f"env {env_id!r} cannot be drawn: it has no render(). Give it one that returns a uint8 array "
            "[height, width, 3]"
        ) from error
    except Exception as error:
        message = str(error).partition("\n")[0]
        raise EnvError(f"env {env_id!r} cannot be drawn: render() raised {type(error).__name__}: {message}") from error
    if isinstance(frame, np.ndarray) and frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3:
        return frame
    returned = f"an array {list(frame.shape)} of {frame.dtype}" if isinstance(frame, np.ndarray) else repr(frame)[:60]
    raise EnvError(
        f"env {env_id!r} cannot be drawn: render() returned {returned}, not a uint8 array [height, width, 3]. Let its "
        "constructor take render_mode, and return an image where that is 'rgb_array'"
    )


def write_gif(frames: Sequence[Frame], path: Path, *, frames_per_second: float = 15.0) -> None:
    """Write frames of one size as an animated GIF that loops."""
    from PIL import Image

    if not frames:
        raise EnvError(f"there is no frame to write to {path}; step the environment at least once")
    images = _with_common_palette(frames) or [Image.fromarray(np.asarray(frame, np.uint8)) for frame in frames]
    images[0].save(
        path,
        format="GIF",
        save_all=True,
        append_images=images[1:],
        duration=max(20, round(1000 / frames_per_second)),  # viewers ignore durations below 20 ms
        loop=0,
    )


def _with_common_palette(frames: Sequence[Frame]) -> list[Any]:
    """Return frames as images with one exact palette; none if they have more colours than a palette holds.

    Without it, a palette is computed for every frame, which takes most of the time of writing a GIF.
    """
    from PIL import Image

    seen = np.zeros(1 << 24, np.bool_)
    codes = [
        np.asarray(frame, np.uint8).astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32) for frame in frames
    ]
    for code in codes:
        seen[code] = True
    colours = np.flatnonzero(seen)
    if len(colours) > MAX_COLOURS:
        return []
    index = np.zeros(1 << 24, np.uint8)
    index[colours] = np.arange(len(colours))
    palette = np.stack([colours >> 16, colours >> 8, colours], axis=1).astype(np.uint8).tobytes()
    images = []
    for code in codes:
        image = Image.fromarray(index[code])
        image.putpalette(palette)
        images.append(image)
    return images
