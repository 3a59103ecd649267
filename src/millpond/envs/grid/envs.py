"""The grid environment: N envs in one set of arrays, stepped by compiled code; how to draw it, and scripted players.

The players are baselines for learned policies. `random` draws uniformly. `greedy` sees the whole map and walks shortest
paths to the next useful object: it mines until it can carry no more ore, turns all of it into batteries, and takes these to
altars that are ready. It does not cooperate or plan, so it is a strong baseline, not an optimum.

    N envs    A agents
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from millpond.compiled import compiled
from millpond.envs.env_batch import (
    Buffers,
    EnvError,
    EpisodeStats,
    EpisodeTracker,
    buffer_arrays,
    check_seeds,
    load_arrays,
    save_arrays,
    spawn_seeds,
)
from millpond.envs.grid.game import (
    ACTION_NAMES,
    ALTAR,
    ALTAR_COOLING,
    BATTERY,
    EAST,
    EMPTY,
    GENERATOR,
    HEART,
    INFO_NAMES,
    MINE,
    NOOP,
    NORTH,
    ORE,
    SOUTH,
    WEST,
    GridOptions,
    GridRules,
    GridState,
    describe,
    padded_stride,
    parse_grid_options,
)
from millpond.envs.grid.kernels import draw_below, reset_envs, step_envs

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
Array = npt.NDArray[Any]
PlayerName = Literal["random", "greedy"]


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


@compiled
def next_goal(ore: int, battery: int, capacity: int) -> int:
    """Return the code of the object that greedy goes to next."""
    if battery > 0 and (ore == 0 or battery == capacity):
        return ALTAR
    if ore == capacity or (ore > 0 and battery > 0):
        return GENERATOR
    return MINE


@compiled
def first_move(cells: Array, start: int, goal: int, stride: int, move: Array, queue: Array) -> int:
    """Return the first move of a shortest path over free cells to the nearest `goal` object; NOOP if there is none.

    Breadth-first search from the agent; `move` [cells] is the first move of the path to each cell reached, -1 elsewhere.
    """
    steps = (0, -stride, stride, -1, 1)
    move[:] = -1
    move[start] = NOOP
    queue[0] = start
    head, tail = 0, 1
    while head < tail:
        cell = queue[head]
        head += 1
        for direction in (NORTH, SOUTH, WEST, EAST):
            neighbour = cell + steps[direction]
            if move[neighbour] >= 0:
                continue
            first_step = direction if cell == start else move[cell]
            if cells[neighbour] == goal:
                return first_step
            if cells[neighbour] == EMPTY:
                move[neighbour] = first_step
                queue[tail] = neighbour
                tail += 1
    return NOOP


@compiled
def greedy_actions(rules: GridRules, state: GridState, first: int, last: int, random: Array, action: Array) -> None:
    """Write greedy's actions in the envs first..last-1. An agent whose path is blocked by others moves at random."""
    size = state.cells.shape[1]
    move = np.empty(size, np.int8)
    queue = np.empty(size, np.int32)
    for env in range(first, last):
        cells = state.cells[env]
        for agent in range(rules.num_agents):
            carried = state.inventory[env, agent]
            start = state.agent[env, agent]
            goal = next_goal(carried[ORE], carried[BATTERY], rules.capacity)
            action_code = first_move(cells, start, goal, rules.stride, move, queue)
            if action_code == NOOP and goal == ALTAR:
                action_code = first_move(cells, start, ALTAR_COOLING, rules.stride, move, queue)
            if action_code == NOOP:
                action_code = draw_below(random, env, EAST + 1)
            action[env, agent] = action_code


@compiled
def random_actions(first: int, last: int, random: Array, action: Array) -> None:
    """Write a uniform action for each agent, drawn from the env's own stream."""
    for env in range(first, last):
        for agent in range(action.shape[1]):
            action[env, agent] = draw_below(random, env, EAST + 1)


class ScriptedPlayer:
    """Writes actions for a batch of grid envs. It has its own random streams [N], seeded per env, so that play repeats."""

    def __init__(self, name: PlayerName, env_batch: GridEnvs, seed: int = 0) -> None:
        if name not in ("random", "greedy"):
            raise ValueError(f"player {name!r} must be 'random' or 'greedy'")
        self.name = name
        self.env_batch = env_batch
        self.random = spawn_seeds(seed, env_batch.num_envs)

    def act(self, first: int, last: int) -> None:
        """Write actions of the envs first..last-1 into the buffers."""
        action = self.env_batch.buffers.action
        if self.name == "random":
            random_actions(first, last, self.random, action)
        else:
            greedy_actions(self.env_batch.rules, self.env_batch.state, first, last, self.random, action)


def play_baseline(
    name: PlayerName, options: Mapping[str, Any], *, num_envs: int = 64, seed: int = 0
) -> dict[str, float]:
    """Play one whole episode in each of `num_envs` envs and return means over episodes.

    Returns `episode_return` (mean over agents), `reward_per_agent_step`, and the environment's infos per episode.
    """
    env_batch = GridEnvs(num_envs, {**options, "stagger": False})
    env_batch.reset(spawn_seeds(seed, num_envs))
    player = ScriptedPlayer(name, env_batch, seed + 1)
    for _ in range(env_batch.options.max_steps):
        player.act(0, num_envs)
        env_batch.step(0, num_envs)
    ended = env_batch.episodes()
    returns = float(np.mean([episode.returns for episode in ended]))
    infos = {key: float(np.mean([episode.info[key] for episode in ended])) for key in env_batch.spec.info_names}
    return {"episode_return": returns, "reward_per_agent_step": returns / env_batch.options.max_steps, **infos}
