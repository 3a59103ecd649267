"""What the grid environment is, without numba: its rules, its codes, and the spec that follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from millpond.envs.options import parse_options, require
from millpond.envs.spec import ActionSpec, EnvSpec, ObservationSpec

# Codes of the map's cells, as agents see them.
EMPTY, WALL, MINE, GENERATOR, ALTAR, ALTAR_COOLING, AGENT = range(7)
CELL_NAMES = ("empty", "wall", "mine", "generator", "altar", "cooling altar", "agent")

# What an agent carries.
ORE, BATTERY, HEART = range(3)
RESOURCES = ("ore", "battery", "heart")

# Actions. Moving into an object uses it; moving into a wall or an agent does nothing.
NOOP, NORTH, SOUTH, WEST, EAST = range(5)
ACTION_NAMES = ("noop", "north", "south", "west", "east")

INFO_NAMES = ("ores", "batteries", "hearts")


@dataclass(frozen=True)
class GridOptions:
    """The rules of the grid environment.

    An agent that moves into a mine takes one ore; into a generator, turns one ore into one battery; into an altar,
    one battery into one heart, after which the altar cools down. It carries at most `capacity` ores and as many
    batteries; hearts are not limited. So what shaping pays is bounded by the hearts made: who will not go on to the
    altar soon carries all it can.
    """

    num_agents: int = 3
    obs_size: int = 11  # the agent sees obs_size x obs_size cells around itself; odd
    max_steps: int = 1_000  # an episode is truncated after as many steps; it never terminates
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
    stagger: bool = True  # the first episode of an env begins at a random point of its length

    def __post_init__(self) -> None:
        for name in ("num_agents", "max_steps", "mines", "generators", "altars", "capacity"):
            value = getattr(self, name)
            require(value >= 1, "grid", f"{name}={value} must be at least 1")
        for name in ("walls", "altar_cooldown"):
            value = getattr(self, name)
            require(value >= 0, "grid", f"{name}={value} must not be negative")
        for name in ("width", "height"):
            value = getattr(self, name)
            require(3 <= value <= 1_000, "grid", f"{name}={value} must lie in 3..1,000")
        odd = self.obs_size >= 3 and self.obs_size % 2 == 1
        fix = f"try {max(3, self.obs_size - 1)} or {max(3, self.obs_size + 1)}"
        require(odd, "grid", f"obs_size={self.obs_size} must be odd and at least 3, to have a centre; {fix}")
        require(self.capacity <= 255, "grid", f"capacity={self.capacity} must be at most 255: it is shown as a byte")
        cells, blocks = self.width * self.height, self.walls + self.mines + self.generators + self.altars
        require(
            blocks <= cells // 3,
            "grid",
            f"walls + mines + generators + altars = {blocks} must be at most a third of the map's "
            f"{self.width}x{self.height} = {cells} cells, so that all can be reached; enlarge the map or take "
            f"{blocks - cells // 3} away",
        )
        require(
            self.num_agents <= cells // 6,
            "grid",
            f"num_agents={self.num_agents} must be at most a sixth of the map's {cells} cells; enlarge the map",
        )

    @property
    def margin(self) -> int:
        """Rows and columns of wall around the map, so that every window is a plain copy."""
        return self.obs_size // 2


def options(mapping: Mapping[str, Any]) -> GridOptions:
    return parse_options(GridOptions, mapping, env_id="grid")


def describe(mapping: Mapping[str, Any]) -> EnvSpec:
    """Spec of the grid environment: the window's cells and the agent's own inventory, all bytes."""
    rules = options(mapping)
    return EnvSpec(
        id="grid",
        observation=ObservationSpec.packed(
            [
                ("cells", "grid", (rules.obs_size, rules.obs_size), "uint8"),
                ("inventory", "vector", (len(RESOURCES),), "uint8"),
            ],
            high={"cells": float(AGENT), "inventory": float(rules.capacity)},
        ),
        action=ActionSpec.discrete(len(ACTION_NAMES)),
        num_agents=rules.num_agents,
        max_steps=rules.max_steps,
        savable=True,
        releases_gil=True,
        native_vector=True,
        info_names=INFO_NAMES,
    )
