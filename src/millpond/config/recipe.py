"""What every kind of recipe has: the network, how long to train, what to save, what to log, when to evaluate."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from millpond.config.base import Count, Few, Natural, Positive, Section, Switch
from millpond.config.env import EnvConfig, VectorConfig


def _switch(value: Any) -> Any:
    """`true` and `false` for a setting with more than two positions."""
    return {True: "online", False: "off"}[value] if isinstance(value, bool) else value


class TrainerConfig(Section):
    """How long a run goes on. The outermost level is a PPO iteration, a round of a mixture, or an epoch."""

    total_iterations: Count | None = Field(None, description="A cap on the outermost level; null: no cap.")
    max_seconds: Positive | None = Field(
        None,
        description="Stop, with a checkpoint, before this many seconds have passed since the run was started or resumed.",
    )


class CheckpointConfig(Section):
    """Which checkpoints are written and kept. The end of training always saves."""

    interval: Count | None = Field(
        None, description="Save every so many of the outermost level (iteration, round, epoch)."
    )
    keep_last: Count | None = Field(None, description="Keep the newest so many; null keeps all.")
    keep_every: Count | None = Field(None, description="Of the older ones, keep every so many; null keeps none.")


class EvalConfig(Section):
    """Evaluation on seeds of its own, apart from training."""

    interval: Count | None = Field(
        None, description="Evaluate every so many of the outermost level; null: only at the end."
    )
    episodes: Count = Field(20, description="Episodes in one evaluation.")
    seed: Natural = Field(1_000_003, description="First seed of the evaluation's own envs.")


class LogConfig(Section):
    """Where records go. `metrics.jsonl` is always written."""

    tensorboard: Switch = Field(True, description="Write TensorBoard event files into the run folder.")
    wandb: Annotated[Literal["off", "offline", "online"], BeforeValidator(_switch)] = Field(
        "off", description="Weights & Biases (extra `wandb`); true is online, false is off."
    )
    wandb_project: str = Field("millpond", description="Project name at Weights & Biases.")
    axis: Literal["auto", "updates", "agent_steps", "env_steps", "frames"] = Field(
        "auto", description="The x-axis of curves: auto is agent steps online and updates offline."
    )
    console_seconds: Positive = Field(10.0, description="Seconds between plain lines when there is no terminal.")


class PolicyConfig(Section):
    """The network that acts: encoder -> core -> heads."""

    encoder: Literal["auto", "grid", "tokens", "pixels", "vector"] = Field(
        "auto", description="How observations are read; auto takes what the environment's observations are."
    )
    core: Literal["lstm", "gru", "none"] = Field(
        "lstm", description="Memory: an LSTM or GRU unrolled over each row, or none."
    )
    hidden_size: Few = Field(128, description="Width of the encoder's output and of the core.")
    normalize_observations: Switch = Field(
        False, description="Running mean and deviation of observations, inside the policy and saved with it."
    )
    target: str | None = Field(None, description="A policy of your own, as `package.module:build_policy`.")


class Recipe(Section):
    """Keys that every kind of recipe has; each kind adds its own sections."""

    description: str = Field("", description="One line on what the recipe is for.")
    seed: Natural = Field(1, description="One seed; every generator of the run is spawned from it.")
    device: str = Field(
        "cpu",
        pattern=r"^(cpu|mps|cuda(:\d+)?)$",
        description="cpu, cuda, cuda:N or mps; taken as it is, never guessed.",
    )
    run_dir: str = Field("runs", min_length=1, description="Folder that run folders are made in.")
    env: EnvConfig = Field(default_factory=EnvConfig, description="The environment.")
    vector: VectorConfig = Field(default_factory=VectorConfig, description="How envs are stepped side by side.")
    policy: PolicyConfig = Field(default_factory=PolicyConfig, description="The network.")
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig, description="What is saved and kept.")
    eval: EvalConfig = Field(default_factory=EvalConfig, description="Evaluation.")
    log: LogConfig = Field(default_factory=LogConfig, description="Where records go.")
    presets: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="Named overlays: `--preset NAME` sets these keys. `debug` is always there: one of every level, in seconds.",
    )
    kind: str = Field(description="ppo, mixture or reward.")
    trainer: TrainerConfig = Field(default_factory=TrainerConfig, description="Length of the run.")

    @property
    def acts(self) -> bool:
        """True if the run steps environments; False if it learns from recorded episodes alone."""
        return True

    @property
    def learns_from(self) -> str:
        """Id of the environment, or path of the recorded episodes."""
        return self.env.id
