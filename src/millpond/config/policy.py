"""The `policy` section: encoder, core and heads."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from millpond.config.base import Few, Section, Switch


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
