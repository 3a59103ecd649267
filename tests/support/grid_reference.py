"""The rules of the grid environment in plain Python, one env at a time: the reference for the compiled ones."""

from __future__ import annotations

import numpy as np

from millpond.envs.grid.envs import GridEnvs, agent_positions, map_cells
from millpond.envs.grid.game import (
    AGENT,
    ALTAR,
    ALTAR_COOLING,
    EMPTY,
    GENERATOR,
    MINE,
    WALL,
    GridOptions,
)

STEPS = {1: (-1, 0), 2: (1, 0), 3: (0, -1), 4: (0, 1)}


class ReferenceEnv:
    """Copies the state of one env of a batch, and steps it independently until the end of the episode."""

    def __init__(self, env_batch: GridEnvs, env: int) -> None:
        self.options: GridOptions = env_batch.options
        self.cells = map_cells(env_batch.options, env_batch.state, env).copy()
        self.agents = agent_positions(env_batch.options, env_batch.state, env)
        self.inventory = env_batch.state.inventory[env].tolist()
        self.clock = int(env_batch.state.clock[env])
        self.cooldown: dict[tuple[int, int], int] = {}
        stride = env_batch.rules.stride
        for cell, left in zip(env_batch.state.altar[env], env_batch.state.cooldown[env], strict=True):
            row, column = int(cell) // stride - env_batch.rules.margin, int(cell) % stride - env_batch.rules.margin
            self.cooldown[row, column] = int(left)

    def at(self, row: int, column: int) -> int:
        inside = 0 <= row < self.options.height and 0 <= column < self.options.width
        return int(self.cells[row, column]) if inside else WALL

    def step(self, actions: list[int]) -> list[float]:
        rewards = [0.0] * len(actions)
        for place, left in self.cooldown.items():
            if left:
                self.cooldown[place] = left - 1
                if left == 1:
                    self.cells[place] = ALTAR
        for turn in range(len(actions)):
            agent = (self.clock + turn) % len(actions)
            if actions[agent] == 0:
                continue
            (row, column), (down, right) = self.agents[agent], STEPS[actions[agent]]
            target = (row + down, column + right)
            code, carried = self.at(*target), self.inventory[agent]
            if code == EMPTY:
                self.cells[row, column], self.cells[target] = EMPTY, AGENT
                self.agents[agent] = target
            elif code == MINE and carried[0] < self.options.capacity:
                carried[0] += 1
                rewards[agent] = self.options.reward_ore
            elif code == GENERATOR and carried[0] and carried[1] < self.options.capacity:
                carried[0], carried[1] = carried[0] - 1, carried[1] + 1
                rewards[agent] = self.options.reward_battery
            elif code == ALTAR and carried[1]:
                carried[1], carried[2] = carried[1] - 1, carried[2] + 1
                rewards[agent] = self.options.reward_heart
                if self.options.altar_cooldown:
                    self.cells[target] = ALTAR_COOLING
                    self.cooldown[target] = self.options.altar_cooldown
        self.clock += 1
        return rewards

    def observation(self, agent: int) -> np.ndarray:
        reach = self.options.obs_size // 2
        row, column = self.agents[agent]
        around = range(-reach, reach + 1)
        window = [self.at(row + down, column + right) for down in around for right in around]
        return np.array([*window, *(min(count, self.options.capacity) for count in self.inventory[agent])], np.uint8)

    def reachable(self) -> bool:
        """Return True if free cells and agents are connected, and every object has one of them next to it."""
        free = {(r, c) for r, c in zip(*np.nonzero((self.cells == EMPTY) | (self.cells == AGENT)), strict=True)}
        reached, todo = set(), [self.agents[0]]
        while todo:
            place = todo.pop()
            if place in reached or place not in free:
                continue
            reached.add(place)
            todo += [(place[0] + down, place[1] + right) for down, right in STEPS.values()]
        objects = zip(*np.nonzero((self.cells >= MINE) & (self.cells <= ALTAR)), strict=True)
        beside = all(any((r + down, c + right) in reached for down, right in STEPS.values()) for r, c in objects)
        return reached == free and beside
