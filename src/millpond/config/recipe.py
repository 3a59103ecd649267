"""The recipe of every kind: the sections that all kinds share, and their building blocks.

Sections are frozen models that refuse unknown keys; numbers may be written as people write them. `ppo`, `mixture` and `reward`
add the sections of their kind.
"""

from __future__ import annotations

import math
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from millpond.envs.env_batch import Aggregate

# Larger than any number of steps or bytes of a run. Without a bound, 1e999999999 would be expanded to a billion digits.
LARGEST_POWER = 18


class ConfigSection(BaseModel):
    """A frozen section of a config. Unknown keys are refused; every field has a description."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


def _decimal(value: Any) -> Decimal | None:
    """Parse a finite number as people write it in configs: 524288, 524_288, 1e6, 1_000.5. None if it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = Decimal(str(value).strip())  # Decimal accepts underscores between digits, as Python does
    except InvalidOperation:
        return None
    if not number.is_finite():
        return None
    if number.adjusted() > LARGEST_POWER:
        raise ValueError(f"must be below 10^{LARGEST_POWER + 1}")
    return number


class NotWholeError(ValueError):
    """A number between two integers, which are in `around`."""

    def __init__(self, below: int) -> None:
        super().__init__("must be a whole number")
        self.around = (below, below + 1)


def whole_number(value: Any) -> int:
    """Parse an integer, also if written as 524_288 or 1e6. Refuse 1.5 and `true`."""
    if value is None:
        raise ValueError("must be a whole number, not null")
    number = _decimal(value)
    if number is None:
        raise ValueError("must be a whole number, such as 4096, 4_096 or 1e6")
    if number != number.to_integral_value():
        raise NotWholeError(math.floor(number))
    return int(number)


def real_number(value: Any) -> float:
    """Parse a finite number. Refuse `nan`, `inf` and `true`."""
    if value is None:
        raise ValueError("must be a number, not null")
    number = _decimal(value)
    if number is None:
        raise ValueError("must be a finite number, such as 0.1, 1e-4 or 5")
    return float(number)


def as_choice(true: str, false: str) -> BeforeValidator:
    """Accept `true` and `false` for a setting with more than two values."""
    return BeforeValidator(lambda value: (true if value else false) if isinstance(value, bool) else value)


Whole = Annotated[int, BeforeValidator(whole_number)]
Real = Annotated[float, BeforeValidator(real_number)]
Count = Annotated[Whole, Field(ge=1)]  # at least one
Size = Annotated[Whole, Field(ge=1, le=10**12)]  # of a batch or buffer; more than any memory holds
Few = Annotated[Whole, Field(ge=1, le=10**6)]  # agents, workers, steps of a row
Natural = Annotated[Whole, Field(ge=0)]
Positive = Annotated[Real, Field(gt=0)]
NonNegative = Annotated[Real, Field(ge=0)]
Fraction = Annotated[Real, Field(ge=0, le=1)]
Switch = Annotated[bool, Field(strict=True)]  # true or false, not `yes` or 1


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
        "auto",
        description="auto takes what is fastest: it measures the environment and the policy when a run starts, logs what "
        "it chose, and keeps it on resume; any other value is used unchanged. A crash (such as a segmentation fault) of an "
        "env in `threads` cannot be caught and ends the run; auto uses threads for Millpond's own environments only.",
    )
    threads: Count | None = Field(None, description="Threads of the backend `threads`; null: one per core.")
    trainer_share: Fraction | None = Field(
        None,
        lt=1,
        description="Fraction of each group's envs that the trainer steps itself, next to worker processes; null: with backend "
        "`auto` as measured (none if on_crash is restart, as a crash of these envs ends the trainer), else none.",
    )
    timeout: Positive = Field(60.0, description="Seconds after which a worker that does not answer is considered hung.")
    on_crash: Literal["stop", "restart"] = Field(
        "stop",
        description="stop ends the run with the worker's traceback; restart resets its envs and counts the restart.",
    )


class TrainerConfig(ConfigSection):
    """Length of a run, and how it computes.

    The outermost level is a PPO iteration, a mixture round, or an epoch of reward learning.
    """

    total_iterations: Count | None = Field(None, description="Maximum number of the outermost level; null: no limit.")
    max_seconds: Positive | None = Field(
        None,
        description="Stop with a checkpoint before this many seconds have passed since the run was started or resumed.",
    )
    fast: Switch = Field(
        True,
        description="Act and train with compiled code on the CPU; false: plain PyTorch, with the same results to 1e-5 in "
        "float32. MILLPOND_FAST=0 in the environment switches it off, too.",
    )


class CheckpointConfig(ConfigSection):
    """Which checkpoints are written and kept. The end of training always writes one."""

    interval: Count | None = Field(
        None, description="Save every this many of the outermost level (iteration, round, epoch)."
    )
    keep_last: Count | None = Field(
        5, description="Number of newest checkpoints to keep, besides the best; null: all, the default of mixtures."
    )
    keep_every: Count | None = Field(None, description="Of the older ones, keep one in this many; null: none.")


class EvalConfig(ConfigSection):
    """Evaluation, on seeds of its own."""

    interval: Count | None = Field(
        None, description="Evaluate every this many of the outermost level; null: only at the end."
    )
    episodes: Count = Field(20, description="Episodes per evaluation.")
    seed: Natural = Field(1_000_003, description="First seed of the evaluation's envs.")
    deterministic: Switch | None = Field(
        None,
        description="Take the most likely action (true) or sample it (false); null: as the recipe acts when it trains, so PPO "
        "samples, and Q-learners and SAC take their best action.",
    )


class LogConfig(ConfigSection):
    """Logging. `metrics.jsonl` is always written."""

    tensorboard: Switch = Field(True, description="Write TensorBoard event files into the run folder.")
    wandb: Annotated[Literal["off", "offline", "online"], as_choice("online", "off")] = Field(
        "off", description="Weights & Biases (extra `wandb`); true is online, false is off."
    )
    wandb_project: str = Field("millpond", description="Project name at Weights & Biases.")
    trackio: Switch = Field(
        False,
        description="Write to trackio's database on this machine (extra `trackio`), or to where its variables say.",
    )
    trackio_project: str = Field("millpond", description="Project name in trackio.")
    videos: Switch = Field(
        False,
        description="Play one more episode after each evaluation, write it to the run's folder `videos`, and send it to "
        "TensorBoard, Weights & Biases and trackio, where they are on.",
    )
    axis: Literal["auto", "updates", "agent_steps", "env_steps", "frames"] = Field(
        "auto", description="X-axis of curves: auto is agent steps online and updates offline."
    )
    console_seconds: Positive = Field(10.0, description="Seconds between log lines when there is no terminal.")
    verbose: Switch = Field(
        False, description="Log lines with every metric instead of a live display or short lines; --verbose sets it."
    )


class PolicyConfig(ConfigSection):
    """The network that acts: encoder -> core -> heads."""

    encoder: Literal["auto", "grid", "tokens", "pixels", "vector"] = Field(
        "auto", description="How observations are encoded; auto chooses by the type of the observations."
    )
    core: Literal["lstm", "gru", "mingru", "none"] = Field(
        "lstm", description="Memory: an LSTM, GRU or MinGRU unrolled over each row, or none."
    )
    num_layers: Few = Field(1, description="Layers of a MinGRU; the other cores have one.")
    hidden_size: Few = Field(128, description="Width of the encoder's output and of the core.")
    normalize_observations: Switch = Field(
        False,
        description="Normalise observations by their running mean and deviation, which are saved with the policy.",
    )
    separate_critic: Switch = Field(
        False,
        description="The value has its own encoder and core, of the same sizes; false: it shares those of the actions.",
    )
    target: str | None = Field(None, description="A custom policy, as `package.module:build_policy`.")


class Recipe(ConfigSection):
    """Keys that every kind of recipe has; each kind adds its own sections."""

    description: str = Field("", description="One line about the purpose of the recipe.")
    expect: str = Field("", description="A result of the recipe as it was measured, for `millpond recipes`.")
    left_out: list[str] = Field(
        default_factory=list,
        description="What the system that a recipe follows has and this one does not, for the plan.",
    )
    seed: Natural = Field(1, description="Seed from which every random generator of the run is derived.")
    device: str = Field(
        "cpu",
        pattern=r"^(cpu|mps|cuda(:\d+)?|emulated)$",
        description="cpu, cuda, cuda:N or mps; used unchanged, never guessed. emulated: no GPU, but what one would do, slowly.",
    )
    run_dir: str = Field("runs", min_length=1, description="Folder in which run folders are created.")
    env: EnvConfig = Field(default_factory=EnvConfig, description="The environment.")
    vector: VectorConfig = Field(default_factory=VectorConfig, description="How envs are stepped in parallel.")
    policy: PolicyConfig = Field(default_factory=PolicyConfig, description="The network.")
    checkpoint: CheckpointConfig = Field(
        default_factory=CheckpointConfig, description="Which checkpoints are saved and kept."
    )
    eval: EvalConfig = Field(default_factory=EvalConfig, description="Evaluation.")
    log: LogConfig = Field(default_factory=LogConfig, description="Logging.")
    presets: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="Named sets of overrides for `--preset NAME`. `debug` always exists: one of every level, in seconds.",
    )
    kind: str = Field(description="Kind of recipe.")
    trainer: TrainerConfig = Field(default_factory=TrainerConfig, description="Length of the run.")

    @property
    def acts(self) -> bool:
        """True if the run steps environments; False if it learns from recorded episodes alone."""
        return True

    @property
    def learns_from(self) -> str:
        """Id of the environment, or path of the recorded episodes."""
        return self.env.id
