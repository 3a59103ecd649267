"""Kind `reward`: a reward for each step, learned from recorded episodes. Its sections, recipe and rules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from millpond.config.base import Count, Fraction, Natural, Positive, Section, Size, Switch
from millpond.config.recipe import Recipe, TrainerConfig
from millpond.config.violations import Rule, Values, Violation


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


class RewardRecipe(Recipe):
    """Reward learning from recorded episodes."""

    kind: Literal["reward"] = Field("reward", description="ppo, mixture or reward.")
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
            f"both say when to save; keep one",
            ({"checkpoint.interval": None}, {"reward.save_freq": None}),
        )


def _full_mode(values: Values) -> Iterator[Violation]:
    objective = values["reward.objective"]
    if not values["reward.reward_only"]:
        if objective not in ("lrd", "rrd"):
            yield Violation(
                ("reward.reward_only", "reward.objective"),
                f"reward.objective={objective} with reward.reward_only=false: an agent learns from its own episodes' "
                f"returns, which lrd and rrd take apart",
                ({"reward.objective": "lrd"}, {"reward.reward_only": True}),
            )
        if values["env.num_agents"] != 1:
            yield Violation(
                ("env.num_agents",),
                f"env.num_agents={values['env.num_agents']:,}: full mode trains one agent an env",
                ({"env.num_agents": 1},),
            )
        if values["agent.replay_transitions"] < values["agent.batch_size"]:
            yield Violation(
                ("agent.replay_transitions", "agent.batch_size"),
                f"agent.replay_transitions={values['agent.replay_transitions']:,} does not hold one batch of "
                f"agent.batch_size={values['agent.batch_size']:,}",
                ({"agent.replay_transitions": values["agent.batch_size"]},),
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
        kept = [column for column in dropped if column not in wrong]
        yield Violation(
            ("data.drop_columns",),
            f"data.drop_columns has {', '.join(wrong)}; a column is named FIELD:COLUMN, such as states:0",
            ({"data.drop_columns": kept},),
        )


RULES: tuple[Rule, ...] = (_one_way_to_save, _full_mode, _data, _columns)
