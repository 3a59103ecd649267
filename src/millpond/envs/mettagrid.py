"""MettaGrid: its C++ core driven directly, for the forage scenario or a custom MettaGridConfig.

A `Scenario` is a MettaGridConfig converted for the core. Each env is one simulation, which reads and writes the buffers of
the caller; each episode is a new simulation, with a map seed and a core seed from the random stream of its env. MettaGrid
itself is imported only when a `Scenario` is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from millpond.envs.env_batch import Buffers, EnvError, EpisodeStats, EpisodeTracker, check_seeds, draw
from millpond.envs.families import import_extra, load_dotted, parse_options, require
from millpond.envs.spec import ActionSpec, EnvSpec, ObservationSpec

TOKEN_BYTES = 3  # packed location, feature, value
FORAGE_FEATURES = 20  # number of features in the forage scenario
VIBE_PREFIX = "change_vibe_"
FORAGE_ACTIONS = ("noop", "move_north", "move_south", "move_west", "move_east")
SEED_SHIFT = np.uint64(33)  # the core takes 31 bits


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


class MettaGridEnvs:
    """N simulations of one scenario."""

    def __init__(self, num_envs: int, mapping: Mapping[str, Any], buffers: Buffers | None = None) -> None:
        self.options = parse_mettagrid_options(mapping)
        self._scenario = Scenario(self.options)
        self.spec = self._scenario.spec
        self.num_envs = num_envs
        self.buffers = Buffers.allocate(self.spec, num_envs) if buffers is None else buffers
        agents = self.spec.num_agents
        # The core takes indices into the config's whole list of actions. If the policy's actions come first in it, and there
        # is no second choice, they are these indices, and the core reads them in place.
        self._ids = self._scenario.action_ids
        self._in_place = self._scenario.vibe_ids is None and bool((self._ids == np.arange(len(self._ids))).all())
        self._action = self.buffers.action if self._in_place else np.zeros((num_envs, agents), np.int32)
        self._choices = np.array(self.spec.action.sizes, np.uint32)
        self._vibe = np.zeros((num_envs, agents), np.int32)
        self._random = np.zeros(num_envs, np.uint64)
        self.cores: list[Any] = [None] * num_envs
        self._steps: list[Any] = [None] * num_envs
        self._tracker = EpisodeTracker(num_envs, agents)
        self._progress = np.zeros(1, np.int64)

    def watch(self, progress: npt.NDArray[np.int64]) -> None:
        """Write the env that is being stepped or reset to `progress[0]`, so that the error of a crash can name it."""
        self._progress = progress

    def reset(self, seeds: npt.NDArray[np.uint64]) -> None:
        self._random[:] = check_seeds(seeds, self.num_envs)
        self._tracker.reset()
        self.buffers.alive[:] = True
        for env in range(self.num_envs):
            self._begin(env)

    def step(self, first: int, last: int) -> None:
        terminated, truncated = self.buffers.terminated[first:last], self.buffers.truncated[first:last]
        self._convert_actions(first, last)
        terminated[:] = False
        truncated[:] = False
        for env, step in enumerate(self._steps[first:last], first):
            self._progress[0] = env
            step()
        if self._scenario.end_stats:
            self._end_by_stats(first, last)
        if np.count_nonzero(terminated) or np.count_nonzero(truncated):
            for env in (first + np.flatnonzero(terminated.all(1) | truncated.all(1))).tolist():
                self._end(env)

    def _convert_actions(self, first: int, last: int) -> None:
        """Convert actions to the core's. The core ignores an invalid action; here it is an error."""
        actions = self.buffers.action[first:last]
        # As unsigned numbers, so that one comparison finds negative ones too.
        wrong = actions.view(np.uint32) >= self._choices
        if np.count_nonzero(wrong):
            env = first + int(np.argwhere(wrong)[0, 0])
            raise EnvError(
                f"env 'mettagrid': env {env} was given the actions {self.buffers.action[env].tolist()}, but they must "
                f"be at least 0 and below {self._choices.tolist()}"
            )
        if self._in_place:
            return
        choices = actions if actions.ndim == 3 else actions[..., None]
        self._action[first:last] = self._ids[choices[..., 0]]
        if self._scenario.vibe_ids is not None:
            self._vibe[first:last] = self._scenario.vibe_ids[choices[..., 1]]

    def _end_by_stats(self, first: int, last: int) -> None:
        """Truncate episodes in which a game statistic has reached the threshold of the config, as MettaGrid does."""
        for env in range(first, last):
            for name, threshold in self._scenario.end_stats.items():
                value = self.cores[env].get_game_stat(name)
                if value is not None and value >= threshold:
                    self.buffers.truncated[env] = True

    def _begin(self, env: int) -> None:
        """Start a new simulation; the core clears rewards and flags and writes the first observation."""
        self._progress[0] = env
        stream = self._random[env : env + 1]
        map_seed, core_seed = (int(draw(stream)[0] >> SEED_SHIFT) for _ in range(2))
        core = self._scenario.new_core(map_seed, core_seed)
        buffers = self.buffers
        core.set_buffers(
            buffers.observation[env],
            buffers.terminated[env],
            buffers.truncated[env],
            buffers.reward[env],
            self._action[env],
            self._vibe[env],
        )
        self.cores[env], self._steps[env] = core, core.step

    def _end(self, env: int) -> None:
        buffers = self.buffers
        buffers.final_observation[env] = buffers.observation[env]
        core = self.cores[env]  # it counts returns and lengths itself
        info = agent_means(core.get_episode_stats())
        self._tracker.add_ended(env, core.get_episode_rewards(), int(core.current_step), info)
        saved = [(array, array[env].copy()) for array in (buffers.reward, buffers.terminated, buffers.truncated)]
        self._begin(env)
        for array, values in saved:
            array[env] = values

    def episodes(self) -> list[EpisodeStats]:
        return self._tracker.pop_ended()

    def save_state(self) -> dict[str, npt.NDArray[Any]]:
        raise EnvError("the state of env 'mettagrid' cannot be saved: its core does not export it; see spec.savable")

    def load_state(self, state: dict[str, npt.NDArray[Any]]) -> None:
        raise EnvError("the state of env 'mettagrid' cannot be restored: its core does not import it; see spec.savable")

    def render_rgb(self, env: int) -> npt.NDArray[np.uint8]:
        """Draw the map, 8 pixels per cell, one colour per kind of object."""
        core = self.cores[env]
        image = np.full((core.map_height, core.map_width, 3), 24, np.uint8)
        kinds = {name: index for index, name in enumerate(core.object_type_names)}
        for thing in core.grid_objects().values():
            column, row = thing["location"][:2]
            hue = 2 * np.pi * kinds[thing["type_name"]] / max(1, len(kinds))
            image[row, column] = 150 + 100 * np.cos(hue - np.array([0.0, 2.1, 4.2]))
        return image.repeat(8, 0).repeat(8, 1)

    def close(self) -> None:
        self.cores, self._steps = [], []


def agent_means(stats: Mapping[str, Any]) -> dict[str, float]:
    """Average the agents' statistics of an episode over agents; a missing one counts as 0."""
    agents = stats["agent"]
    names = sorted({name for agent in agents for name in agent})
    return {name: float(sum(agent.get(name, 0.0) for agent in agents) / len(agents)) for name in names}
