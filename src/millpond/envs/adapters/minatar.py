"""MinAtar's five games, such as `minatar:breakout`: 10x10 planes of zeros and ones, channels first.

The files of the games are loaded without the package around them, which imports seaborn and pandas (seconds, in every
worker). Sticky actions, which the package's wrapper adds, are drawn here from the same generator in the same order, so
that trajectories equal those of `minatar.Environment`.
"""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.envs.env_batch import (
    Buffers,
    EnvError,
    EpisodeStats,
    EpisodeTracker,
    buffer_arrays,
    check_seeds,
    load_arrays,
    save_arrays,
)
from millpond.envs.families import parse_options, require, require_extra
from millpond.envs.spec import ActionSpec, EnvSpec, ObservationSpec

# game: (channels, actions that have an effect)
GAMES = {
    "asterix": (4, (0, 1, 2, 3, 4)),
    "breakout": (4, (0, 1, 3)),
    "freeway": (7, (0, 2, 4)),
    "seaquest": (10, (0, 1, 2, 3, 4, 5)),
    "space_invaders": (6, (0, 1, 3, 5)),
}
ALL_ACTIONS = tuple(range(6))


@dataclass(frozen=True)
class MinAtarOptions:
    """Options of all games.

    `sticky_action_probability`  with which the last action is repeated
    `difficulty_ramping`         games get faster
    `minimal_actions`            only actions that have an effect in the game
    `max_steps`                  steps until truncation; None for no limit
    """

    sticky_action_probability: float = 0.1
    difficulty_ramping: bool = True
    minimal_actions: bool = True
    max_steps: int | None = None

    def __post_init__(self) -> None:
        sticky = self.sticky_action_probability
        require(0.0 <= sticky < 1.0, "minatar", f"sticky_action_probability={sticky} must be in 0..1, 1 excluded")
        limit = self.max_steps
        require(limit is None or limit >= 1, "minatar", f"max_steps={limit} must be at least 1, or null for no limit")


def game_options(game: str, mapping: Mapping[str, Any]) -> MinAtarOptions:
    if game not in GAMES:
        raise EnvError(f"env 'minatar:{game}' is not a game of MinAtar; the games are: {', '.join(GAMES)}")
    return parse_options(MinAtarOptions, mapping, env_id=f"minatar:{game}")


def describe(game: str, mapping: Mapping[str, Any]) -> EnvSpec:
    options = game_options(game, mapping)
    channels, minimal = GAMES[game]
    return EnvSpec(
        id=f"minatar:{game}",
        observation=ObservationSpec.single((channels, 10, 10), "uint8", "pixels", high=1.0),
        action=ActionSpec.discrete(len(minimal if options.minimal_actions else ALL_ACTIONS)),
        max_steps=options.max_steps,
        savable=True,
    )


@functools.cache
def load_game(game: str) -> ModuleType:
    """Load the game's own module, which needs numpy only."""
    require_extra(f"minatar:{game}")
    package = importlib.util.find_spec("minatar")
    assert package is not None
    assert package.submodule_search_locations
    path = Path(package.submodule_search_locations[0]) / "environments" / f"{game}.py"
    spec = importlib.util.spec_from_file_location(f"minatar_game_{game}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class MinAtarEnvs:
    """N envs of one MinAtar game."""

    def __init__(self, game: str, num_envs: int, mapping: Mapping[str, Any], buffers: Buffers | None = None) -> None:
        self.options = game_options(game, mapping)
        self.spec = describe(game, mapping)
        self.num_envs = num_envs
        self.buffers = Buffers.allocate(self.spec, num_envs) if buffers is None else buffers
        module = load_game(game)
        self.envs = [module.Env(ramping=self.options.difficulty_ramping) for _ in range(num_envs)]
        self._actions = GAMES[game][1] if self.options.minimal_actions else ALL_ACTIONS
        self._last_action = np.zeros(num_envs, np.int64)
        self._tracker = EpisodeTracker(num_envs, 1)

    def reset(self, seeds: npt.NDArray[np.uint64]) -> None:
        self._tracker.reset()
        self._last_action[:] = 0
        self.buffers.reward[:] = 0.0
        self.buffers.terminated[:] = False
        self.buffers.truncated[:] = False
        self.buffers.alive[:] = True
        for env, seed in enumerate(check_seeds(seeds, self.num_envs).tolist()):
            # RandomState takes words of 32 bits; a small seed gives the same numbers as MinAtar's seed(n).
            self.envs[env].random = np.random.RandomState(seed if seed < 2**32 else [seed & 0xFFFFFFFF, seed >> 32])
            self.envs[env].reset()
            self._write_observation(env, self.buffers.observation)

    def step(self, first: int, last: int) -> None:
        buffers, tracker, options = self.buffers, self._tracker, self.options
        for env in range(first, last):
            game = self.envs[env]
            action = self._actions[buffers.action[env, 0]]
            if game.random.rand() < options.sticky_action_probability:
                action = int(self._last_action[env])
            self._last_action[env] = action
            reward, terminated = game.act(action)
            tracker.returns[env, 0] += reward
            tracker.length[env] += 1
            truncated = options.max_steps is not None and bool(tracker.length[env] >= options.max_steps)
            buffers.reward[env, 0] = reward
            buffers.terminated[env, 0] = terminated
            buffers.truncated[env, 0] = truncated
            if terminated or truncated:
                self._write_observation(env, buffers.final_observation)
                tracker.end_episode(env)
                game.reset()
            self._write_observation(env, buffers.observation)

    def _write_observation(self, env: int, into: npt.NDArray[Any]) -> None:
        into[env, 0] = self.envs[env].state().transpose(2, 0, 1)

    def episodes(self) -> list[EpisodeStats]:
        return self._tracker.pop_ended()

    def save_state(self) -> dict[str, npt.NDArray[Any]]:
        text = json.dumps([{name: encode(value) for name, value in vars(env).items()} for env in self.envs]).encode()
        return (
            {"minatar.games": np.frombuffer(text, np.uint8).copy()}
            | save_arrays("minatar", {"last_action": self._last_action})
            | save_arrays("buffers", buffer_arrays(self.buffers))
            | self._tracker.save_state()
        )

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        load_arrays("minatar", {"last_action": self._last_action}, state, env_id=self.spec.id)
        load_arrays("buffers", buffer_arrays(self.buffers), state, env_id=self.spec.id)
        for env, saved in zip(self.envs, json.loads(state["minatar.games"].tobytes()), strict=True):
            vars(env).update({name: decode(value) for name, value in saved.items()})
        self._tracker.load_state(state)

    def render_rgb(self, env: int) -> npt.NDArray[np.uint8]:
        """Draw each plane in its own colour, 16 pixels per cell."""
        planes = self.envs[env].state()
        hues = np.arange(planes.shape[2]) / planes.shape[2] * 2 * np.pi
        palette = 128 + 127 * np.cos(hues[:, None] - np.array([0.0, 2.1, 4.2]))
        image = np.zeros((10, 10, 3))
        for plane in range(planes.shape[2]):
            image[planes[:, :, plane]] = palette[plane]
        return image.astype(np.uint8).repeat(16, 0).repeat(16, 1)

    def close(self) -> None:
        """There is nothing to free but Python objects."""


def encode(value: Any) -> Any:
    """Convert a game's attribute to JSON: numbers, lists, dicts, arrays, and the generator."""
    if isinstance(value, np.random.RandomState):
        name, keys, position, has_gauss, cached = value.get_state(legacy=True)
        return {"@random": [str(name), keys.tolist(), int(position), int(has_gauss), float(cached)]}  # type: ignore[union-attr]
    if isinstance(value, np.ndarray):
        return {"@array": [value.dtype.str, list(value.shape), value.ravel().tolist()]}
    if isinstance(value, np.generic):
        return {"@scalar": [value.dtype.str, value.item()]}
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {name: encode(item) for name, item in value.items()}
    return value


def decode(value: Any) -> Any:
    """Undo `encode`."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "@random" in value:
        name, keys, position, has_gauss, cached = value["@random"]
        random = np.random.RandomState()
        random.set_state((name, np.array(keys, np.uint32), position, has_gauss, cached))
        return random
    if "@array" in value:
        dtype, shape, items = value["@array"]
        return np.array(items, dtype).reshape(shape)
    if "@scalar" in value:
        dtype, item = value["@scalar"]
        return np.dtype(dtype).type(item)
    return {name: decode(item) for name, item in value.items()}
