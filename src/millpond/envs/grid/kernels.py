"""The grid environment's rules, compiled: step, observe and reset a slice of envs in one call, without the GIL.

Everything compiled is in this one file, because numba's cache on disk notices only changes of a function's own file.

Maps are random, and everything on them is reachable, in time linear in the number of blocks: blocks (walls and objects)
are placed one by one on random free cells. A block may be placed on a cell if the free cells around it are connected
without it: then no block can split the free cells in two, and as they are connected at first they stay connected. And
every object keeps a free cell next to it. Both tests look at the neighbours of the cell only.

    N envs    A agents    K altars
    a cell is an index into the padded map of `GridState`
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from millpond.compiled import compiled
from millpond.envs.env_batch import GAMMA, MIX_1, MIX_2, SHIFT_1, SHIFT_2, SHIFT_3
from millpond.envs.grid.game import (
    AGENT,
    ALTAR,
    ALTAR_COOLING,
    BATTERY,
    EAST,
    EMPTY,
    GENERATOR,
    HEART,
    MINE,
    NOOP,
    NORTH,
    ORE,
    SOUTH,
    WALL,
    WEST,
    GridRules,
    GridState,
)

Array = npt.NDArray[Any]
HALF = np.uint64(32)
CACHE_LINE = 64  # bytes, which are cells


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(typing: Any, array: Any, row: Any, column: Any) -> tuple[Any, Callable[..., Any]]:
    """Prefetch array[row, column] into the processor's cache without waiting; numba has no function for that.

    A loop over many envs, of a kilobyte each, would otherwise wait for memory at every one.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0]
        struct = context.make_array(kind)(context, builder, arguments[0])
        pointer = cgutils.get_item_pointer(context, builder, kind, struct, arguments[1:], wraparound=False)
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        hint = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, hint, "llvm.prefetch.p0")
        # Arguments of LLVM's instruction: for reading, into all cache levels, data.
        builder.call(function, [builder.bitcast(pointer, byte), word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp), generate


@compiled
def draw_below(random: Array, env: int, bound: int) -> int:
    """Draw an integer in 0..bound-1 from the env's stream; the same numbers as `millpond.envs.env_batch.draw_below`."""
    state = random[env] + GAMMA
    random[env] = state
    mixed = (state ^ (state >> SHIFT_1)) * MIX_1
    mixed = (mixed ^ (mixed >> SHIFT_2)) * MIX_2
    mixed = mixed ^ (mixed >> SHIFT_3)
    return int(((mixed >> HALF) * np.uint64(bound)) >> HALF)


@compiled
def free_around(cells: Array, cell: int, stride: int) -> int:
    """Count the free cells among the four neighbours."""
    return (
        int(cells[cell - stride] == EMPTY)
        + int(cells[cell + stride] == EMPTY)
        + int(cells[cell - 1] == EMPTY)
        + int(cells[cell + 1] == EMPTY)
    )


@compiled
def may_block(cells: Array, cell: int, stride: int) -> bool:
    """True if a block on a free cell leaves the free cells connected and every object reachable.

    In a circle around the cell, its free neighbours form arcs; a corner connects two sides only if it is free. The free
    sides are connected without the cell if they are on one arc. If no side is free, there is nothing to split, but the
    block itself would be unreachable.
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
    # Sides on a circle: all four connected, or one arc if joins is one less than sides.
    if sides == 0 or joins < sides - 1:
        return False
    for step in (-stride, stride, -1, 1):
        neighbour = cells[cell + step]
        is_object = MINE <= neighbour <= ALTAR
        if is_object and free_around(cells, cell + step, stride) < 2:
            return False
    return True


@compiled
def inner_cell(rules: GridRules, index: int) -> int:
    """Return the cell of the padded map for cell number `index` of the map."""
    return (index // rules.width + rules.margin) * rules.stride + index % rules.width + rules.margin


@compiled
def find_cell(rules: GridRules, state: GridState, env: int, block: bool) -> int:
    """Return a random free cell: any for an agent, one that may be blocked for a block; -1 if there is none.

    After 32 random tries, search the map from a random start.
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


@compiled
def new_map(rules: GridRules, state: GridState, env: int) -> bool:
    """Draw maps until all blocks and agents fit: on crowded maps about one in a thousand fails.

    Return False if none fits, which the limits of `GridOptions` prevent for all but tiny maps.
    """
    tries = 0
    while not draw_map(rules, state, env):
        tries += 1
        if tries == 1_000:
            return False
    return True


@compiled
def draw_map(rules: GridRules, state: GridState, env: int) -> bool:
    """Draw a map and place the agents; return False if the blocks do not fit."""
    cells = state.cells[env]
    cells[:] = WALL
    for row in range(rules.height):
        start = inner_cell(rules, row * rules.width)
        cells[start : start + rules.width] = EMPTY
    # Objects before walls: they fit most easily on an empty map, and walls then keep a distance from them.
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


@compiled
def begin_episode(rules: GridRules, state: GridState, env: int) -> bool:
    """Clear the episode's statistics and draw a new map; return False if the blocks do not fit."""
    state.clock[env] = 0
    state.began[env] = 0
    state.inventory[env] = 0
    state.cooldown[env] = 0
    state.returns[env] = 0.0
    state.made[env] = 0
    return new_map(rules, state, env)


@compiled
def observe(rules: GridRules, cells: Array, place: Array, inventory: Array, env: int, observation: Array) -> None:
    """Write the observation of each agent of an env: the window's cells, row by row, then its own inventory.

    Hearts are not limited, but shown up to `capacity`, as the other resources.
    """
    size, stride, capacity = rules.obs_size, rules.stride, rules.capacity
    # Unsigned indices: otherwise numba checks each one for being negative, which doubles the time.
    row_end, window = np.uint64(size), np.uint64(size * size)
    for agent in range(rules.num_agents):
        source = np.uint64(place[env, agent] - rules.margin * stride - rules.margin)
        target = np.uint64(0)
        while target < window:
            for column in range(row_end):
                observation[env, agent, target + column] = cells[env, source + column]
            source += np.uint64(stride)
            target += row_end
        for resource in range(3):
            observation[env, agent, size * size + resource] = min(inventory[env, agent, resource], capacity)


@compiled
def act(
    rules: GridRules,
    cells: Array,
    place: Array,
    inventory: Array,
    made: Array,
    altars: Array,
    cooldown: Array,
    env: int,
    agent: int,
    action: int,
) -> float:
    """Execute one agent's action and return its reward. Takes the state's arrays one by one: see `step_envs`."""
    if action == NORTH:
        step = -rules.stride
    elif action == SOUTH:
        step = rules.stride
    elif action == WEST:
        step = -1
    elif action == EAST:
        step = 1
    else:
        return 0.0
    here = place[env, agent]
    there = here + step
    code = cells[env, there]
    if code == EMPTY:
        cells[env, here] = EMPTY
        cells[env, there] = AGENT
        place[env, agent] = there
    elif code == MINE:
        if inventory[env, agent, ORE] < rules.capacity:
            inventory[env, agent, ORE] += 1
            made[env, ORE] += 1
            return rules.reward_ore
    elif code == GENERATOR:
        if inventory[env, agent, ORE] > 0 and inventory[env, agent, BATTERY] < rules.capacity:
            inventory[env, agent, ORE] -= 1
            inventory[env, agent, BATTERY] += 1
            made[env, BATTERY] += 1
            return rules.reward_battery
    elif code == ALTAR and inventory[env, agent, BATTERY] > 0:
        inventory[env, agent, BATTERY] -= 1
        inventory[env, agent, HEART] += 1
        made[env, HEART] += 1
        if rules.altar_cooldown > 0:
            cells[env, there] = ALTAR_COOLING
            for altar in range(rules.altars):
                if altars[env, altar] == there:
                    cooldown[env, altar] = rules.altar_cooldown
        return rules.reward_heart
    return 0.0


@compiled
def step_envs(
    rules: GridRules,
    state: GridState,
    first: int,
    last: int,
    action: Array,
    observation: Array,
    final_observation: Array,
    reward: Array,
    truncated: Array,
) -> int:
    """Step the envs first..last-1 and return the number of episodes that ended.

    A negative number is an error: -1 - env, its new map does not fit; -1 - N - env, it has an invalid action.

    Altars cool down before the agents act, so one that was used at step t works again at step t + altar_cooldown.
    Agents act one after another; which one is first changes with the clock, so that none is favoured.
    """
    # Read the arrays from the tuple once: each access through it costs an atomic reference count.
    cells, place, inventory, made = state.cells, state.agent, state.inventory, state.made
    altars, cooldown, clock, returns = state.altar, state.cooldown, state.clock, state.returns
    agents = rules.num_agents
    ended = 0
    for env in range(first, last):
        if env + 1 < last:
            for line in range(0, cells.shape[1], CACHE_LINE):
                prefetch(cells, env + 1, line)
        for altar in range(rules.altars):
            left = cooldown[env, altar]
            if left > 0:
                cooldown[env, altar] = left - 1
                if left == 1:
                    cells[env, altars[env, altar]] = ALTAR
        agent = clock[env] % agents
        for _ in range(agents):
            if action[env, agent] < NOOP or action[env, agent] > EAST:
                return -1 - len(action) - env
            gained = act(rules, cells, place, inventory, made, altars, cooldown, env, agent, action[env, agent])
            reward[env, agent] = gained
            returns[env, agent] += gained
            agent += 1
            if agent == agents:
                agent = 0
        clock[env] += 1
        over = clock[env] >= rules.max_steps
        for agent in range(agents):
            truncated[env, agent] = over
        if over:
            ended += 1
            observe(rules, cells, place, inventory, env, final_observation)
            state.ended_returns[env] = returns[env]
            state.ended_made[env] = made[env]
            state.ended_length[env] = clock[env] - state.began[env]
            if not begin_episode(rules, state, env):
                return -1 - env
        observe(rules, cells, place, inventory, env, observation)
    return ended


@compiled
def reset_envs(rules: GridRules, state: GridState, observation: Array) -> int:
    """Start the first episode of every env from `state.random`; return 0, or -1 - env if a map does not fit."""
    for env in range(state.clock.shape[0]):
        if not begin_episode(rules, state, env):
            return -1 - env
        if rules.stagger:
            state.clock[env] = draw_below(state.random, env, rules.max_steps)
            state.began[env] = state.clock[env]
        observe(rules, state.cells, state.agent, state.inventory, env, observation)
    return 0
