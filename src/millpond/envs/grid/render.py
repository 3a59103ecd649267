"""Pictures of the grid environment."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millpond.envs.grid.spec import BATTERY, HEART, ORE, GridOptions
from millpond.envs.grid.state import State, padded_stride

TILE = 8  # pixels a cell
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


def inner(options: GridOptions, state: State, env: int) -> npt.NDArray[np.uint8]:
    """The map of one env without its margin, [height, width]; a view."""
    margin, stride = options.margin, padded_stride(options)
    rows = state.cells[env, margin * stride : (margin + options.height) * stride].reshape(options.height, stride)
    return rows[:, margin:]


def agent_places(options: GridOptions, state: State, env: int) -> list[tuple[int, int]]:
    """Row and column of each agent on the map without its margin."""
    stride = padded_stride(options)
    return [(int(c) // stride - options.margin, int(c) % stride - options.margin) for c in state.agent[env]]


def render_rgb(options: GridOptions, state: State, env: int) -> npt.NDArray[np.uint8]:
    """[height * TILE, width * TILE, 3], one colour an agent; what it carries as a dot in the object's colour."""
    image = COLOURS[inner(options, state, env)].repeat(TILE, 0).repeat(TILE, 1)
    for agent, (row, column) in enumerate(agent_places(options, state, env)):
        tile = image[row * TILE : (row + 1) * TILE, column * TILE : (column + 1) * TILE]
        tile[:] = COLOURS[0]
        tile[1:-1, 1:-1] = AGENT_COLOURS[agent % len(AGENT_COLOURS)]
        ore, battery = state.inventory[env, agent, ORE], state.inventory[env, agent, BATTERY]
        if battery:
            tile[2:-2, 2:-2] = COLOURS[3]
        elif ore:
            tile[2:-2, 2:-2] = COLOURS[2]
    return np.ascontiguousarray(image)


def render_text(options: GridOptions, state: State, env: int) -> str:
    """One character a cell: empty `.`, wall `#`, mine `m`, generator `g`, altar `a`, cooling altar `z`; agents as the
    last digit of their number. Below, the clock and what each agent carries."""
    drawn = np.array(list(CHARACTERS))[inner(options, state, env)]
    for agent, (row, column) in enumerate(agent_places(options, state, env)):
        drawn[row, column] = str(agent % 10)
    carried = "  ".join(
        f"{agent}: ore {kept[ORE]} battery {kept[BATTERY]} heart {kept[HEART]}"
        for agent, kept in enumerate(state.inventory[env])
    )
    return "\n".join("".join(row) for row in drawn) + f"\nstep {state.clock[env]}/{options.max_steps}  {carried}"
