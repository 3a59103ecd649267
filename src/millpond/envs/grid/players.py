"""Scripted players of the grid environment: baselines for learned policies.

`random` draws uniformly. `greedy` sees the whole map and walks shortest paths to the next useful object: it mines until it
can carry no more ore, turns all of it into batteries, and takes these to altars that are ready. It does not cooperate or
plan, so it is a strong baseline, not an optimum.

    N envs    A agents
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from millpond.compiled import compiled
from millpond.envs.grid.envs import GridEnvs
from millpond.envs.grid.game import (
    ALTAR,
    ALTAR_COOLING,
    BATTERY,
    EAST,
    EMPTY,
    GENERATOR,
    MINE,
    NOOP,
    NORTH,
    ORE,
    SOUTH,
    WEST,
    GridRules,
    GridState,
)
from millpond.envs.grid.kernels import draw_below
from millpond.envs.seeds import spawn_seeds

Array = npt.NDArray[Any]
PlayerName = Literal["random", "greedy"]


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
