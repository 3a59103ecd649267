"""Sections of kind `reward`: learning a per-step reward from recorded episodes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from millpond.config.base import Count, Fraction, Natural, Positive, Section, Size, Switch


class DataConfig(Section):
    """Recorded episodes."""

    path: str = Field(
        "pendulum",
        min_length=1,
        description="A file or folder of episodes (HDF5, npz, a lake), or `pendulum`, `lift`, `handover`, "
        "which are in the package.",
    )
    observation_keys: tuple[str, ...] = Field((), description="Fields of an observation to use; none: all vectors.")
    images: Switch = Field(False, description="Use image fields too, through a CNN.")
    drop_columns: tuple[str, ...] = Field(
        (), description="Columns to leave out of the vectors, as FIELD:COLUMN, such as states:0 (a clock)."
    )
    memory_bytes: Natural = Field(
        1 << 30, description="Frames that fit into so many bytes are held in memory; others are read as they are drawn."
    )
    holdout: Fraction = Field(0.2, lt=1, description="Share of the episodes kept for evaluation, split by episode.")
    held_out: tuple[Natural, ...] = Field(
        (), description="Numbers of the episodes to keep for evaluation, instead of a share drawn by the seed."
    )
    expected_episodes: Count | None = Field(
        None,
        description="Episodes at data.path: checked when it is read, and planned with where it is not on this machine. "
        "Setting another data.path clears it.",
    )
    expected_steps: Count | None = Field(None, description="Steps at data.path; likewise.")


class RewardConfig(Section):
    """The hierarchy epoch > cycle > iteration > batch, and the objective that each batch trains."""

    epochs: Count = Field(3, description="Outermost level: a summary, test rollouts, perhaps a checkpoint at its end.")
    cycles: Count = Field(100, description="Cycles in an epoch: each ends with a table and one TensorBoard point.")
    iterations: Count = Field(100, description="Iterations in a cycle: each ends with its average printed.")
    train_batches: Count = Field(50, description="Batches in an iteration: each is one gradient update.")
    save_freq: Count | None = Field(
        None, description="Checkpoint every so many epochs; takes the place of checkpoint.interval."
    )
    log_batches: Count = Field(100, description="A line with the newest R_loss every so many batches.")
    train_target: Count = Field(40, description="Updates between copies into the target networks.")
    reward_only: Switch = Field(True, description="true: learn the reward alone, offline. false: an agent learns too.")
    objective: Literal["lrd", "rrd", "progress", "success"] = Field(
        "lrd",
        description="lrd, rrd: return decomposition (unbiased, plain). progress: order in time and preferences, "
        "for data whose returns say nothing. success: a classifier.",
    )
    episodes_per_batch: Size = Field(4, description="Episodes in a batch.")
    steps_per_episode: Size = Field(64, ge=2, description="Steps drawn from each of them (K).")
    negatives: str | None = Field(
        None, description="progress: a file or folder with episodes of another task and the same observations."
    )
    input_noise: Fraction = Field(
        0.3,
        description="progress, success: noise on normalised observations, in deviations, against few demonstrations.",
    )
    learning_rate: Positive = Field(3e-4, description="Learning rate of Adam.")
    hidden_size: Count = Field(256, description="Width of the reward network's two layers.")
    normalize: Switch = Field(
        True, description="Normalise observations: exact statistics offline, running ones online."
    )
    normalize_clip: Positive = Field(5.0, description="Normalised observations are clipped to this on both sides.")


class AgentConfig(Section):
    """The agent that learns from predicted rewards in full mode."""

    algorithm: Literal["auto", "sac", "dqn"] = Field("auto", description="auto: sac for continuous actions, else dqn.")
    learn_from: Literal["predicted", "world"] = Field(
        "predicted",
        description="predicted: rewards of the reward network. world: the env's own rewards, to compare.",
    )
    num_envs: Count = Field(1, description="Envs the agent acts in.")
    batch_size: Size = Field(256, description="Transitions of one gradient step.")
    replay_transitions: Size = Field(100_000, description="Transitions in the pond.")
    steps_per_iteration: Count = Field(50, description="Env steps of each env taken in one iteration.")
    warmup_steps: Natural = Field(1_000, description="Env steps by a random player before learning begins.")
    gamma: Fraction = Field(0.99, description="Fraction of future rewards.")
    learning_rate: Positive = Field(3e-4, description="Learning rate of actor and critics.")
    target_tau: Fraction = Field(0.005, description="Share of the online network at each update of a target.")
    test_episodes: Count = Field(5, description="Test rollouts at the end of each cycle.")
