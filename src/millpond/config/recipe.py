"""The three kinds of recipe, each a frozen model of its sections."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from millpond.config.base import Natural, Section
from millpond.config.env import EnvConfig, VectorConfig
from millpond.config.mixture import DQNConfig, LakeConfig, MixtureConfig, PQNConfig
from millpond.config.policy import PolicyConfig
from millpond.config.ppo import PPOConfig, PPOTrainerConfig
from millpond.config.reward import AgentConfig, DataConfig, RewardConfig
from millpond.config.run import CheckpointConfig, EvalConfig, LogConfig, TrainerConfig


class RecipeBase(Section):
    """Keys that every recipe has."""

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


class PPORecipe(RecipeBase):
    """Recurrent PPO: rows of experience, advantages, minibatches."""

    kind: Literal["ppo"] = Field("ppo", description="ppo, mixture or reward.")
    trainer: PPOTrainerConfig = Field(default_factory=PPOTrainerConfig, description="Sizes and length of the run.")
    ppo: PPOConfig = Field(default_factory=PPOConfig, description="The algorithm.")


class MixtureRecipe(RecipeBase):
    """Four PQN agents and a BigAgent, ponds and a lake."""

    kind: Literal["mixture"] = Field("mixture", description="ppo, mixture or reward.")
    trainer: TrainerConfig = Field(default_factory=TrainerConfig, description="Length of the run.")
    mixture: MixtureConfig = Field(default_factory=MixtureConfig, description="Rounds, ponds, resets.")
    pqn: PQNConfig = Field(default_factory=PQNConfig, description="The learners of the agents.")
    dqn: DQNConfig = Field(default_factory=DQNConfig, description="The learner of the BigAgent.")
    lake: LakeConfig = Field(default_factory=LakeConfig, description="Replay on disk.")


class RewardRecipe(RecipeBase):
    """Reward learning from recorded episodes."""

    kind: Literal["reward"] = Field("reward", description="ppo, mixture or reward.")
    trainer: TrainerConfig = Field(default_factory=TrainerConfig, description="Length of the run.")
    data: DataConfig = Field(default_factory=DataConfig, description="Recorded episodes.")
    reward: RewardConfig = Field(default_factory=RewardConfig, description="The loop and the objective.")
    agent: AgentConfig = Field(default_factory=AgentConfig, description="The agent of full mode.")


Recipe = PPORecipe | MixtureRecipe | RewardRecipe
KINDS: dict[str, type[PPORecipe] | type[MixtureRecipe] | type[RewardRecipe]] = {
    "ppo": PPORecipe,
    "mixture": MixtureRecipe,
    "reward": RewardRecipe,
}
