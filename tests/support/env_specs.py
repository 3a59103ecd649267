"""Specs of environments that need not exist."""

from __future__ import annotations

from millpond.envs.spec import ActionSpec, EnvSpec, ObservationSpec

VECTOR = ObservationSpec.single((4,), "float32", "vector")
IMAGE = ObservationSpec.single((3, 96, 96), "uint8", "pixels")
SMALL_IMAGE = ObservationSpec.single((4, 10, 10), "uint8", "pixels")
CONTINUOUS = ActionSpec.continuous((-1.0,), (1.0,))


def env_spec(agents: int = 1, observation: ObservationSpec = VECTOR, action: ActionSpec | None = None) -> EnvSpec:
    """Return a spec; without arguments, that of one agent that sees a vector and has two actions."""
    return EnvSpec("nowhere:make_env", observation, action or ActionSpec.discrete(2), num_agents=agents)
