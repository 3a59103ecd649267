"""Kind `mixture`: PQN agents, ponds, a lake, one BigAgent trained with DQN. Its sections and recipe; rules: `mixture_rules`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from millpond.config.ppo import Schedule
from millpond.config.recipe import (
    CheckpointConfig,
    ConfigSection,
    Count,
    Few,
    Fraction,
    Natural,
    Positive,
    Real,
    Recipe,
    Size,
    Switch,
    TrainerConfig,
)
from millpond.config.rules import Values


class MixtureConfig(ConfigSection):
    """Mixture rounds: agents collect and learn, the BigAgent learns from the lake, the agents are cloned from it."""

    mode: Literal["rounds", "live", "single", "single-resets", "no-resets"] = Field(
        "rounds",
        description="rounds: the algorithm. live: transitions reach an acting BigAgent immediately. Controls: single "
        "(one agent, same frames), single-resets (one agent with the same resets), no-resets (agents are never cloned).",
    )
    agents: Few = Field(4, description="Number of PQN agents; 1 in the modes single and single-resets.")
    total_frames: Count = Field(100_000_000, description="Frames of all agents together, including the BigAgent's own.")
    collections_per_round: Size = Field(500, description="PQN collections per agent and round.")
    big_updates: Size | None = Field(
        None, description="Gradient steps of the BigAgent per round; null: as dqn.replay_ratio says."
    )
    pond_transitions: Size = Field(
        65_536,
        description="Capacity of each agent's pond, which is written to the lake when another collection might not fit; "
        "at least two collections.",
    )
    big_pond_transitions: Size = Field(250_000, description="Transitions sampled from the lake into the BigPond.")
    big_pond_rounds: Few | None = Field(
        None,
        description="Mixture rounds that the BigPond is filled from, the newest ones; null: the whole lake. "
        "Targets q_lambda and retrace only.",
    )
    own_fraction: Fraction = Field(
        0.0, lt=1, description="Mode live: fraction of the env steps that the BigAgent takes itself."
    )
    epsilon_reset_to: Fraction = Field(0.1, description="Epsilon of the clones right after a reset.")
    big_epsilon_reset_to: Fraction = Field(0.1, description="Epsilon of the BigAgent when its training starts.")
    recovery_checks: Natural = Field(
        3,
        description="Maximum number of evaluations per round until the agents are back at their level before the reset.",
    )
    epsilon_ladder: tuple[Fraction, ...] | None = Field(
        None, description="One value per agent instead of epsilon_reset_to, such as [0.4, 0.1, 0.03, 0.01]."
    )
    clone_optimizer: Literal["reset", "keep"] = Field(
        "reset",
        description="State of an agent's optimiser when the agent becomes a clone: reset, or kept as it is.",
    )


class PQNConfig(ConfigSection):
    """Parallelised Q-networks: lambda returns, no replay, no target network (arXiv 2407.04811)."""

    num_envs: Few = Field(128, description="Envs per agent. Each agent has as many as a single agent would have.")
    num_steps: Few = Field(32, description="Steps per env in one collection.")
    num_minibatches: Few = Field(32, description="Minibatches per collection.")
    update_epochs: Few = Field(2, description="Passes over each collection.")
    gamma: Fraction = Field(0.99, description="Discount factor.")
    q_lambda: Fraction = Field(0.65, description="Lambda of the returns: 0 is one-step targets, 1 is full returns.")
    learning_rate: Positive = Field(2.5e-4, description="Learning rate of RAdam at the start.")
    lr_schedule: Schedule = Field("constant", description="Schedule of the learning rate: constant, or decay to 0.")
    max_grad_norm: Positive = Field(10.0, description="Gradients are clipped to this global norm.")
    epsilon_start: Fraction = Field(1.0, description="Epsilon at the start of the run.")
    epsilon_end: Fraction = Field(0.001, description="Epsilon at the end of the decay.")
    epsilon_share: Fraction = Field(0.1, description="Fraction of an agent's frames over which epsilon decays.")


class DQNConfig(ConfigSection):
    """Deep Q-learning from replay."""

    target: Literal["n_step", "q_lambda", "retrace"] = Field(
        "n_step",
        description="n_step: rewards of n steps, then the target network. q_lambda: returns over blocks of consecutive steps, "
        "as PQN's (Peng's Q(lambda)), recomputed with the current networks. retrace: the same, but an action that is not "
        "greedy now ends the trace.",
    )
    q_lambda: Fraction = Field(0.65, description="Lambda of the targets q_lambda and retrace.")
    block_steps: Few = Field(32, description="Steps in a block, with target q_lambda or retrace.")
    burn_in: Natural = Field(
        0,
        description="With memory (policy.core): the first steps of each block, which are not learned from; they bring the "
        "stored state up to date with the current weights.",
    )
    updates_per_target: Size = Field(
        32, description="Gradient steps between two computations of the returns, with target q_lambda or retrace."
    )
    priority_exponent: Fraction = Field(
        0.0,
        description="Prioritised replay (Schaul et al., 2016), with target q_lambda or retrace: transitions are drawn in "
        "proportion to |return - Q| to this power, both computed together; 0: uniformly.",
    )
    priority_correction: Fraction = Field(
        0.4,
        description="Prioritised replay: power of the importance weights; 1 corrects for the priorities completely.",
    )
    priority_pool: Few = Field(
        4, description="Prioritised replay: transitions with a priority per transition that is drawn from them."
    )
    batch_size: Size = Field(32, description="Transitions per gradient step.")
    gamma: Fraction = Field(0.99, description="Discount factor.")
    gamma_from: Fraction | None = Field(
        None,
        lt=1,
        description="Discount factor at the start and after each partial reset; it goes to gamma in anneal_over updates. "
        "null: gamma.",
    )
    n_step: Few = Field(1, description="Number of rewards summed before the bootstrap value, with target n_step.")
    n_step_from: Few | None = Field(
        None,
        description="n_step at the start and after each partial reset; it goes to n_step in anneal_over updates. null: n_step.",
    )
    anneal_over: Count = Field(10_000, description="Updates in which gamma_from and n_step_from are annealed.")
    reset_every: Count | None = Field(
        None,
        description="Updates between partial resets of the BigAgent (shrink and perturb); null: it is never reset.",
    )
    reset_keep: Fraction = Field(
        0.5,
        description="Share of the weights that a partial reset keeps; the rest is from new initial weights. The last layer is "
        "all new.",
    )
    random_shift: Natural = Field(
        0, description="Pixels by which observed images are shifted at random when learned from (DrQ's augmentation)."
    )
    quantiles: Few | None = Field(
        None,
        ge=2,
        description="Quantiles of the return that the BigAgent learns for each action (QR-DQN); its values are their mean. "
        "null: the mean alone.",
    )
    double: Switch = Field(
        True, description="Double DQN: the online network chooses the action, the target network values it."
    )
    loss: Literal["huber", "squared"] = Field("huber", description="Loss on the temporal difference.")
    optimizer: Literal["adam", "radam"] = Field("adam", description="Optimiser; radam is that of PQN.")
    learning_rate: Positive = Field(1e-4, description="Learning rate at the start.")
    lr_schedule: Schedule = Field(
        "constant", description="Schedule of the learning rate: constant, or decay to 0 over the run's updates."
    )
    weight_decay: Fraction = Field(0.0, description="Weight decay, separate from the gradient (AdamW).")
    mean_decay: Fraction | None = Field(
        None,
        lt=1,
        description="Decay per update of an exponential mean of the weights, which is evaluated, cloned and saved as the "
        "BigAgent; null: the weights themselves.",
    )
    max_grad_norm: Positive = Field(10.0, description="Gradients are clipped to this global norm.")
    target_tau: Fraction = Field(
        0.005,
        description="Soft target updates: weight of the online network at each update; 1: no target network; 0: hard updates.",
    )
    target_interval: Count = Field(
        1_000, description="Hard target updates: updates between copies, if target_tau is 0."
    )
    replay_ratio: Positive | None = Field(
        1.0,
        description="Transitions that the BigAgent learns from, per transition collected; null: mixture.big_updates says how "
        "many updates it takes.",
    )
    epsilon_end: Fraction = Field(0.01, description="Epsilon at the end of the decay.")
    epsilon_over: Count = Field(10_000, description="Gradient steps over which epsilon decays after a reset.")


class LakeConfig(ConfigSection):
    """Replay on disk."""

    max_bytes: Count | None = Field(
        None, description="Maximum size: the oldest files are dropped beyond it; null: no limit."
    )
    acknowledge_every: Count = Field(
        4_096,
        description="Maximum env steps that are written and synced together; a collection is a whole number of appends.",
    )
    expected_frame_bytes: Real | None = Field(
        None, gt=0, description="Bytes per stored frame, for the plan; null: as measured for the game, or uncompressed."
    )


class MixtureCheckpointConfig(CheckpointConfig):
    """Mixtures keep every checkpoint unless the config says otherwise."""

    keep_last: Count | None = Field(
        None, description="Number of newest checkpoints to keep, besides the best; null: all, the default of mixtures."
    )


class MixtureRecipe(Recipe):
    """Recipe of a mixture."""

    kind: Literal["mixture"] = Field("mixture", description="Kind of recipe.")
    trainer: TrainerConfig = Field(default_factory=TrainerConfig, description="Length of the run.")
    checkpoint: MixtureCheckpointConfig = Field(
        default_factory=MixtureCheckpointConfig, description="Which checkpoints are saved and kept."
    )
    mixture: MixtureConfig = Field(default_factory=MixtureConfig, description="Rounds, ponds, resets.")
    pqn: PQNConfig = Field(default_factory=PQNConfig, description="The learners of the agents.")
    dqn: DQNConfig = Field(default_factory=DQNConfig, description="The learner of the BigAgent.")
    lake: LakeConfig = Field(default_factory=LakeConfig, description="Replay on disk.")


SINGLE = ("single", "single-resets")


def frame_skip(values: Values) -> int:
    """Frames per env step."""
    return int(values["env.atari.frame_skip"]) if values["env.id"].startswith("atari:") else 1


STATE_VECTORS = {"lstm": 2, "gru": 1}


def state_shape(recipe: Recipe) -> tuple[int, int] | None:
    """Shape [S, H] of the state that the lake stores with every step; None without memory."""
    vectors = STATE_VECTORS.get(recipe.policy.core)
    return None if vectors is None else (vectors, recipe.policy.hidden_size)


def longest_n_step(target: str, n_step: int, n_step_from: int | None) -> int:
    """The largest number of rewards that a target sums."""
    return max(n_step, n_step_from or 1) if target == "n_step" else 1


def own_envs(values: Values) -> float:
    """Envs of the BigAgent, so that its share of all env steps is own_fraction. Not always an integer."""
    fraction = values["mixture.own_fraction"]
    return float(round(values["mixture.agents"] * values["pqn.num_envs"] * fraction / (1 - fraction), 9))
