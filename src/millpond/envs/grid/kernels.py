"""The grid world's rules, compiled: a slice of envs is stepped, shown and reset in one call, without Python's lock."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
from numba import njit

from millpond.envs.grid.maps import draw_below, new_map
from millpond.envs.grid.spec import (
    AGENT,
    ALTAR,
    ALTAR_COOLING,
    BATTERY,
    EAST,
    EMPTY,
    GENERATOR,
    HEART,
    MINE,
    NORTH,
    ORE,
    SOUTH,
    WEST,
)
from millpond.envs.grid.state import Rules, State

Array = npt.NDArray[Any]


@njit(nogil=True, cache=True)
def begin_episode(rules: Rules, state: State, env: int) -> bool:
    """Clear the episode's books and draw a new map. False when the blocks do not fit."""
    state.clock[env] = 0
    state.began[env] = 0
    state.inventory[env] = 0
    state.cooldown[env] = 0
    state.returns[env] = 0.0
    state.made[env] = 0
    return new_map(rules, state, env)


@njit(nogil=True, cache=True)
def show(rules: Rules, state: State, env: int, observation: Array) -> None:
    """Write what each agent of an env sees: the window's cells, row by row, then its own inventory.

    Hearts are not limited, so they are shown up to `capacity`, as the others are.
    """
    size, stride = rules.obs_size, rules.stride
    cells = state.cells[env]
    for agent in range(rules.num_agents):
        seen = observation[env, agent]
        corner = state.agent[env, agent] - rules.margin * stride - rules.margin
        for row in range(size):
            source = corner + row * stride
            target = row * size
            for column in range(size):
                seen[target + column] = cells[source + column]
        for resource in range(3):
            seen[size * size + resource] = min(state.inventory[env, agent, resource], rules.capacity)


@njit(nogil=True, cache=True)
def act(rules: Rules, state: State, env: int, agent: int, action: int) -> float:
    """One agent's action; its reward."""
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
    cells = state.cells[env]
    here = state.agent[env, agent]
    there = here + step
    code = cells[there]
    if code == EMPTY:
        cells[here] = EMPTY
        cells[there] = AGENT
        state.agent[env, agent] = there
        return 0.0
    carried = state.inventory[env, agent]
    if code == MINE and carried[ORE] < rules.capacity:
        carried[ORE] += 1
        state.made[env, ORE] += 1
        return rules.reward_ore
    if code == GENERATOR and carried[ORE] > 0 and carried[BATTERY] < rules.capacity:
        carried[ORE] -= 1
        carried[BATTERY] += 1
        state.made[env, BATTERY] += 1
        return rules.reward_battery
    if code == ALTAR and carried[BATTERY] > 0:
        carried[BATTERY] -= 1
        carried[HEART] += 1
        state.made[env, HEART] += 1
        if rules.altar_cooldown > 0:
            cells[there] = ALTAR_COOLING
            for altar in range(rules.altars):
                if state.altar[env, altar] == there:
                    state.cooldown[env, altar] = rules.altar_cooldown
        return rules.reward_heart
    return 0.0


@njit(nogil=True, cache=True)
def cool_down(rules: Rules, state: State, env: int) -> None:
    """One step passes for the altars that cool."""
    for altar in range(rules.altars):
        left = state.cooldown[env, altar]
        if left > 0:
            state.cooldown[env, altar] = left - 1
            if left == 1:
                state.cells[env, state.altar[env, altar]] = ALTAR


@njit(nogil=True, cache=True)
def step_envs(
    rules: Rules,
    state: State,
    first: int,
    last: int,
    action: Array,
    observation: Array,
    final_observation: Array,
    reward: Array,
    truncated: Array,
) -> int:
    """Step the envs first..last-1. Returns how many episodes ended; -1 - env when a new map does not fit.

    Altars cool before the agents act, so one that was used at step t works again at step t + altar_cooldown.
    Agents act one after another; who goes first changes with the clock, so that none is favoured.
    """
    agents = rules.num_agents
    ended = 0
    for env in range(first, last):
        cool_down(rules, state, env)
        turn = state.clock[env] % agents
        for place in range(agents):
            agent = turn + place
            if agent >= agents:
                agent -= agents
            gained = act(rules, state, env, agent, action[env, agent])
            reward[env, agent] = gained
            state.returns[env, agent] += gained
        state.clock[env] += 1
        over = state.clock[env] >= rules.max_steps
        truncated[env] = over
        if over:
            ended += 1
            show(rules, state, env, final_observation)
            state.ended_returns[env] = state.returns[env]
            state.ended_made[env] = state.made[env]
            state.ended_length[env] = state.clock[env] - state.began[env]
            if not begin_episode(rules, state, env):
                return -1 - env
        show(rules, state, env, observation)
    return ended


@njit(nogil=True, cache=True)
def reset_envs(rules: Rules, state: State, observation: Array) -> int:
    """Begin a first episode everywhere, from `state.random`. Returns 0; -1 - env when a map does not fit."""
    for env in range(state.clock.shape[0]):
        if not begin_episode(rules, state, env):
            return -1 - env
        if rules.stagger:
            state.clock[env] = draw_below(state.random, env, rules.max_steps)
            state.began[env] = state.clock[env]
        show(rules, state, env, observation)
    return 0


@njit(nogil=True, cache=True)
def random_actions(random: Array, action: Array) -> None:
    """A uniform action for each agent, each env from its own stream [N]."""
    for env in range(action.shape[0]):
        for agent in range(action.shape[1]):
            action[env, agent] = draw_below(random, env, EAST + 1)


