"""The grid environment: N envs in one set of arrays, stepped by compiled code; and how to draw it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.envs.env_batch import Buffers, EnvError, EpisodeStats, buffer_arrays, load_arrays, save_arrays
from millpond.envs.episode_tracker import EpisodeTracker
from millpond.envs.grid.game import (
    ACTION_NAMES,
    BATTERY,
    HEART,
    INFO_NAMES,
    ORE,
    GridOptions,
    GridRules,
    GridState,
    describe,
    padded_stride,
    parse_grid_options,
)
from millpond.envs.grid.kernels import reset_envs, step_envs
from millpond.envs.seeds import check_seeds

TILE = 8  # pixels per cell
COLOURS = np.array(
    [
        (24, 26, 32),  # empty
        (92, 96, 106),  # wall
        (196, 132, 60),  # mine
        (70, 150, 220),  # generator
        (222, 72, 88),  # altar
        (112, 50, 58),  # cooling altar
        (250, 250, 250),  # agent, drawn over in its own colour
    ],
    np.uint8,
)
CHARACTERS = ".#mgaz@"  # by code
AGENT_COLOURS = np.array(
    [(250, 222, 80), (120, 220, 130), (200, 130, 240), (90, 220, 220), (250, 150, 90), (240, 240, 240)], np.uint8
)


class GridEnvs:
    """N envs; see `GridOptions` for the rules. Several threads may step disjoint slices at the same time."""

    def __init__(self, num_envs: int, mapping: Mapping[str, Any], buffers: Buffers | None = None) -> None:
        self.spec = describe(mapping)
        self.options: GridOptions = parse_grid_options(mapping)
        self.num_envs = num_envs
        self.buffers = Buffers.allocate(self.spec, num_envs) if buffers is None else buffers
        self.state = GridState.allocate(self.options, num_envs)
        self.rules = GridRules.of(self.options)
        self._tracker = EpisodeTracker(num_envs, self.spec.num_agents)

    def reset(self, seeds: npt.NDArray[np.uint64]) -> None:
        self.state.random[:] = check_seeds(seeds, self.num_envs)
        self._tracker.reset()
        buffers = self.buffers
        buffers.reward[:] = 0.0
        buffers.terminated[:] = False
        buffers.truncated[:] = False
        buffers.alive[:] = True
        self._check(reset_envs(self.rules, self.state, buffers.observation))

    def step(self, first: int, last: int) -> None:
        buffers = self.buffers
        ended = step_envs(
            self.rules,
            self.state,
            first,
            last,
            buffers.action,
            buffers.observation,
            buffers.final_observation,
            buffers.reward,
            buffers.truncated,
        )
        if ended:
            self._check(ended)
            for env in first + np.flatnonzero(buffers.truncated[first:last, 0]):
                infos = zip(INFO_NAMES, self.state.ended_made[env], strict=True)
                length = int(self.state.ended_length[env])
                self._tracker.add_ended(
                    int(env), self.state.ended_returns[env], length, {name: float(value) for name, value in infos}
                )

    def episodes(self) -> list[EpisodeStats]:
        return self._tracker.pop_ended()

    def save_state(self) -> dict[str, npt.NDArray[Any]]:
        return (
            save_arrays("grid", self.state._asdict())
            | save_arrays("buffers", buffer_arrays(self.buffers))
            | self._tracker.save_state()
        )

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        load_arrays("grid", self.state._asdict(), state, env_id="grid")
        load_arrays("buffers", buffer_arrays(self.buffers), state, env_id="grid")
        self._tracker.load_state(state)

    def render_rgb(self, env: int) -> npt.NDArray[np.uint8]:
        """Draw the whole map of one env as an image."""
        return render_rgb(self.options, self.state, env)

    def render_text(self, env: int) -> str:
        """Draw the whole map of one env as lines of text, with the agents' inventories."""
        return render_text(self.options, self.state, env)

    def close(self) -> None:
        """There is nothing to free but arrays."""

    def _check(self, code: int) -> None:
        """Raise the error of a kernel's negative code."""
        if code >= 0:
            return
        if code < -self.num_envs:
            env = -1 - self.num_envs - code
            raise EnvError(
                f"env 'grid': env {env} was given the actions {self.buffers.action[env].tolist()}, but an action is "
                f"one of 0..{len(ACTION_NAMES) - 1} ({', '.join(ACTION_NAMES)})"
            )
        options = self.options
        raise EnvError(
            f"env 'grid': the objects of env {-1 - code} do not fit on the map of "
            f"{options.width}x{options.height}; enlarge width or height, or remove walls (walls={options.walls})"
        )


def map_cells(options: GridOptions, state: GridState, env: int) -> npt.NDArray[np.uint8]:
    """Return a view of the map of one env without its margin, [height, width]."""
    margin, stride = options.margin, padded_stride(options)
    rows = state.cells[env, margin * stride : (margin + options.height) * stride].reshape(options.height, stride)
    return rows[:, margin:]


def agent_positions(options: GridOptions, state: GridState, env: int) -> list[tuple[int, int]]:
    """Return row and column of each agent on the map without its margin."""
    stride = padded_stride(options)
    return [(int(c) // stride - options.margin, int(c) % stride - options.margin) for c in state.agent[env]]


def render_rgb(options: GridOptions, state: GridState, env: int) -> npt.NDArray[np.uint8]:
    """Draw [height * TILE, width * TILE, 3], one colour per agent, with its load as a dot in the object's colour."""
    image = COLOURS[map_cells(options, state, env)].repeat(TILE, 0).repeat(TILE, 1)
    for agent, (row, column) in enumerate(agent_positions(options, state, env)):
        tile = image[row * TILE : (row + 1) * TILE, column * TILE : (column + 1) * TILE]
        tile[:] = COLOURS[0]
        tile[1:-1, 1:-1] = AGENT_COLOURS[agent % len(AGENT_COLOURS)]
        ore, battery = state.inventory[env, agent, ORE], state.inventory[env, agent, BATTERY]
        if battery:
            tile[2:-2, 2:-2] = COLOURS[3]
        elif ore:
            tile[2:-2, 2:-2] = COLOURS[2]
    return np.ascontiguousarray(image)


def render_text(options: GridOptions, state: GridState, env: int) -> str:
    """Draw one character per cell: empty `.`, wall `#`, mine `m`, generator `g`, altar `a`, cooling altar `z`; agents as
    the last digit of their number. Below it, the clock and the agents' inventories."""
    drawn = np.array(list(CHARACTERS))[map_cells(options, state, env)]
    for agent, (row, column) in enumerate(agent_positions(options, state, env)):
        drawn[row, column] = str(agent % 10)
    inventories = "  ".join(
        f"{agent}: ore {carried[ORE]} battery {carried[BATTERY]} heart {carried[HEART]}"
        for agent, carried in enumerate(state.inventory[env])
    )
    return "\n".join("".join(row) for row in drawn) + f"\nstep {state.clock[env]}/{options.max_steps}  {inventories}"
