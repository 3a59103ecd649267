"""Kind `reward`: a reward for each step, learned from recorded episodes. Its sections, recipe and rules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from millpond.config.recipe import (
    ConfigSection,
    Count,
    Fraction,
    Natural,
    Positive,
    Recipe,
    Size,
    Switch,
    TrainerConfig,
)
from millpond.config.rules import Rule, Values, Violation


class DataConfig(ConfigSection):
    """Recorded episodes."""

    path: str = Field(
        "pendulum",
        min_length=1,
        description="A file or folder of episodes (HDF5, npz, a lake), or one of the packaged `pendulum`, `lift`, "
        "`handover`.",
    )
    observation_keys: tuple[str, ...] = Field((), description="Fields of an observation to use; empty: all vectors.")
    images: Switch = Field(False, description="Also use image fields, encoded by a CNN.")
    drop_columns: tuple[str, ...] = Field(
        (), description="Columns of the vectors to leave out, as FIELD:COLUMN, such as states:0 (a clock)."
    )
    memory_bytes: Natural = Field(
        1 << 30,
        description="Frames that fit into this many bytes are held in memory; otherwise they are read when sampled.",
    )
    holdout: Fraction = Field(0.2, lt=1, description="Fraction of the episodes that is held out for evaluation.")
    held_out: tuple[Natural, ...] = Field(
        (), description="Numbers of the episodes to hold out for evaluation, instead of a random fraction."
    )
    expected_episodes: Count | None = Field(
        None,
        description="Number of episodes at data.path: checked when it is read, and used by the plan if the data is not on "
        "this machine. Setting another data.path clears it.",
    )
    expected_steps: Count | None = Field(None, description="Number of steps at data.path; used like expected_episodes.")


class RewardConfig(ConfigSection):
    """The hierarchy epoch > cycle > iteration > batch, and the objective of each batch."""

    epochs: Count = Field(
        3, description="Outermost level: each ends with a summary, test rollouts, and possibly a checkpoint."
    )
    cycles: Count = Field(100, description="Cycles per epoch: each ends with a table and one TensorBoard point.")
    iterations: Count = Field(100, description="Iterations per cycle: each ends by printing its average.")
    train_batches: Count = Field(50, description="Batches per iteration: each is one gradient update.")
    save_freq: Count | None = Field(
        None, description="Save a checkpoint every this many epochs; replaces checkpoint.interval."
    )
    log_batches: Count = Field(100, description="Print the latest R_loss every this many batches.")
    train_target: Count = Field(40, description="Updates between copies to the target networks.")
    reward_only: Switch = Field(True, description="true: learn only the reward, offline. false: an agent learns, too.")
    objective: Literal["lrd", "rrd", "progress", "success"] = Field(
        "lrd",
        description="lrd, rrd: return decomposition (unbiased, plain). progress: order in time and preferences, "
        "for data whose returns carry no information. success: a classifier.",
    )
    episodes_per_batch: Size = Field(4, description="Episodes per batch.")
    steps_per_episode: Size = Field(64, ge=2, description="Steps sampled from each episode (K).")
    negatives: str | None = Field(
        None, description="progress: a file or folder with episodes of another task that have the same observations."
    )
    input_noise: Fraction = Field(
        0.3,
        description="progress, success: noise on normalised observations, in deviations; helps with few demonstrations.",
    )
    learning_rate: Positive = Field(3e-4, description="Learning rate of Adam.")
    hidden_size: Count = Field(256, description="Width of the two layers of the reward network.")
    normalize: Switch = Field(
        True, description="Normalise observations: exact statistics offline, running ones online."
    )
    normalize_clip: Positive = Field(5.0, description="Normalised observations are clipped to [-this, this].")


class AgentConfig(ConfigSection):
    """The agent that learns from predicted rewards, in full mode."""

    algorithm: Literal["auto", "sac", "dqn"] = Field("auto", description="auto: sac for continuous actions, else dqn.")
    learn_from: Literal["predicted", "world"] = Field(
        "predicted",
        description="predicted: rewards of the reward network. world: rewards of the env, for comparison.",
    )
    num_envs: Count = Field(1, description="Envs in which the agent acts.")
    batch_size: Size = Field(256, description="Transitions per gradient step.")
    replay_transitions: Size = Field(100_000, description="Capacity of the pond.")
    steps_per_iteration: Count = Field(50, description="Steps per env in each iteration.")
    warmup_steps: Natural = Field(1_000, description="Random env steps before learning starts.")
    gamma: Fraction = Field(0.99, description="Discount factor.")
    learning_rate: Positive = Field(3e-4, description="Learning rate of actor and critics.")
    target_tau: Fraction = Field(0.005, description="Weight of the online network at each update of a target network.")
    test_episodes: Count = Field(5, description="Test episodes at the end of each cycle.")


class RewardRecipe(Recipe):
    """Recipe of reward learning."""

    kind: Literal["reward"] = Field("reward", description="Kind of recipe.")
    trainer: TrainerConfig = Field(default_factory=TrainerConfig, description="Length of the run.")
    data: DataConfig = Field(default_factory=DataConfig, description="Recorded episodes.")
    reward: RewardConfig = Field(default_factory=RewardConfig, description="The loop and the objective.")
    agent: AgentConfig = Field(default_factory=AgentConfig, description="The agent of full mode.")

    @property
    def acts(self) -> bool:
        return not self.reward.reward_only

    @property
    def learns_from(self) -> str:
        return self.env.id if self.acts else self.data.path


def _one_way_to_save(values: Values) -> Iterator[Violation]:
    if values["reward.save_freq"] is not None and values["checkpoint.interval"] is not None:
        yield Violation(
            ("reward.save_freq", "checkpoint.interval"),
            f"reward.save_freq={values['reward.save_freq']} and checkpoint.interval={values['checkpoint.interval']} "
            f"both set when to save",
            ({"checkpoint.interval": None}, {"reward.save_freq": None}),
        )


def _full_mode(values: Values) -> Iterator[Violation]:
    objective = values["reward.objective"]
    if not values["reward.reward_only"]:
        if objective not in ("lrd", "rrd"):
            yield Violation(
                ("reward.reward_only", "reward.objective"),
                f"reward.objective={objective} with reward.reward_only=false: the agent learns from the returns "
                f"of its own episodes, which only lrd and rrd decompose",
                ({"reward.objective": "lrd"}, {"reward.reward_only": True}),
            )
        if values["env.num_agents"] != 1:
            yield Violation(
                ("env.num_agents",),
                f"env.num_agents={values['env.num_agents']:,}: full mode trains one agent per env",
                ({"env.num_agents": 1},),
            )
        if values["agent.replay_transitions"] < values["agent.batch_size"]:
            yield Violation(
                ("agent.replay_transitions", "agent.batch_size"),
                f"agent.replay_transitions={values['agent.replay_transitions']:,} does not hold one batch of "
                f"agent.batch_size={values['agent.batch_size']:,}",
                ({"agent.replay_transitions": values["agent.batch_size"]},),
            )


def _no_custom_policy(values: Values) -> Iterator[Violation]:
    if values["policy.target"] is not None:
        yield Violation(
            ("policy.target",),
            f"policy.target={values['policy.target']}: the agent of a reward recipe is SAC or DQN, with networks of its own",
            ({"policy.target": None},),
        )


def _data(values: Values) -> Iterator[Violation]:
    episodes, steps = values["data.expected_episodes"], values["data.expected_steps"]
    if episodes is not None and steps is not None and steps < episodes:
        yield Violation(
            ("data.expected_episodes", "data.expected_steps"),
            f"data.expected_steps={steps:,} is less than one step for each of data.expected_episodes={episodes:,}",
            ({"data.expected_steps": None},),
        )


def _columns(values: Values) -> Iterator[Violation]:
    dropped = values["data.drop_columns"]
    wrong = [column for column in dropped if not re.fullmatch(r".+:\d+", column)]
    if wrong:
        valid = [column for column in dropped if column not in wrong]
        yield Violation(
            ("data.drop_columns",),
            f"data.drop_columns has {', '.join(wrong)}; a column is named FIELD:COLUMN, such as states:0",
            ({"data.drop_columns": valid},),
        )


RULES: tuple[Rule, ...] = (_one_way_to_save, _full_mode, _no_custom_policy, _data, _columns)
