"""The grid environment's whole state, as arrays over envs, and its rules as numbers that compiled code can read."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from millpond.envs.grid.spec import RESOURCES, GridOptions


def padded_stride(options: GridOptions) -> int:
    """Cells in a row of the padded map. All margins are wall, so a row's right one is the next row's left one."""
    return options.width + options.margin


class Rules(NamedTuple):
    """`GridOptions` for compiled code, and the sizes that follow from them."""

    num_agents: int
    obs_size: int
    max_steps: int
    width: int
    height: int
    margin: int
    stride: int  # cells in a row of the padded map, see `padded_stride`
    walls: int
    mines: int
    generators: int
    altars: int
    capacity: int
    altar_cooldown: int
    reward_ore: float
    reward_battery: float
    reward_heart: float
    stagger: bool

    @staticmethod
    def of(options: GridOptions) -> Rules:
        values = {name: getattr(options, name) for name in Rules._fields if name != "stride"}
        return Rules(stride=padded_stride(options), **values)


class State(NamedTuple):
    """N envs, A agents, K altars. A cell is an index into the padded map, row-major."""

    random: npt.NDArray[np.uint64]  # [N]     the env's own stream
    cells: npt.NDArray[np.uint8]  # [N, padded map]   agents drawn in
    agent: npt.NDArray[np.int32]  # [N, A]    cell
    inventory: npt.NDArray[np.int32]  # [N, A, 3]
    altar: npt.NDArray[np.int32]  # [N, K]    cell
    cooldown: npt.NDArray[np.int32]  # [N, K]    steps until it works again
    clock: npt.NDArray[np.int32]  # [N]       steps into the episode
    began: npt.NDArray[np.int32]  # [N]       where the clock began (stagger)
    returns: npt.NDArray[np.float64]  # [N, A]    of the episode so far
    made: npt.NDArray[np.int32]  # [N, 3]    ores, batteries, hearts of the episode so far
    ended_returns: npt.NDArray[np.float64]  # [N, A]    of the last episode that ended
    ended_made: npt.NDArray[np.int32]  # [N, 3]
    ended_length: npt.NDArray[np.int32]  # [N]

    @staticmethod
    def allocate(options: GridOptions, num_envs: int) -> State:
        agents, resources, altars = options.num_agents, len(RESOURCES), options.altars
        cells = (options.height + 2 * options.margin) * padded_stride(options) + options.margin
        shapes: dict[str, tuple[tuple[int, ...], Any]] = {
            "random": ((), np.uint64),
            "cells": ((cells,), np.uint8),
            "agent": ((agents,), np.int32),
            "inventory": ((agents, resources), np.int32),
            "altar": ((altars,), np.int32),
            "cooldown": ((altars,), np.int32),
            "clock": ((), np.int32),
            "began": ((), np.int32),
            "returns": ((agents,), np.float64),
            "made": ((resources,), np.int32),
            "ended_returns": ((agents,), np.float64),
            "ended_made": ((resources,), np.int32),
            "ended_length": ((), np.int32),
        }
        return State(**{name: np.zeros((num_envs, *shape), dtype) for name, (shape, dtype) in shapes.items()})
