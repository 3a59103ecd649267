"""Sections that every recipe has: how long to train, what to keep, what to log, when to evaluate."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from millpond.config.base import Count, Natural, Positive, Section, Switch


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
