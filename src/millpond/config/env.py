"""The sections `env` and `vector`: the environment with its settings, and how its envs are stepped."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from millpond.config.base import ConfigSection, Count, Few, Fraction, Natural, Positive, Real, Switch
from millpond.envs.env_batch import Aggregate


class GridConfig(ConfigSection):
    """The built-in foraging environment: mines give ore, generators turn ore into batteries, altars batteries into hearts."""

    width: Count = Field(24, ge=3, le=1_000, description="Width of the map in cells, without the border.")
    height: Count = Field(24, ge=3, le=1_000, description="Height of the map in cells, without the border.")
    walls: Natural = Field(40, le=10**6, description="Single wall cells placed at random.")
    mines: Count = Field(16, le=10**6, description="Mines: moving into one takes one ore.")
    generators: Count = Field(10, le=10**6, description="Generators: moving into one turns one ore into one battery.")
    altars: Count = Field(10, le=10**6, description="Altars: moving into one turns one battery into one heart.")
    altar_cooldown: Natural = Field(10, description="Steps until an altar that gave a heart works again.")
    capacity: Count = Field(3, le=255, description="Ores, and batteries, that an agent can carry at a time.")
    reward_ore: Real = Field(0.1, description="Reward for taking one ore.")
    reward_battery: Real = Field(0.2, description="Reward for making one battery.")
    reward_heart: Real = Field(1.0, description="Reward for making one heart.")


class RecallConfig(ConfigSection):
    """A cue is shown once and has to be named later, so that only a policy with memory solves it."""

    cues: Count = Field(
        4, ge=2, le=255, description="Number of cues; a random guess is right with probability 1 / cues."
    )
    min_delay: Count = Field(8, le=10**6, description="Minimum steps between the cue and the question.")
    max_delay: Count = Field(32, le=10**6, description="Maximum steps between the cue and the question.")


class AtariConfig(ConfigSection):
    """Preprocessing of the Atari emulator. Every choice is explicit."""

    screen_size: Few = Field(84, description="Side of the square image, in pixels.")
    grayscale: Switch = Field(True, description="One grey channel instead of three colour channels.")
    frame_skip: Count = Field(4, description="Emulator frames per env step; `frames` = env steps x this.")
    maxpool: Switch = Field(
        True, description="Take the maximum over the last two frames of a skip, which removes flicker."
    )
    noop_max: Natural = Field(
        30, description="Maximum number of no-ops at the start of an episode; the number is random."
    )
    repeat_action_probability: Fraction = Field(
        0.25, lt=1, description="Sticky actions: probability that the previous action is repeated."
    )
    episodic_life: Switch = Field(False, description="A lost life terminates the episode for the learner.")
    fire_reset: Switch = Field(False, description="Press FIRE at the start of an episode in games that wait for it.")
    full_action_space: Switch = Field(False, description="All 18 actions instead of the minimal set of the game.")
    num_threads: Natural = Field(0, le=4_096, description="Threads of the emulator; 0: one per core.")


class MettaConfig(ConfigSection):
    """The real MettaGrid (extra `metta`), driven through its C++ core."""

    config: str | None = Field(
        None,
        description="A MettaGridConfig as a YAML file or as `package.module:function`; null: the forage map.",
    )
    num_tokens: Few = Field(200, description="Tokens per observation, three bytes each; unused ones are padding.")
    size: Count = Field(15, ge=5, description="Side of the forage map in cells.")


class MinAtarConfig(ConfigSection):
    """MinAtar: ten by ten cells, one channel per type of object."""

    sticky_action_probability: Fraction = Field(
        0.1, lt=1, description="Probability that the previous action is repeated."
    )
    difficulty_ramping: Switch = Field(True, description="Let games become harder over time, where they can.")
    minimal_actions: Switch = Field(True, description="Only the actions that have an effect in the game.")


class EnvConfig(ConfigSection):
    """The environment that experience comes from."""

    id: str = Field(
        "grid",
        min_length=1,
        description="grid, recall, truncation, mettagrid, gymnasium:ID, pettingzoo:MODULE, atari:GAME, minatar:GAME, "
        "or a custom one as `package.module:make_env`.",
    )
    num_agents: Few = Field(
        1,
        description="Agents per env. They act together, each with its own observation. If not set, PettingZoo and custom "
        "environments are asked when a run is built.",
    )
    obs_size: Count = Field(
        11, le=255, description="Side of the square that an agent sees around itself, in cells; odd."
    )
    max_steps: Count | None = Field(
        None, description="Env steps after which an episode is truncated; null: decided by the environment."
    )
    stagger: Switch = Field(
        False, description="Start the first episodes at different points, so that not all envs end at once."
    )
    episodic: Switch = Field(
        False,
        description="Pay the whole return at the end of an episode and nothing before: the hard case of credit assignment.",
    )
    frame_stack: Few = Field(1, description="Frames per observation; each is stored once and stacked when sampled.")
    reward_scale: Real = Field(1.0, description="Factor on every reward.")
    reward_clip: Positive | None = Field(None, description="Rewards are clipped to [-this, this]; null: never.")
    clip_actions: Switch = Field(
        False,
        description="The env clips continuous actions to its action space; for gymnasium, pettingzoo and custom environments.",
    )
    info: Aggregate = Field(
        "auto",
        description="How a number that an env reports in its infos at several steps becomes one per episode: auto is last "
        "for booleans and outcomes such as is_success, else mean; for gymnasium, pettingzoo and custom environments.",
    )
    grid: GridConfig = Field(default_factory=GridConfig, description="Settings of the environment `grid`.")
    recall: RecallConfig = Field(default_factory=RecallConfig, description="Settings of the environment `recall`.")
    atari: AtariConfig = Field(default_factory=AtariConfig, description="Settings of `atari:GAME`.")
    mettagrid: MettaConfig = Field(default_factory=MettaConfig, description="Settings of `mettagrid`.")
    minatar: MinAtarConfig = Field(default_factory=MinAtarConfig, description="Settings of `minatar:GAME`.")
    options: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments for gymnasium, pettingzoo and custom environments."
    )


class VectorConfig(ConfigSection):
    """The vector of envs: how envs are stepped in parallel."""

    backend: Literal["auto", "inline", "threads", "processes", "native"] = Field(
        "auto", description="auto chooses by environment and machine, and logs why; any other value is used unchanged."
    )
    threads: Count | None = Field(None, description="Threads of the backend `threads`; null: one per core.")
    trainer_share: Fraction = Field(
        0.0,
        lt=1,
        description="Fraction of each group's envs that the trainer steps itself, next to worker processes.",
    )
    timeout: Positive = Field(60.0, description="Seconds after which a worker that does not answer is considered hung.")
    on_crash: Literal["stop", "restart"] = Field(
        "stop",
        description="stop ends the run with the worker's traceback; restart resets its envs and counts the restart.",
    )
