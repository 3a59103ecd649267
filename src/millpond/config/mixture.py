"""Kind `mixture`: PQN agents, ponds, a lake, one BigAgent trained with DQN. Its sections, recipe and rules."""

from __future__ import annotations

from collections.abc import Iterator
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
from millpond.config.rules import Rule, Values, Violation
from millpond.sizes import nearest_divisors


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
    updates_per_target: Size = Field(
        32, description="Gradient steps between two computations of the returns, with target q_lambda or retrace."
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


def longest_n_step(target: str, n_step: int, n_step_from: int | None) -> int:
    """The largest number of rewards that a target sums."""
    return max(n_step, n_step_from or 1) if target == "n_step" else 1


def own_envs(values: Values) -> float:
    """Envs of the BigAgent, so that its share of all env steps is own_fraction. Not always an integer."""
    fraction = values["mixture.own_fraction"]
    return float(round(values["mixture.agents"] * values["pqn.num_envs"] * fraction / (1 - fraction), 9))


def _modes(values: Values) -> Iterator[Violation]:
    mode, agents, own = values["mixture.mode"], values["mixture.agents"], values["mixture.own_fraction"]
    if mode in SINGLE and agents != 1:
        yield Violation(
            ("mixture.mode", "mixture.agents"),
            f"mixture.mode={mode} trains one agent, but mixture.agents={agents}",
            ({"mixture.agents": 1},),
        )
    if mode not in SINGLE and agents == 1:
        yield Violation(
            ("mixture.mode", "mixture.agents"),
            f"mixture.mode={mode} needs several agents, but mixture.agents=1",
            ({"mixture.agents": 4}, {"mixture.mode": "single-resets"}),
        )
    if mode != "live" and own:
        yield Violation(
            ("mixture.mode", "mixture.own_fraction"),
            f"mixture.own_fraction={own} has no effect with mixture.mode={mode}: the BigAgent acts only in mode live",
            ({"mixture.own_fraction": 0}, {"mixture.mode": "live"}),
        )
    if mode == "live" and own == 0:
        yield Violation(
            ("mixture.mode", "mixture.own_fraction"),
            "mixture.own_fraction=0 with mixture.mode=live: the BigAgent acts, too, so it needs a share of the env steps",
            ({"mixture.own_fraction": 1 / (agents + 1)},),
        )
    if mode == "live" and own_envs(values) % 1:
        total = agents * values["pqn.num_envs"]
        below = max(1, int(own_envs(values)))
        fixes = tuple({"mixture.own_fraction": count / (total + count)} for count in (below, below + 1))
        yield Violation(
            ("mixture.own_fraction", "mixture.agents", "pqn.num_envs"),
            f"mixture.own_fraction={own} next to {total} envs of the agents is {own_envs(values):g} envs, "
            f"not a whole number",
            fixes,
        )


def _ladder(values: Values) -> Iterator[Violation]:
    ladder, agents = values["mixture.epsilon_ladder"], values["mixture.agents"]
    if ladder is not None and len(ladder) != agents:
        filled = (*ladder, *([ladder[-1] if ladder else 0.1] * agents))[:agents]
        yield Violation(
            ("mixture.epsilon_ladder", "mixture.agents"),
            f"mixture.epsilon_ladder has {len(ladder)} values for mixture.agents={agents}",
            ({"mixture.epsilon_ladder": filled}, {"mixture.epsilon_ladder": None}),
        )


def _minibatches(values: Values) -> Iterator[Violation]:
    envs, steps, minibatches = values["pqn.num_envs"], values["pqn.num_steps"], values["pqn.num_minibatches"]
    if envs * steps % minibatches:
        yield Violation(
            ("pqn.num_minibatches", "pqn.num_envs", "pqn.num_steps"),
            f"pqn.num_minibatches={minibatches:,} does not divide a collection of {envs} envs x {steps} steps "
            f"= {envs * steps:,}",
            tuple({"pqn.num_minibatches": count} for count in nearest_divisors(minibatches, envs * steps)),
        )


def _ponds(values: Values) -> Iterator[Violation]:
    collection = values["pqn.num_envs"] * values["pqn.num_steps"]
    if values["mixture.pond_transitions"] < 2 * collection:
        yield Violation(
            ("mixture.pond_transitions", "pqn.num_envs", "pqn.num_steps"),
            f"mixture.pond_transitions={values['mixture.pond_transitions']:,} does not hold one collection of "
            f"{collection:,} transitions and as many final observations",
            ({"mixture.pond_transitions": 2 * collection},),
        )
    batch, n_step = values["dqn.batch_size"], max(values["dqn.n_step"], values["dqn.n_step_from"] or 1)
    if values["mixture.big_pond_transitions"] < batch + n_step:
        yield Violation(
            ("mixture.big_pond_transitions", "dqn.batch_size", "dqn.n_step"),
            f"mixture.big_pond_transitions={values['mixture.big_pond_transitions']:,} does not hold one batch of "
            f"dqn.batch_size={batch:,} with dqn.n_step={n_step}",
            ({"mixture.big_pond_transitions": batch + n_step},),
        )
    if values["mixture.mode"] == "live" and not own_envs(values) % 1:
        lanes = values["mixture.agents"] * values["pqn.num_envs"] + int(own_envs(values))
        needed = lanes * max(2 * values["pqn.num_steps"], values["env.frame_stack"] + n_step + 1)
        if values["mixture.big_pond_transitions"] < needed:
            yield Violation(
                ("mixture.big_pond_transitions", "mixture.agents", "pqn.num_envs", "pqn.num_steps"),
                f"mixture.big_pond_transitions={values['mixture.big_pond_transitions']:,} does not hold one collection "
                f"of all {lanes:,} envs with its final observations, as mixture.mode=live needs",
                ({"mixture.big_pond_transitions": needed},),
            )


def _replay_ratio(values: Values) -> Iterator[Violation]:
    ratio, updates = values["dqn.replay_ratio"], values["mixture.big_updates"]
    keys = ("dqn.replay_ratio", "mixture.big_updates")
    if ratio is not None and updates is not None:
        yield Violation(
            keys,
            f"dqn.replay_ratio={ratio:g} and mixture.big_updates={updates:,} both say how much the BigAgent learns; "
            f"one of them must be null",
            ({"mixture.big_updates": None}, {"dqn.replay_ratio": None}),
        )
    if ratio is None and updates is None:
        yield Violation(
            keys,
            "dqn.replay_ratio and mixture.big_updates are both null: one of them says how much the BigAgent learns",
            ({"dqn.replay_ratio": 1.0}, {"mixture.big_updates": 100}),
        )


def _target(values: Values) -> Iterator[Violation]:
    rounds, target = values["mixture.big_pond_rounds"], values["dqn.target"]
    if target != "n_step" and values["mixture.big_pond_transitions"] < values["dqn.block_steps"]:
        yield Violation(
            ("mixture.big_pond_transitions", "dqn.block_steps"),
            f"mixture.big_pond_transitions={values['mixture.big_pond_transitions']:,} does not hold one block of "
            f"dqn.block_steps={values['dqn.block_steps']:,}",
            (
                {"mixture.big_pond_transitions": values["dqn.block_steps"]},
                {"dqn.block_steps": values["mixture.big_pond_transitions"]},
            ),
        )
    if target != "n_step" and values["dqn.n_step_from"] is not None:
        yield Violation(
            ("dqn.n_step_from", "dqn.target"),
            f"dqn.n_step_from={values['dqn.n_step_from']:,} has no effect with dqn.target={target}, which has blocks",
            ({"dqn.n_step_from": None}, {"dqn.target": "n_step"}),
        )
    if values["dqn.gamma_from"] is not None and values["dqn.gamma"] == 1:
        yield Violation(
            ("dqn.gamma_from", "dqn.gamma"),
            f"dqn.gamma_from={values['dqn.gamma_from']:g} needs dqn.gamma below 1: 1 - gamma is annealed geometrically",
            ({"dqn.gamma_from": None}, {"dqn.gamma": 0.997}),
        )
    if rounds is None:
        return
    if target == "n_step":
        yield Violation(
            ("mixture.big_pond_rounds", "dqn.target"),
            f"mixture.big_pond_rounds={rounds} needs dqn.target=q_lambda or retrace; with n_step the BigPond is filled from "
            f"the whole lake",
            ({"mixture.big_pond_rounds": None}, {"dqn.target": "q_lambda"}),
        )
    if values["mixture.mode"] == "live":
        yield Violation(
            ("mixture.big_pond_rounds", "mixture.mode"),
            f"mixture.big_pond_rounds={rounds} has no effect with mixture.mode=live: the BigPond is a ring of the newest steps",
            ({"mixture.big_pond_rounds": None},),
        )


def _budget(values: Values) -> Iterator[Violation]:
    own = own_envs(values) if values["mixture.mode"] == "live" else 0.0
    if own % 1:
        return
    envs = values["mixture.agents"] * values["pqn.num_envs"] + int(own)
    frames = envs * values["pqn.num_steps"] * frame_skip(values)
    if values["mixture.total_frames"] < frames:
        yield Violation(
            ("mixture.total_frames", "mixture.agents", "pqn.num_envs", "pqn.num_steps", "env.atari.frame_skip"),
            f"mixture.total_frames={values['mixture.total_frames']:,} is less than one collection of all agents, "
            f"{frames:,} frames",
            ({"mixture.total_frames": frames},),
        )


def _one_agent_envs(values: Values) -> Iterator[Violation]:
    if values["env.num_agents"] != 1:
        yield Violation(
            ("env.num_agents",),
            f"env.num_agents={values['env.num_agents']:,}: PQN and DQN act for one agent per env",
            ({"env.num_agents": 1},),
        )


def _networks(values: Values) -> Iterator[Violation]:
    if values["policy.core"] != "none":
        yield Violation(
            ("policy.core",),
            f"policy.core={values['policy.core']}: Q-networks of a mixture have no memory, since replay is not in order",
            ({"policy.core": "none"},),
        )
    if values["policy.separate_critic"]:
        yield Violation(
            ("policy.separate_critic",),
            "policy.separate_critic=true: Q-networks of a mixture have no critic",
            ({"policy.separate_critic": False},),
        )
    if values["policy.target"] is not None:
        yield Violation(
            ("policy.target",),
            f"policy.target={values['policy.target']}: PQN and DQN learn action values, which custom policies do not have",
            ({"policy.target": None},),
        )


def _evaluation(values: Values) -> Iterator[Violation]:
    if values["eval.deterministic"] is False:
        yield Violation(
            ("eval.deterministic",),
            "eval.deterministic=false: Q-networks have no probabilities to sample actions from",
            ({"eval.deterministic": True}, {"eval.deterministic": None}),
        )


def _crashes(values: Values) -> Iterator[Violation]:
    if values["vector.on_crash"] != "stop":
        yield Violation(
            ("vector.on_crash",),
            f"vector.on_crash={values['vector.on_crash']}: a restarted env loses a step in the middle of a collection, "
            f"and the lake must hold every step",
            ({"vector.on_crash": "stop"},),
        )


RULES: tuple[Rule, ...] = (
    _modes,
    _ladder,
    _minibatches,
    _ponds,
    _replay_ratio,
    _target,
    _budget,
    _one_agent_envs,
    _networks,
    _evaluation,
    _crashes,
)
