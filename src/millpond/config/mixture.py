"""Sections of kind `mixture`: four PQN agents, ponds, a lake, one BigAgent trained with DQN."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from millpond.config.base import Count, Few, Fraction, Natural, Positive, Real, Section, Size, Switch
from millpond.config.ppo import Schedule


class MixtureConfig(Section):
    """The rounds: agents collect and learn, the BigAgent learns from the lake, the agents are cloned from it."""

    mode: Literal["rounds", "live", "single", "single-resets", "no-resets"] = Field(
        "rounds",
        description="rounds: the algorithm. live: transitions reach an acting BigAgent as they come. Controls: single "
        "(one agent, same frames), single-resets (with the same resets), no-resets (agents go on uncloned).",
    )
    agents: Few = Field(4, description="PQN agents side by side; 1 in the modes single and single-resets.")
    total_frames: Count = Field(100_000_000, description="Frames of all agents together, the BigAgent's own included.")
    collections_per_round: Size = Field(500, description="PQN collections of each agent before a reset.")
    big_updates: Size = Field(100, description="Gradient steps of the BigAgent in each round.")
    pond_transitions: Size = Field(
        65_536,
        description="Room of one agent's pond, poured out when one more collection might not fit; twice one at least.",
    )
    big_pond_transitions: Size = Field(250_000, description="Transitions drawn from the lake into the BigPond.")
    own_fraction: Fraction = Field(
        0.0, lt=1, description="Mode live: share of the env steps that the BigAgent takes itself."
    )
    epsilon_reset_to: Fraction = Field(0.1, description="Exploration of the clones right after a reset.")
    big_epsilon_reset_to: Fraction = Field(0.1, description="Exploration of the BigAgent when its training begins.")
    recovery_checks: Natural = Field(
        3, description="Evaluations within a round until the agents are back at their level of before the reset."
    )
    epsilon_ladder: tuple[Fraction, ...] | None = Field(
        None, description="A reset value for each agent instead of epsilon_reset_to, such as [0.4, 0.1, 0.03, 0.01]."
    )


class PQNConfig(Section):
    """Parallelised Q-networks: lambda returns, no replay, no target network (arXiv 2407.04811)."""

    num_envs: Few = Field(128, description="Envs of one agent. Each agent keeps what a single agent would have.")
    num_steps: Few = Field(32, description="Steps of every env in one collection.")
    num_minibatches: Few = Field(32, description="Minibatches that one collection is cut into.")
    update_epochs: Few = Field(2, description="Passes over one collection.")
    gamma: Fraction = Field(0.99, description="Fraction of future rewards.")
    q_lambda: Fraction = Field(0.65, description="Mixes one-step targets (0) and whole returns (1).")
    learning_rate: Positive = Field(2.5e-4, description="Learning rate of RAdam at the start.")
    lr_schedule: Schedule = Field("constant", description="Learning rate over the run: constant, or down to 0.")
    max_grad_norm: Positive = Field(10.0, description="Gradients are scaled down to this global norm.")
    epsilon_start: Fraction = Field(1.0, description="Exploration at the start of the run.")
    epsilon_end: Fraction = Field(0.001, description="Exploration at the end of the decay.")
    epsilon_share: Fraction = Field(0.1, description="Share of an agent's frames over which exploration decays.")


class DQNConfig(Section):
    """Deep Q-learning from replay."""

    batch_size: Size = Field(32, description="Transitions of one gradient step.")
    gamma: Fraction = Field(0.99, description="Fraction of future rewards.")
    n_step: Few = Field(1, description="Rewards summed before the bootstrap.")
    double: Switch = Field(True, description="Choose the action with the online network, value it with the target.")
    loss: Literal["huber", "squared"] = Field("huber", description="Loss on the temporal difference.")
    learning_rate: Positive = Field(1e-4, description="Learning rate of Adam.")
    max_grad_norm: Positive = Field(10.0, description="Gradients are scaled down to this global norm.")
    target_tau: Fraction = Field(0.005, description="Soft target: share of the online network at each update; 0: hard.")
    target_interval: Count = Field(1_000, description="Hard target: updates between copies (where target_tau is 0).")
    replay_ratio: Positive | None = Field(
        None, description="Mode live: gradient steps for each env step; null: mixture.big_updates a round."
    )
    epsilon_end: Fraction = Field(0.01, description="Exploration at the end of the decay.")
    epsilon_over: Count = Field(10_000, description="Gradient steps over which exploration decays after a reset.")


class LakeConfig(Section):
    """The replay store on disk."""

    max_bytes: Count | None = Field(None, description="Drop whole oldest files beyond this; null: grow.")
    acknowledge_every: Count = Field(
        4_096, description="Env steps written and synced together, at most; a collection is whole appends."
    )
    expected_frame_bytes: Real | None = Field(
        None, gt=0, description="Stored bytes of one frame, for the plan; null: as measured for the game, or raw."
    )
