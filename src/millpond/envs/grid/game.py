"""The grid environment without numba: options, codes, spec, and the arrays of its state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from millpond.envs.families import parse_options, require
from millpond.envs.spec import ActionSpec, EnvSpec, ObservationSpec

# Codes of the map's cells, as agents see them.
EMPTY, WALL, MINE, GENERATOR, ALTAR, ALTAR_COOLING, AGENT = range(7)
CELL_NAMES = ("empty", "wall", "mine", "generator", "altar", "cooling altar", "agent")

# Resources that an agent carries.
ORE, BATTERY, HEART = range(3)
RESOURCES = ("ore", "battery", "heart")

# Actions. Moving into an object uses it; moving into a wall or an agent does nothing.
NOOP, NORTH, SOUTH, WEST, EAST = range(5)
ACTION_NAMES = ("noop", "north", "south", "west", "east")

INFO_NAMES = ("ores", "batteries", "hearts")


@dataclass(frozen=True)
class GridOptions:
    """The rules of the grid environment.

    An agent that moves into a mine takes one ore; into a generator, it turns one ore into one battery; into an altar, one
    battery into one heart, after which the altar cools down. It carries at most `capacity` ores and as many batteries;
    hearts are not limited. So shaping rewards are bounded by the hearts made: an agent that never goes to the altar can
    soon carry no more.
    """

    num_agents: int = 3
    obs_size: int = 11  # the agent sees obs_size x obs_size cells around itself; odd
    max_steps: int = 1_000  # steps until an episode is truncated; it never terminates
    width: int = 24
    height: int = 24
    walls: int = 40  # single cells inside; the border is a wall too
    mines: int = 16
    generators: int = 10
    altars: int = 10
    capacity: int = 3
    altar_cooldown: int = 10  # steps until an altar works again
    reward_ore: float = 0.1
    reward_battery: float = 0.2
    reward_heart: float = 1.0
    stagger: bool = True  # the first episode of an env starts at a random step

    def __post_init__(self) -> None:
        for name in ("num_agents", "max_steps", "mines", "generators", "altars", "capacity"):
            value = getattr(self, name)
            require(value >= 1, "grid", f"{name}={value} must be at least 1")
        for name in ("walls", "altar_cooldown"):
            value = getattr(self, name)
            require(value >= 0, "grid", f"{name}={value} must not be negative")
        for name in ("width", "height"):
            value = getattr(self, name)
            require(3 <= value <= 1_000, "grid", f"{name}={value} must be in 3..1,000")
        odd = self.obs_size >= 3 and self.obs_size % 2 == 1
        fix = f"try {max(3, self.obs_size - 1)} or {max(3, self.obs_size + 1)}"
        require(odd, "grid", f"obs_size={self.obs_size} must be odd and at least 3, to have a centre; {fix}")
        require(self.capacity <= 255, "grid", f"capacity={self.capacity} must be at most 255: it is shown as a byte")
        cells, blocks = self.width * self.height, self.walls + self.mines + self.generators + self.altars
        require(
            blocks <= cells // 3,
            "grid",
            f"walls + mines + generators + altars = {blocks} must be at most a third of the map's "
            f"{self.width}x{self.height} = {cells} cells, so that all are reachable; enlarge the map or remove "
            f"{blocks - cells // 3}",
        )
        require(
            self.num_agents <= cells // 6,
            "grid",
            f"num_agents={self.num_agents} must be at most a sixth of the map's {cells} cells; enlarge the map",
        )

    @property
    def margin(self) -> int:
        """Rows and columns of wall around the map, so that every window can be copied without bounds checks."""
        return self.obs_size // 2


def parse_grid_options(mapping: Mapping[str, Any]) -> GridOptions:
    return parse_options(GridOptions, mapping, env_id="grid")


def describe(mapping: Mapping[str, Any]) -> EnvSpec:
    """Return the spec: the window's cells and the agent's own inventory, all bytes."""
    options = parse_grid_options(mapping)
    return EnvSpec(
        id="grid",
        observation=ObservationSpec.packed(
            [
                ("cells", "grid", (options.obs_size, options.obs_size), "uint8"),
                ("inventory", "vector", (len(RESOURCES),), "uint8"),
            ],
            high={"cells": float(AGENT), "inventory": float(options.capacity)},
        ),
        action=ActionSpec.discrete(len(ACTION_NAMES)),
        num_agents=options.num_agents,
        max_steps=options.max_steps,
        savable=True,
        releases_gil=True,
        native_vector=True,
        info_names=INFO_NAMES,
    )


def padded_stride(options: GridOptions) -> int:
    """Cells in a row of the padded map. All margins are wall, so the right margin of a row is the left one of the next."""
    return options.width + options.margin


class GridRules(NamedTuple):
    """`GridOptions` as numbers for compiled code, and the sizes derived from them."""

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
    def of(options: GridOptions) -> GridRules:
        values = {name: getattr(options, name) for name in GridRules._fields if name != "stride"}
        return GridRules(stride=padded_stride(options), **values)


class GridState(NamedTuple):
    """The whole state of N envs with A agents and K altars. A cell is an index into the padded map, row-major."""

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
    def allocate(options: GridOptions, num_envs: int) -> GridState:
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
        return GridState(**{name: np.zeros((num_envs, *shape), dtype) for name, (shape, dtype) in shapes.items()})
