"""A MettaGridConfig made ready: converted for the C++ core once, with a new map for each episode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import yaml

from millpond.envs.dotted import load_dotted
from millpond.envs.errors import EnvError, import_extra
from millpond.envs.mettagrid.spec import Forage, MettaGridOptions, token_spec
from millpond.envs.spec import ActionSpec, EnvSpec

VIBE_PREFIX = "change_vibe_"


class Scenario:
    """What all envs of an environment share."""

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
        primary = [place for place, name in enumerate(names) if not name.startswith(VIBE_PREFIX)]
        vibes = [place for place, name in enumerate(names) if name.startswith(VIBE_PREFIX)]
        self.action_names = [names[place] for place in primary]
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
        """A simulation at its start. A map whose seed the config fixes stays the same in every episode."""
        builder = self._game.map_builder
        if getattr(builder, "seed", 0) is None:
            builder = builder.model_copy(update={"seed": map_seed})
        grid = builder.create().build_for_num_agents(self._game.num_agents).grid.tolist()
        if self._renames:
            grid = self._rename(grid, self._renames)
        return self._core(self._converted, grid, core_seed)


def check_agreement(options: MettaGridOptions, game: Any) -> None:
    """A size that the user gives must be the config's own: a run must not be other than it says."""
    actual = {"num_agents": game.num_agents, "num_tokens": game.obs.num_tokens, "max_steps": game.max_steps}
    actual["obs_size"] = game.obs.width
    for name, value in actual.items():
        given = getattr(options, name)
        if given is not None and given != value:
            raise EnvError(
                f"env 'mettagrid': {name}={given}, but the config {options.config!r} has {value}; "
                f"set env.{name}={value} or leave it out"
            )


def load_config(options: MettaGridOptions) -> Any:
    """The user's MettaGridConfig, from a file or from a function."""
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
    """Agents forage: a mine gives ore, an altar takes one ore for one heart; 1 a heart, 0.1 an ore held."""
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
