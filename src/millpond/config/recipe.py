"""Sections of every kind of recipe: network, length of training, checkpoints, evaluation, logging."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from millpond.config.base import ConfigSection, Count, Few, Natural, Positive, Switch
from millpond.config.env import EnvConfig, VectorConfig


def _switch(value: Any) -> Any:
    """Accept `true` and `false` for a setting with more than two values."""
    return {True: "online", False: "off"}[value] if isinstance(value, bool) else value


class TrainerConfig(ConfigSection):
    """Length of a run. The outermost level is a PPO iteration, a mixture round, or an epoch of reward learning."""

    total_iterations: Count | None = Field(None, description="Maximum number of the outermost level; null: no limit.")
    max_seconds: Positive | None = Field(
        None,
        description="Stop with a checkpoint before this many seconds have passed since the run was started or resumed.",
    )


class CheckpointConfig(ConfigSection):
    """Which checkpoints are written and kept. The end of training always writes one."""

    interval: Count | None = Field(
        None, description="Save every this many of the outermost level (iteration, round, epoch)."
    )
    keep_last: Count | None = Field(None, description="Number of newest checkpoints to keep; null: all.")
    keep_every: Count | None = Field(None, description="Of the older ones, keep one in this many; null: none.")


class EvalConfig(ConfigSection):
    """Evaluation, on seeds of its own."""

    interval: Count | None = Field(
        None, description="Evaluate every this many of the outermost level; null: only at the end."
    )
    episodes: Count = Field(20, description="Episodes per evaluation.")
    seed: Natural = Field(1_000_003, description="First seed of the evaluation's envs.")


class LogConfig(ConfigSection):
    """Logging. `metrics.jsonl` is always written."""

    tensorboard: Switch = Field(True, description="Write TensorBoard event files into the run folder.")
    wandb: Annotated[Literal["off", "offline", "online"], BeforeValidator(_switch)] = Field(
        "off", description="Weights & Biases (extra `wandb`); true is online, false is off."
    )
    wandb_project: str = Field("millpond", description="Project name at Weights & Biases.")
    axis: Literal["auto", "updates", "agent_steps", "env_steps", "frames"] = Field(
        "auto", description="X-axis of curves: auto is agent steps online and updates offline."
    )
    console_seconds: Positive = Field(10.0, description="Seconds between log lines when there is no terminal.")


class PolicyConfig(ConfigSection):
    """The network that acts: encoder -> core -> heads."""

    encoder: Literal["auto", "grid", "tokens", "pixels", "vector"] = Field(
        "auto", description="How observations are encoded; auto chooses by the type of the observations."
    )
    core: Literal["lstm", "gru", "none"] = Field(
        "lstm", description="Memory: an LSTM or GRU unrolled over each row, or none."
    )
    hidden_size: Few = Field(128, description="Width of the encoder's output and of the core.")
    normalize_observations: Switch = Field(
        False,
        description="Normalise observations by their running mean and deviation, which are saved with the policy.",
    )
    target: str | None = Field(None, description="A custom policy, as `package.module:build_policy`.")


class Recipe(ConfigSection):
    """Keys that every kind of recipe has; each kind adds its own sections."""

    description: str = Field("", description="One line about the purpose of the recipe.")
    seed: Natural = Field(1, description="Seed from which every random generator of the run is derived.")
    device: str = Field(
        "cpu",
        pattern=r"^(cpu|mps|cuda(:\d+)?)$",
        description="cpu, cuda, cuda:N or mps; used unchanged, never guessed.",
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
