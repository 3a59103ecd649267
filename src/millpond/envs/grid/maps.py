"""Random maps in which everything can be reached, in time linear in what is placed.

Blocks (walls and objects) go one by one to random free cells. A block may go to a cell when the free cells around it
hang together without it: then no placing can cut the free cells in two, and since they begin in one piece they stay
so. And every object keeps a free cell beside it. Both tests look at the cell's neighbours only.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from millpond.envs.grid.spec import AGENT, ALTAR, EMPTY, GENERATOR, MINE, WALL
from millpond.envs.grid.state import Rules, State
from millpond.envs.seeds import GAMMA, MIX_1, MIX_2, SHIFT_1, SHIFT_2, SHIFT_3

HALF = np.uint64(32)


@njit(nogil=True, cache=True)
def draw_below(random: np.ndarray, env: int, bound: int) -> int:  # type: ignore[type-arg]
    """One integer of 0..bound-1 from the env's stream; the same numbers as `millpond.envs.seeds.draw_below`."""
    state = random[env] + GAMMA
    random[env] = state
    mixed = (state ^ (state >> SHIFT_1)) * MIX_1
    mixed = (mixed ^ (mixed >> SHIFT_2)) * MIX_2
    mixed = mixed ^ (mixed >> SHIFT_3)
    return np.int64(((mixed >> HALF) * np.uint64(bound)) >> HALF)


@njit(nogil=True, cache=True)
def free_around(cells: np.ndarray, cell: int, stride: int) -> int:  # type: ignore[type-arg]
    """How many of the four neighbours are free."""
    return (
        np.int64(cells[cell - stride] == EMPTY)
        + np.int64(cells[cell + stride] == EMPTY)
        + np.int64(cells[cell - 1] == EMPTY)
        + np.int64(cells[cell + 1] == EMPTY)
    )


@njit(nogil=True, cache=True)
def may_block(cells: np.ndarray, cell: int, stride: int) -> bool:  # type: ignore[type-arg]
    """Whether a block at a free cell leaves the free cells in one piece and every object reachable.

    Going around the cell's eight neighbours, the free ones form arcs; a corner joins two sides only if it is free.
    The free sides hang together without the cell when they lie on one arc. With no free side there is nothing to cut,
    but the block itself would be out of reach.
    """
    ring = (
        cells[cell - stride] == EMPTY,
        cells[cell - stride + 1] == EMPTY,
        cells[cell + 1] == EMPTY,
        cells[cell + stride + 1] == EMPTY,
        cells[cell + stride] == EMPTY,
        cells[cell + stride - 1] == EMPTY,
        cells[cell - 1] == EMPTY,
        cells[cell - stride - 1] == EMPTY,
    )
    sides = 0
    joins = 0
    for side in range(0, 8, 2):
        if ring[side]:
            sides += 1
            if ring[side + 1] and ring[(side + 2) % 8]:
                joins += 1
    # Sides on a circle: all four joined, or one piece when joins is one less than sides.
    if sides == 0 or joins < sides - 1:
        return False
    for step in (-stride, stride, -1, 1):
        neighbour = cells[cell + step]
        if (neighbour == MINE or neighbour == GENERATOR or neighbour == ALTAR) and free_around(
            cells, cell + step, stride
        ) < 2:
            return False
    return True


@njit(nogil=True, cache=True)
def inner_cell(rules: Rules, index: int) -> int:
    """Cell of the padded map of the index-th cell of the map itself."""
    return (index // rules.width + rules.margin) * rules.stride + index % rules.width + rules.margin


@njit(nogil=True, cache=True)
def find_cell(rules: Rules, state: State, env: int, block: bool) -> int:
    """A random free cell: any for an agent, one that may be blocked for a block; -1 when there is none.

    Random tries first; where they fail, the map is gone through from a random start.
    """
    cells = state.cells[env]
    area = rules.width * rules.height
    for _ in range(32):
        cell = inner_cell(rules, draw_below(state.random, env, area))
        if cells[cell] == EMPTY and (not block or may_block(cells, cell, rules.stride)):
            return cell
    start = draw_below(state.random, env, area)
    for index in range(area):
        cell = inner_cell(rules, (start + index) % area)
        if cells[cell] == EMPTY and (not block or may_block(cells, cell, rules.stride)):
            return cell
    return -1


@njit(nogil=True, cache=True)
def new_map(rules: Rules, state: State, env: int) -> bool:
    """Draw a map and place the agents. False when the blocks do not fit."""
    cells = state.cells[env]
    cells[:] = WALL
    for row in range(rules.height):
        start = inner_cell(rules, row * rules.width)
        cells[start : start + rules.width] = EMPTY
    # Objects before walls: they find room most easily on an empty map, and walls then keep clear of them.
    for code, count in (
        (MINE, rules.mines),
        (GENERATOR, rules.generators),
        (ALTAR, rules.altars),
        (WALL, rules.walls),
    ):
        for index in range(count):
            cell = find_cell(rules, state, env, True)
            if cell < 0:
                return False
            cells[cell] = code
            if code == ALTAR:
                state.altar[env, index] = cell
    for agent in range(rules.num_agents):
        cell = find_cell(rules, state, env, False)
        if cell < 0:
            return False
        state.agent[env, agent] = cell
        cells[cell] = AGENT
    return True
