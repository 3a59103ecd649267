"""The `env` section: which environment, how many agents, and each environment's own settings. Nothing is changed in silence."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from millpond.config.base import Count, Few, Fraction, Natural, Positive, Real, Section, Switch
from millpond.envs.episodes import Aggregate


class GridConfig(Section):
    """The built-in foraging environment: mines give ore, generators turn ore into batteries, altars batteries into hearts."""

    width: Count = Field(24, ge=3, le=1_000, description="Width of the map in cells, without the border.")
    height: Count = Field(24, ge=3, le=1_000, description="Height of the map in cells, without the border.")
    walls: Natural = Field(40, le=10**6, description="Single wall cells strewn over the map.")
    mines: Count = Field(16, le=10**6, description="Mines: moving into one takes one ore.")
    generators: Count = Field(10, le=10**6, description="Generators: moving into one turns one ore into one battery.")
    altars: Count = Field(10, le=10**6, description="Altars: moving into one turns one battery into one heart.")
    altar_cooldown: Natural = Field(10, description="Steps until an altar that has given a heart works again.")
    capacity: Count = Field(3, le=255, description="Ores, and batteries, that an agent can carry at a time.")
    reward_ore: Real = Field(0.1, description="Reward for taking one ore.")
    reward_battery: Real = Field(0.2, description="Reward for making one battery.")
    reward_heart: Real = Field(1.0, description="Reward for making one heart.")


class RecallConfig(Section):
    """A cue is shown once and asked for later: only memory solves it."""

    cues: Count = Field(4, ge=2, le=255, description="Cues there are; who guesses is right one time in as many.")
    min_delay: Count = Field(8, le=10**6, description="Steps between the cue and the question, at least.")
    max_delay: Count = Field(32, le=10**6, description="Steps between the cue and the question, at most.")


class AtariConfig(Section):
    """Preprocessing of the Atari emulator; every choice is explicit and none is on by surprise."""

    screen_size: Few = Field(84, description="Side of the square image, in pixels.")
    grayscale: Switch = Field(True, description="One channel of brightness instead of three of colour.")
    frame_skip: Count = Field(4, description="Emulator frames for one env step; `frames` = env steps x this.")
    maxpool: Switch = Field(True, description="Take the maximum of the last two frames of a skip, against flicker.")
    noop_max: Natural = Field(30, description="At most this many no-ops, drawn at random, begin an episode.")
    repeat_action_probability: Fraction = Field(0.25, lt=1, description="Sticky actions: the one before is repeated.")
    episodic_life: Switch = Field(False, description="A lost life terminates the episode for the learner.")
    fire_reset: Switch = Field(False, description="Press FIRE at the start of an episode, in games that wait for it.")
    full_action_space: Switch = Field(False, description="All 18 actions instead of the game's own set.")
    num_threads: Natural = Field(0, le=4_096, description="Threads of the emulator; 0 is one a core.")


class MettaConfig(Section):
    """The real MettaGrid (extra `metta`), driven through its C++ core."""

    config: str | None = Field(
        None,
        description="A MettaGridConfig as YAML file or dotted path `package.module:function`; null: the forage map.",
    )
    num_tokens: Few = Field(200, description="Tokens in an observation, three bytes each; unused ones are padding.")
    size: Count = Field(15, ge=5, description="Side of the forage map in cells.")


class MinAtarConfig(Section):
    """MinAtar: ten by ten cells, one channel for each kind of object."""

    sticky_action_probability: Fraction = Field(0.1, lt=1, description="The action before is repeated.")
    difficulty_ramping: Switch = Field(True, description="Games that grow harder with time do so.")
    minimal_actions: Switch = Field(True, description="Only actions that do something in the game.")


class EnvConfig(Section):
    """The environment that experience comes from."""

    id: str = Field(
        "grid",
        min_length=1,
        description="grid, recall, truncation, mettagrid, gymnasium:ID, pettingzoo:MODULE, atari:GAME, minatar:GAME, "
        "or your own as `package.module:make_env`.",
    )
    num_agents: Few = Field(
        1,
        description="Agents in one env. They act together, each with its own observation. Where it is not set, PettingZoo "
        "environments and your own are asked when a run is built.",
    )
    obs_size: Count = Field(11, le=255, description="Side of the square that an agent sees around itself; odd.")
    max_steps: Count | None = Field(
        None, description="Env steps after which an episode is truncated; null leaves it to the environment."
    )
    stagger: Switch = Field(
        False, description="Spread the starting points of the first episodes, so that not all envs end at once."
    )
    episodic: Switch = Field(
        False,
        description="Give the whole return at the end of an episode and nothing before: the hard case for credit.",
    )
    frame_stack: Few = Field(1, description="Frames that make one observation; stored once, stacked when sampled.")
    reward_scale: Real = Field(1.0, description="Every reward is multiplied by this.")
    reward_clip: Positive | None = Field(
        None, description="Rewards are clipped to this size on both sides; null: never."
    )
    clip_actions: Switch = Field(
        False, description="The env clips numbers to its action space; gymnasium, pettingzoo and your own environments."
    )
    info: Aggregate = Field(
        "auto",
        description="How a number that an env reports in its infos at several steps becomes one per episode: auto is last "
        "for booleans and outcomes such as is_success, else mean; gymnasium, pettingzoo and your own environments.",
    )
    grid: GridConfig = Field(default_factory=GridConfig, description="Settings of the environment `grid`.")
    recall: RecallConfig = Field(default_factory=RecallConfig, description="Settings of the environment `recall`.")
    atari: AtariConfig = Field(default_factory=AtariConfig, description="Settings of `atari:GAME`.")
    mettagrid: MettaConfig = Field(default_factory=MettaConfig, description="Settings of `mettagrid`.")
    minatar: MinAtarConfig = Field(default_factory=MinAtarConfig, description="Settings of `minatar:GAME`.")
    options: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments for gymnasium, pettingzoo and your own environments."
    )


class VectorConfig(Section):
    """How envs are stepped side by side."""

    backend: Literal["auto", "inline", "threads", "processes", "native"] = Field(
        "auto", description="auto picks by environment and machine and says why; the others are taken as they are."
    )
    threads: Count | None = Field(None, description="Threads of the backend `threads`; null is one a core.")
    trainer_share: Fraction = Field(
        0.0,
        lt=1,
        description="Share of each group's envs that the trainer steps itself, beside workers of the backend `processes`.",
    )
    timeout: Positive = Field(60.0, description="Seconds after which a worker that does not answer counts as hanging.")
    on_crash: Literal["stop", "restart"] = Field(
        "stop", description="stop ends the run with the worker's traceback; restart begins its envs afresh and counts."
    )
