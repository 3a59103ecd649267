"""MettaGrid's options and spec, and `Scenario`: a MettaGridConfig converted for the C++ core.

MettaGrid itself is imported only when a `Scenario` is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from millpond.envs.env_batch import EnvError
from millpond.envs.families import import_extra
from millpond.envs.options import load_dotted, parse_options, require
from millpond.envs.spec import ActionSpec, EnvSpec, ObservationSpec

TOKEN_BYTES = 3  # packed location, feature, value
FORAGE_FEATURES = 20  # number of features in the forage scenario
VIBE_PREFIX = "change_vibe_"
FORAGE_ACTIONS = ("noop", "move_north", "move_south", "move_west", "move_east")


@dataclass(frozen=True)
class MettaGridOptions:
    """Without `config`, the forage scenario: `num_agents` agents on a `size` x `size` map with mines and altars.

    `config` names a MettaGridConfig: a YAML or JSON file, or a function by its dotted path `package.module:function`,
    called with `kwargs`. The sizes then come from the config; sizes that are set as well must agree with it.
    """

    num_agents: int | None = None  # forage: 3
    obs_size: int | None = None  # side of the window an agent sees; forage: 11
    num_tokens: int | None = None  # forage: 200
    max_steps: int | None = None  # forage: 1,000
    size: int = 15  # of the forage map
    config: str | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    vibes: bool = False  # agents choose a vibe besides their action, if the config has vibes
    time_limit_truncates: bool = True  # the step limit truncates, even if the config lets it terminate

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
    """Sizes of the forage scenario."""

    num_agents: int = 3
    obs_size: int = 11
    num_tokens: int = 200
    max_steps: int = 1_000
    size: int = 15

    @staticmethod
    def of(options: MettaGridOptions) -> Forage:
        names = ("num_agents", "obs_size", "num_tokens", "max_steps")
        set_sizes = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
        return Forage(**set_sizes, size=options.size)


def parse_mettagrid_options(mapping: Mapping[str, Any]) -> MettaGridOptions:
    return parse_options(MettaGridOptions, mapping, env_id="mettagrid")


def describe(mapping: Mapping[str, Any]) -> EnvSpec:
    """Return the spec of a MettaGrid environment; only a custom config imports MettaGrid."""
    options = parse_mettagrid_options(mapping)
    if options.config is not None or options.vibes:
        return Scenario(options).spec
    forage = Forage.of(options)
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


class Scenario:
    """A MettaGridConfig, converted for the C++ core once and shared by all envs, with a new map for each episode."""

    def __init__(self, options: MettaGridOptions) -> None:
        import_extra("mettagrid", extra="metta", env_id="mettagrid")
        from mettagrid.config import mettagrid_c_config
        from mettagrid.config.id_map import IdMap
        from mettagrid.mettagrid_c import MettaGrid

        config = forage_config(Forage.of(options)) if options.config is None else load_config(options)
        game = (
            config.game.model_copy(update={"episode_truncates": True}) if options.time_limit_truncates else config.game
        )
        check_agreement(options, game)
        self._game = game
        self._core = MettaGrid
        self._converted, self._renames = mettagrid_c_config.convert_to_cpp_game_config(game)
        self._rename = mettagrid_c_config.rename_map_agents

        names = [action.name for action in game.actions.actions()]
        primary = [index for index, name in enumerate(names) if not name.startswith(VIBE_PREFIX)]
        vibes = [index for index, name in enumerate(names) if name.startswith(VIBE_PREFIX)]
        self.action_names = [names[index] for index in primary]
        self.action_ids = np.array(primary, np.int32)
        self.vibe_ids = np.array([0, *vibes], np.int32) if options.vibes else None  # 0: keep the vibe
        if options.vibes and not vibes:
            raise EnvError("env 'mettagrid': vibes=true, but the config has no vibes; leave the option out")
        action = ActionSpec.discrete(len(primary))
        if options.vibes:
            action = ActionSpec.multidiscrete((len(primary), len(vibes) + 1))
        self.end_stats: dict[str, float] = {k: float(v) for k, v in game.end_episode_on_game_stats.items()}
        features = 1 + max(feature.id for feature in IdMap(game).features())
        self.spec: EnvSpec = token_spec(game.obs.num_tokens, features, action, game.num_agents, game.max_steps or None)

    def new_core(self, map_seed: int, core_seed: int) -> Any:
        """Return a new simulation. A map whose seed is fixed in the config is the same in every episode."""
        builder = self._game.map_builder
        if getattr(builder, "seed", 0) is None:
            builder = builder.model_copy(update={"seed": map_seed})
        grid = builder.create().build_for_num_agents(self._game.num_agents).grid.tolist()
        if self._renames:
            grid = self._rename(grid, self._renames)
        return self._core(self._converted, grid, core_seed)


def check_agreement(options: MettaGridOptions, game: Any) -> None:
    """Refuse sizes in the options that differ from the config: a run must be what it says."""
    actual = {"num_agents": game.num_agents, "num_tokens": game.obs.num_tokens, "max_steps": game.max_steps}
    actual["obs_size"] = game.obs.width
    for name, value in actual.items():
        option = getattr(options, name)
        if option is not None and option != value:
            raise EnvError(
                f"env 'mettagrid': {name}={option}, but the config {options.config!r} has {value}; "
                f"set env.{name}={value} or leave it out"
            )


def load_config(options: MettaGridOptions) -> Any:
    """Load a custom MettaGridConfig from a file or a function."""
    from mettagrid.config.mettagrid_config import MettaGridConfig

    source = options.config
    assert source is not None
    if source.endswith((".yaml", ".yml", ".json")):
        path = Path(source)
        if not path.is_file():
            raise EnvError(f"env 'mettagrid': config={source!r} is not a file (looked in {Path.cwd()})")
        if options.kwargs:
            raise EnvError(f"env 'mettagrid': kwargs are for a config that is a function, and {source!r} is a file")
        try:
            return MettaGridConfig.model_validate(yaml.safe_load(path.read_text()))
        except (yaml.YAMLError, ValueError) as error:
            raise EnvError(f"env 'mettagrid': {source} is not a MettaGridConfig: {error}") from error
    if ":" not in source:
        raise EnvError(
            f"env 'mettagrid': config={source!r} must be a YAML or JSON file, or a function as package.module:function"
        )
    config = load_dotted(source)(**options.kwargs)
    if not isinstance(config, MettaGridConfig):
        raise EnvError(f"env 'mettagrid': {source} returned a {type(config).__name__}, not a MettaGridConfig")
    return config


def forage_config(forage: Forage) -> Any:
    """Return the forage scenario: a mine gives ore, an altar turns ore into a heart; reward 1 per heart, 0.1 per ore held."""
    from mettagrid.builder import building
    from mettagrid.config import handler_config as handlers
    from mettagrid.config import mettagrid_config as mc
    from mettagrid.config.game_value import InventoryValue
    from mettagrid.config.reward_config import reward
    from mettagrid.mapgen.mapgen import MapGen
    from mettagrid.mapgen.scenes.random import Random

    take_ore = handlers.Handler(mutations=[handlers.updateActor({"ore": 1})])
    make_heart = handlers.Handler(
        filters=[handlers.actorHas({"ore": 1})], mutations=[handlers.updateActor({"ore": -1, "heart": 1})]
    )
    hearts_limit = mc.ResourceLimitsConfig(base=255, resources=["heart"])
    game = mc.GameConfig(
        num_agents=forage.num_agents,
        max_steps=forage.max_steps,
        resource_names=["ore", "heart"],
        obs=mc.ObsConfig(width=forage.obs_size, height=forage.obs_size, num_tokens=forage.num_tokens),
        actions=mc.ActionsConfig(noop=mc.NoopActionConfig(), move=mc.MoveActionConfig()),
        objects={
            "wall": building.wall,
            "mine": mc.GridObjectConfig(name="mine", on_use_handler=take_ore),
            "altar": mc.GridObjectConfig(name="altar", on_use_handler=make_heart),
        },
        agent=mc.AgentConfig(
            inventory=mc.InventoryConfig(default_limit=50, limits={"heart": hearts_limit}),
            rewards={
                "heart": reward(InventoryValue(item="heart")),
                "ore": reward(InventoryValue(item="ore"), weight=0.1),
            },
        ),
        map_builder=MapGen.Config(
            num_agents=forage.num_agents,
            width=forage.size,
            height=forage.size,
            border_width=1,
            instance_border_width=0,
            instance=Random.Config(agents=forage.num_agents, objects={"wall": 5, "mine": 6, "altar": 6}),
        ),
    )
    return mc.MettaGridConfig(game=game)
