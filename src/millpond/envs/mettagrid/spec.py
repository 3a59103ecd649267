"""MettaGrid's options, and the spec of the forage scenario without importing MettaGrid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from millpond.envs.options import parse_options, require
from millpond.envs.spec import ActionSpec, EnvSpec, ObservationSpec

TOKEN_BYTES = 3  # packed place, feature, value
FORAGE_FEATURES = 20  # that tokens have in the forage scenario
FORAGE_ACTIONS = ("noop", "move_north", "move_south", "move_west", "move_east")


@dataclass(frozen=True)
class MettaGridOptions:
    """Without `config`, the forage scenario: `num_agents` agents on a `size` x `size` map with mines and altars.

    `config` names a MettaGridConfig: a YAML or JSON file, or a function by its dotted path `package.module:function`,
    called with `kwargs`. Then the other sizes are the config's own; where they are given they must agree with it.
    """

    num_agents: int | None = None  # forage: 3
    obs_size: int | None = None  # side of the window an agent sees; forage: 11
    num_tokens: int | None = None  # forage: 200
    max_steps: int | None = None  # forage: 1,000
    size: int = 15  # of the forage map
    config: str | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    vibes: bool = False  # agents choose a vibe beside their action, where the config has vibes
    time_limit_truncates: bool = True  # the step limit truncates, even where the config calls it the end

    def __post_init__(self) -> None:
        for name in ("num_agents", "num_tokens", "max_steps"):
            value = getattr(self, name)
            require(value is None or value >= 1, "mettagrid", f"{name}={value} must be at least 1")
        view = self.obs_size
        require(view is None or view % 2 == 1, "mettagrid", f"obs_size={view} must be odd, to have a centre")
        require(self.size >= 5, "mettagrid", f"size={self.size} must be at least 5")
        require(self.config is not None or not self.kwargs, "mettagrid", "kwargs are for a config that is a function")


@dataclass(frozen=True)
class Forage:
    """The sizes of the forage scenario."""

    num_agents: int = 3
    obs_size: int = 11
    num_tokens: int = 200
    max_steps: int = 1_000
    size: int = 15

    @staticmethod
    def of(options: MettaGridOptions) -> Forage:
        names = ("num_agents", "obs_size", "num_tokens", "max_steps")
        given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
        return Forage(**given, size=options.size)


def options(mapping: Mapping[str, Any]) -> MettaGridOptions:
    return parse_options(MettaGridOptions, mapping, env_id="mettagrid")


def describe(mapping: Mapping[str, Any]) -> EnvSpec:
    """Spec of a MettaGrid environment; MettaGrid is imported only where a config of the user's own is given."""
    chosen = options(mapping)
    if chosen.config is not None or chosen.vibes:
        from millpond.envs.mettagrid.scenario import Scenario

        return Scenario(chosen).spec
    forage = Forage.of(chosen)
    action = ActionSpec.discrete(len(FORAGE_ACTIONS))
    return token_spec(forage.num_tokens, FORAGE_FEATURES, action, forage.num_agents, forage.max_steps)


def token_spec(num_tokens: int, features: int, action: ActionSpec, num_agents: int, max_steps: int | None) -> EnvSpec:
    return EnvSpec(
        id="mettagrid",
        observation=ObservationSpec.single((num_tokens, TOKEN_BYTES), "uint8", "tokens", high=features - 1),
        action=action,
        num_agents=num_agents,
        max_steps=max_steps,
    )
