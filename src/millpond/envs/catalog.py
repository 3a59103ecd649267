"""What a config's world shows and takes, told without making it where that is possible."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millpond.envs.families import MINATAR_CHANNELS, family_of
from millpond.envs.spec import ActionSpec, EnvSpec, ObservationSpec

GRID_ACTIONS = 5  # stay, and four moves; moving into an object uses it
METTA_ACTIONS = 5
ATARI_ACTIONS = 18
MINATAR_ACTIONS = 6


def describe(env: Mapping[str, Any]) -> EnvSpec | None:
    """The spec of a config's `env` section (flat, keys without `env.`), or None where only the world itself knows."""
    family = family_of(env["id"])
    if family is None:
        return None
    agents, frames = env["num_agents"], env["frame_stack"]
    if family.name == "grid":
        size = env["obs_size"]
        observation = ObservationSpec.packed(
            [("cells", "grid", (size, size), "uint8"), ("inventory", "vector", (3,), "uint8")]
        )
        return EnvSpec("grid", observation, ActionSpec.discrete(GRID_ACTIONS), agents, savable=True, releases_gil=True)
    if family.name == "mettagrid" and env["mettagrid.config"] is None:
        tokens = ObservationSpec.single((env["mettagrid.num_tokens"], 3), "uint8", "tokens")
        return EnvSpec("mettagrid", tokens, ActionSpec.discrete(METTA_ACTIONS), agents)
    if family.name == "atari":
        side = env["atari.screen_size"]
        pixels = ObservationSpec.single((frames, side, side) if frames > 1 else (side, side), "uint8", "pixels")
        return EnvSpec(
            env["id"],
            pixels,
            ActionSpec.discrete(ATARI_ACTIONS),
            frame_skip=env["atari.frame_skip"],
            partial_step=False,
            native_vector=True,
        )
    if family.name == "minatar":
        channels = MINATAR_CHANNELS[env["id"].partition(":")[2]]
        cells = ObservationSpec.single((channels * frames, 10, 10), "bool", "pixels")
        return EnvSpec(env["id"], cells, ActionSpec.discrete(MINATAR_ACTIONS))
    return None
