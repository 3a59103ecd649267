"""Section `reward_model` of kind `ppo`, and the rules of a reward that is learned beside the policy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from millpond.config.recipe import ConfigSection, Count, Positive, Size, Switch
from millpond.config.rules import Values, Violation

ONLINE = "online"


class RewardModelConfig(ConfigSection):
    """Return decomposition beside PPO, with ppo.reward_model=online: docs/rewards.md."""

    objective: Literal["lrd", "rrd"] = Field(
        "lrd", description="Loss of return decomposition: without bias (lrd), or that of the paper (rrd)."
    )
    records: Size = Field(
        100_000,
        description="Capacity of the store of finished episodes; one of T steps takes T + 1. The oldest make room.",
    )
    min_episodes: Count = Field(
        20, description="Finished episodes from which on the reward is learned; until then the env's own rewards count."
    )
    updates: Count = Field(100, description="Gradient updates of the reward network per iteration.")
    episodes_per_batch: Size = Field(16, description="Episodes per batch.")
    steps_per_episode: Size = Field(64, ge=2, description="Steps sampled from each episode (K).")
    learning_rate: Positive = Field(1e-3, description="Learning rate of Adam.")
    hidden_size: Count = Field(128, description="Width of the two layers of the reward network.")
    normalize: Switch = Field(True, description="Normalise observations by running statistics.")
    normalize_clip: Positive = Field(5.0, description="Normalised observations are clipped to [-this, this].")


def reward_model_rules(values: Values) -> Iterator[Violation]:
    """Refuse what a learned reward cannot be combined with."""
    model = values["ppo.reward_model"]
    if model is None:
        return
    if values["ppo.reward_centering"] is not None:
        yield Violation(
            ("ppo.reward_model", "ppo.reward_centering"),
            f"ppo.reward_centering={values['ppo.reward_centering']:g} subtracts the mean of the env's rewards, and "
            f"ppo.reward_model={model} replaces these",
            ({"ppo.reward_centering": None, "ppo.gamma": 0.99}, {"ppo.reward_model": None}),
        )
