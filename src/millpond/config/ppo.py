"""Kind `ppo`: its sections, its recipe, and its rules.

Envs fill workers and groups, rows fill the batch, minibatches divide it.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm
from typing import Annotated, Any, Literal

from pydantic import Field

from millpond.config.algorithm_rules import ALGORITHM_RULES
from millpond.config.for_env import ForEnvConfig, known_keys
from millpond.config.recipe import (
    ConfigSection,
    Count,
    Few,
    Fraction,
    Natural,
    NonNegative,
    Positive,
    Recipe,
    Size,
    Switch,
    TrainerConfig,
    as_choice,
)
from millpond.config.reward_model import RewardModelConfig, reward_model_rules
from millpond.config.rules import Rule, Values, Violation, show
from millpond.config.schedules import schedule_rules
from millpond.envs.families import family_of
from millpond.sizes import envs_per_group, nearest_divisors, nearest_multiples, rows_per_round, trainer_envs

BatchUnit = Literal["env_steps", "agent_steps"]
Schedule = Literal["constant", "linear", "cosine"]
NormalizeAdvantage = Literal["iteration", "minibatch", "none"]


class PPOTrainerConfig(TrainerConfig):
    """Sizes of collection and training, under the names that Metta and PufferLib use."""

    num_workers: Few = Field(
        1,
        description="Workers that step envs; numbers of envs are multiples of it. With vector.backend=auto, more than 1 is the "
        "most worker processes that may be chosen, and 1 sets no limit but the cores.",
    )
    num_envs: Size | None = Field(
        None, description="Total number of envs. Set either this or forward_pass_minibatch_target_size."
    )
    forward_pass_minibatch_target_size: Size | None = Field(
        None,
        description="Agents per forward pass. Envs per group = this // num_agents, rounded down to a multiple of num_workers.",
    )
    async_factor: Few = Field(
        1,
        description="Groups of envs: while the policy acts for one group, the others step. 2 is double buffering.",
    )
    batch_unit: BatchUnit = Field(
        "agent_steps",
        description="Unit of batch_size, minibatch_size, max_minibatch_size and total_timesteps. "
        "env_steps: a row is one env with all its agents. agent_steps: a row is one agent.",
    )
    batch_size: Size | Literal["auto"] = Field(
        "auto",
        description="Steps collected per iteration, in batch_unit; auto: one round, in which every env fills its rows once.",
    )
    minibatch_size: Size = Field(16_384, description="Steps per gradient update, in batch_unit.")
    max_minibatch_size: Size | None = Field(
        None,
        description="Larger minibatches are split into micro-batches, with exact accumulation of gradients; null: never split.",
    )
    bptt_horizon: Few = Field(64, description="Steps per row: the length over which the core is unrolled.")
    update_epochs: Few = Field(1, description="Passes over the rows of one iteration.")
    replay_ratio: Positive | None = Field(
        None,
        description="Steps trained on per step collected, also a fraction, instead of update_epochs. For ppo.sampling "
        "prioritized or independent, which draw minibatches one by one.",
    )
    total_timesteps: Count = Field(
        10_000_000, description="Length of the run, in batch_unit; iterations = this // batch_size."
    )
    precision: Literal["float32", "bfloat16"] = Field("float32", description="Precision of the network (autocast).")
    compile: Switch = Field(False, description="Compile the policy with torch.compile.")
    matmul_precision: Literal["highest", "high", "medium"] = Field(
        "highest",
        description="Precision of float32 products and convolutions on CUDA, in words of torch: high is TF32, three digits "
        "at several times the speed.",
    )
    graphs: Switch = Field(
        False,
        description="On CUDA, capture acting and the update as graphs, which start all their kernels with one launch. For "
        "ppo.optimizer adam or adamw: docs/gpu.md.",
    )
    cpu_offload: Switch = Field(False, description="Keep the rows in host memory and copy minibatches to the device.")


class PPOConfig(ConfigSection):
    """PPO: advantage estimation, losses, optimiser."""

    style: Literal["millpond", "puffer"] = Field(
        "millpond",
        description="puffer is the algorithm of PufferLib 3.0, millpond is Millpond's own: sets a family of keys together. "
        "Keys that are set explicitly, in the same file or above it, win: docs/comparing.md.",
    )
    advantage: Literal["gae", "vtrace", "puffer"] = Field(
        "gae",
        description="Advantage estimator. vtrace weights by probability ratios, which differ from 1 with recompute_advantage. "
        "puffer is PufferLib's function: vtrace with row_end zero and ignore_truncation.",
    )
    recompute_advantage: Switch = Field(
        False,
        description="Recompute the advantages of all rows before every minibatch, with the ratios and values of rows that were "
        "trained on already; false: once per iteration.",
    )
    refresh_values: Switch = Field(
        False,
        description="Before each minibatch, compute the values of its rows with the newest weights, in one more forward pass, "
        "so that its advantages are of these (Metta). Needs recompute_advantage, which alone uses those of trained rows.",
    )
    row_end: Literal["bootstrap", "zero"] = Field(
        "bootstrap",
        description="Last step of a row: bootstrap from the value of the next observation, or advantage 0.",
    )
    row_state: Literal["stored", "zero"] = Field(
        "stored",
        description="Recurrent state at the start of a row: the one after the row before, or zero; in acting and in training.",
    )
    reset_state: Switch = Field(
        True, description="Zero the recurrent state where an episode ends inside a row; false: it goes on."
    )
    gamma: Fraction = Field(0.977, description="Discount factor.")
    gae_lambda: Fraction = Field(0.916, description="Lambda of GAE: 0 is one-step returns, 1 is full returns.")
    rho_clip: Positive = Field(
        1.0, description="V-trace: upper bound of the importance weight of each temporal difference."
    )
    rho_weights: Literal["delta", "reward"] = Field(
        "delta",
        description="V-trace: what that weight multiplies: the temporal difference, or the reward alone (PufferLib 4).",
    )
    c_clip: Positive = Field(1.0, description="V-trace: upper bound of the importance weights in the trace.")
    trace_end: Literal["row", "iteration"] = Field(
        "row",
        description="Where lambda's trace ends, unless an episode ends before: with each row, or with the last of an agent's "
        "rows in an iteration. With iteration, short rows (trainer.bptt_horizon) give the same advantages as long ones.",
    )
    bootstrap_truncation: Switch = Field(
        True,
        description="Bootstrap truncated steps from the value of their final observation. false is for experiments.",
    )
    ignore_truncation: Switch = Field(
        False,
        description="Treat a truncated step as any other, so that the trace goes on into the next episode, as in PufferLib.",
    )
    reward_centering: Fraction | None = Field(
        None,
        description="Subtract from each reward the exponential mean of its agent's rewards so far, which moves by this share "
        "of the difference at every step (Metta: 0.001, with gamma 1): values are then relative to the average reward. "
        "null: rewards stay as they are.",
    )
    reward_model: str | None = Field(
        None,
        min_length=1,
        description="Estimate advantages from learned rewards, for envs that pay only at the end of an episode: `online` "
        "learns them beside the policy from the returns of its own episodes (section reward_model), and the name or folder of "
        "a finished reward run uses its network. Returns are reported as the env gives them. null: the env's rewards.",
    )
    log_ratio_clamp: Positive | None = Field(
        None,
        description="Bound of the logarithm of the probability ratio, +- this, beyond which a step has no gradient (Metta: "
        "10); null: unbounded.",
    )
    clip_coef: Positive = Field(0.1, description="Policy loss: clip range of the probability ratio, 1 +- this.")
    vf_clip_coef: Positive | None = Field(
        0.1,
        description="Value loss: clip range of the value's change, in units of the rewards or, with normalize_values, of the "
        "returns' deviation; null: unclipped.",
    )
    vf_coef: NonNegative = Field(0.44, description="Weight of the value loss (which includes the usual factor 0.5).")
    critic: Literal["mse", "gtd_lambda"] = Field(
        "mse",
        description="How the value learns: by the squared error to its targets, or by gradient TD(lambda) with an auxiliary "
        "head (Metta), whose gradient includes that of the bootstrapped values. Its losses are in plain PyTorch.",
    )
    gtd_aux_coef: NonNegative = Field(1.0, description="gtd_lambda: weight of the auxiliary head's loss.")
    gtd_aux_decay: NonNegative = Field(
        1.0, description="gtd_lambda: weight of the mean square of the auxiliary head's weights in that loss."
    )
    value_trains_core: Switch = Field(
        True,
        description="The value loss also trains encoder and core; set false if returns are large and normalize_values is "
        "false: docs/policies.md.",
    )
    normalize_values: Switch = Field(
        False,
        description="The value loss compares values that are normalised by the running mean and deviation of returns (PopArt), "
        "so that vf_coef and vf_clip_coef mean the same whatever the unit of the rewards.",
    )
    ent_coef: NonNegative = Field(0.0021, description="Weight of the entropy bonus, subtracted from the loss.")
    normalize_advantage: Annotated[NormalizeAdvantage, as_choice("iteration", "none")] = Field(
        "iteration",
        description="Normalise advantages to mean 0 and deviation 1 over the iteration's rows, or over each minibatch; "
        "true is iteration, false is none.",
    )
    target_kl: Positive | None = Field(
        None, description="End an iteration's updates when the approximate KL exceeds this; null: never."
    )
    max_grad_norm: Positive = Field(0.5, description="Gradients are clipped to this global norm.")
    optimizer: Literal["adam", "adamw", "radam", "muon", "schedule_free_adamw"] = Field(
        "adam",
        description="Optimiser. muon is PufferLib's, with adam_beta1 as its momentum; it needs larger learning rates. "
        "schedule_free_adamw is Metta's: evaluations and checkpoints have an average of its weights.",
    )
    muon: Literal["original", "puffer3", "puffer4"] = Field(
        "original",
        description="Form of muon. puffer3 averages the momentum and gives the newest gradient half of the weight; puffer4 is "
        "the original with coefficients of PufferLib 4.",
    )
    learning_rate: Positive = Field(4.57e-4, description="Learning rate at the start.")
    adam_beta1: Fraction = Field(0.9, description="Adam: decay of the first moment.")
    adam_beta2: Fraction = Field(0.999, description="Adam: decay of the second moment.")
    adam_eps: Positive = Field(1e-8, description="Adam: term added to the denominator.")
    weight_decay: NonNegative | None = Field(
        None,
        description="AdamW: weights shrink by learning_rate times this at each update; null: 0.01 with adamw and "
        "schedule_free_adamw, none with other optimisers.",
    )
    warmup_updates: Natural = Field(
        0,
        description="Schedule-free AdamW: updates over which the learning rate rises to its value (Metta: 1,000). Others have "
        "the section schedules.",
    )
    lr_schedule: Schedule = Field(
        "constant", description="Schedule of the learning rate: constant, or decay to learning_rate * min_lr_ratio."
    )
    min_lr_ratio: Fraction = Field(
        0.0, description="Share of learning_rate at which a linear or cosine lr_schedule ends; 0: it ends at 0."
    )
    ent_schedule: Schedule = Field("constant", description="Schedule of the entropy coefficient.")
    clip_schedule: Schedule = Field("constant", description="Schedule of clip_coef.")
    sampling: Literal["uniform", "sequential", "prioritized", "independent"] = Field(
        "uniform",
        description="uniform: a new permutation per epoch, every row exactly once. sequential: in order. "
        "prioritized: sampled by the sum of |advantage| of a row. independent: each minibatch on its own, all rows alike, so "
        "that a row may be in several or in none.",
    )
    replacement: Switch = Field(
        False,
        description="Draw the rows of a minibatch with replacement, so that it may have a row twice (PufferLib 4). For "
        "sampling prioritized or independent.",
    )
    prio_alpha: Fraction = Field(0.0, description="Exponent of priorities; 0: all rows alike.")
    prio_beta0: Fraction = Field(
        0.6, description="Exponent of importance weights at the start; annealed as prio_beta_end says."
    )
    prio_beta_end: Literal["one", "alpha"] = Field(
        "one",
        description="Exponent of importance weights at the end: 1, or (PufferLib) prio_beta0 + (1 - prio_beta0) * prio_alpha.",
    )
    prio_weights: Literal["loss", "advantage"] = Field(
        "loss",
        description="Importance weights multiply the policy and the value loss, or the normalised advantage only.",
    )


class PPORecipe(Recipe):
    """Recipe of recurrent PPO."""

    kind: Literal["ppo"] = Field("ppo", description="Kind of recipe.")
    trainer: PPOTrainerConfig = Field(default_factory=PPOTrainerConfig, description="Sizes and length of the run.")
    ppo: PPOConfig = Field(default_factory=PPOConfig, description="The algorithm.")
    reward_model: RewardModelConfig = Field(
        default_factory=RewardModelConfig, description="The reward that is learned beside the policy."
    )
    schedules: dict[str, Any] = Field(
        default_factory=dict,
        description="Numbers that change during a run, by the path of their key: {kind, start, end, floor, warmup, until}. "
        "docs/policies.md has the keys that can change.",
    )
    for_env: ForEnvConfig = Field(
        default_factory=ForEnvConfig, description="Settings that follow from the environment."
    )


# Keys that rules read.
ENVS = "trainer.num_envs"
TARGET = "trainer.forward_pass_minibatch_target_size"
WORKERS = "trainer.num_workers"
GROUPS = "trainer.async_factor"
AGENTS = "env.num_agents"
BATCH = "trainer.batch_size"
MINIBATCH = "trainer.minibatch_size"
LARGEST = "trainer.max_minibatch_size"
HORIZON = "trainer.bptt_horizon"
UNIT = "trainer.batch_unit"
TOTAL = "trainer.total_timesteps"
TRAINER_SHARE = "vector.trainer_share"
ENV_COUNT = (ENVS, TARGET, WORKERS, GROUPS, AGENTS)


def num_envs(values: Values) -> int | None:
    """Total number of envs, or None if the rules on env counts are violated."""
    if (values[ENVS] is None) == (values[TARGET] is None):
        return None
    if values[ENVS] is not None:
        count: int = values[ENVS]
        return count if count % lcm(values[WORKERS], values[GROUPS]) == 0 else None
    return envs_per_group(values[TARGET], values[AGENTS], values[WORKERS]) * values[GROUPS] or None


def num_minibatches(batch: int, minibatch: int, replay_ratio: float | None) -> int:
    """Return the minibatches of an update epoch. A replay ratio is rounded down to whole ones, as PufferLib 4 does."""
    return batch // minibatch if replay_ratio is None else int(replay_ratio * batch / minibatch)


def batch_size(values: Values) -> int | None:
    """Steps per iteration with `auto` resolved, or None if it cannot be."""
    if values[BATCH] != "auto":
        size: int = values[BATCH]
        return size
    envs = num_envs(values)
    return envs and rows_per_round(envs, values[AGENTS], values[UNIT]) * values[HORIZON]


def batch_step(values: Values) -> int | None:
    """Unit of a batch: a row, or a whole round in environments whose envs all step together."""
    family = family_of(values["env.id"])
    if family is None or family.partial_step:
        horizon: int = values[HORIZON]
        return horizon
    envs = num_envs(values)
    return envs and rows_per_round(envs, values[AGENTS], values[UNIT]) * values[HORIZON]


def _one_way_to_count_envs(values: Values) -> Iterator[Violation]:
    if values[ENVS] is not None and values[TARGET] is not None:
        yield Violation(
            (ENVS, TARGET),
            f"{ENVS}={values[ENVS]:,} and {TARGET}={values[TARGET]:,} both set the number of envs",
            ({TARGET: None}, {ENVS: None}),
        )
    elif values[ENVS] is None and values[TARGET] is None:
        yield Violation(
            (ENVS, TARGET),
            f"neither {ENVS} nor {TARGET} is set, so the number of envs is not known",
            ({ENVS: 64 * lcm(values[WORKERS], values[GROUPS])},),
        )


def _envs_fill_workers_and_groups(values: Values) -> Iterator[Violation]:
    agents, workers, groups = values[AGENTS], values[WORKERS], values[GROUPS]
    if values[TARGET] is not None and values[ENVS] is None:
        if envs_per_group(values[TARGET], agents, workers) == 0:
            fixes: list[dict[str, Any]] = [{TARGET: agents * workers}]
            if values[TARGET] >= agents:
                fixes.append({WORKERS: values[TARGET] // agents})
            yield Violation(
                (TARGET, AGENTS, WORKERS),
                f"{TARGET}={values[TARGET]:,} with {AGENTS}={agents:,} gives each of {WORKERS}={workers:,} workers "
                f"less than one env",
                tuple(fixes),
            )
    elif values[ENVS] is not None and values[TARGET] is None:
        unit = lcm(workers, groups)
        if values[ENVS] % unit:
            yield Violation(
                (ENVS, WORKERS, GROUPS),
                f"{ENVS}={values[ENVS]:,} is not a multiple of both {WORKERS}={workers:,} and {GROUPS}={groups:,}",
                tuple({ENVS: count} for count in nearest_multiples(values[ENVS], unit)),
            )


def _a_share_leaves_envs_for_workers(values: Values) -> Iterator[Violation]:
    share, workers, envs = values[TRAINER_SHARE], values[WORKERS], num_envs(values)
    if not share or not envs:
        return
    size = envs // values[GROUPS]
    by_trainer = trainer_envs(share, size)
    if size - by_trainer < workers:
        yield Violation(
            (TRAINER_SHARE, WORKERS),
            f"{TRAINER_SHARE}={share:g} of the {size:,} envs of a group is {by_trainer:,}, which leaves fewer envs than "
            f"{WORKERS}={workers:,}",
            ({TRAINER_SHARE: 0.0},),
        )


def _rows_fill_the_batch(values: Values) -> Iterator[Violation]:
    unit = batch_step(values)
    if values[BATCH] == "auto" or unit is None or values[BATCH] % unit == 0:
        return
    horizon, batch = values[HORIZON], values[BATCH]
    if unit == horizon:
        rule = f"{BATCH}={batch:,} is not a multiple of {HORIZON}={horizon:,}"
        keys: tuple[str, ...] = (BATCH, HORIZON)
    else:
        rule = (
            f"{BATCH}={batch:,} is not a whole number of rounds of {unit:,} steps, and the envs of "
            f"{values['env.id']} cannot be stepped in part"
        )
        keys = (BATCH, HORIZON, UNIT, "env.id", *ENV_COUNT)
    yield Violation(keys, rule, tuple(batch_fixes(batch, unit, values[MINIBATCH], horizon)))


def batch_fixes(batch: int, unit: int, minibatch: int, horizon: int) -> Iterator[dict[str, Any]]:
    """Yield nearby multiples of `unit`, with another minibatch size if the present one does not divide them."""
    if minibatch % horizon == 0:
        for size in nearest_multiples(batch, lcm(unit, minibatch)):
            if _near(size, batch):
                yield {BATCH: size}
    pairs = [(size, nearest_divisors(minibatch, size, horizon)[0]) for size in nearest_multiples(batch, unit)]
    for size, other in [pair for pair in pairs if _near(pair[1], minibatch)] or pairs[:1]:
        yield {BATCH: size} if other == minibatch else {BATCH: size, MINIBATCH: other}


def _near(value: int, target: int) -> bool:
    return target / 2 <= value <= target * 2


def _minibatches_divide_the_batch(values: Values) -> Iterator[Violation]:
    batch, minibatch, horizon, unit = batch_size(values), values[MINIBATCH], values[HORIZON], batch_step(values)
    batch_is_valid = batch is not None and unit is not None and batch % unit == 0
    if minibatch % horizon:
        near = sorted(nearest_multiples(minibatch, horizon))
        fits = nearest_divisors(minibatch, batch, horizon) if batch is not None and batch_is_valid else near
        shown = f" (the nearest are {' and '.join(f'{m:,}' for m in near)}), and it must divide {BATCH}"
        yield Violation(
            (MINIBATCH, HORIZON, BATCH),
            f"{MINIBATCH}={minibatch:,} is not a multiple of {HORIZON}={horizon:,}{shown}"
            + (f"={batch:,}" if batch_is_valid else ""),
            tuple({MINIBATCH: size} for size in fits),
        )
    elif batch is not None and unit is not None and batch_is_valid and batch % minibatch:
        sizes = nearest_multiples(batch, lcm(unit, minibatch))
        batches = [{BATCH: size} for size in sizes if _near(size, batch) and values[BATCH] != "auto"]
        auto = f"auto, which is {batch:,}" if values[BATCH] == "auto" else f"{batch:,}"
        yield Violation(
            (MINIBATCH, BATCH),
            f"{MINIBATCH}={minibatch:,} does not divide {BATCH}={auto}",
            (*({MINIBATCH: size} for size in nearest_divisors(minibatch, batch, horizon)), *batches),
        )


def _micro_batches_divide_a_minibatch(values: Values) -> Iterator[Violation]:
    largest, minibatch, horizon = values[LARGEST], values[MINIBATCH], values[HORIZON]
    if largest is None:
        return
    fits = minibatch % horizon == 0  # else the minibatch itself has to be fixed first
    if largest % horizon or (fits and minibatch > largest and minibatch % largest):
        sizes = nearest_divisors(largest, minibatch, horizon) if fits else nearest_multiples(largest, horizon)
        yield Violation(
            (LARGEST, MINIBATCH, HORIZON),
            f"{LARGEST}={largest:,} must be a multiple of {HORIZON}={horizon:,} and, if it is "
            f"smaller than {MINIBATCH}={minibatch:,}, divide that",
            tuple({LARGEST: size} for size in sizes),
        )


def _at_least_one_iteration(values: Values) -> Iterator[Violation]:
    batch = batch_size(values)
    if batch is not None and values[TOTAL] < batch:
        yield Violation(
            (TOTAL, BATCH),
            f"{TOTAL}={values[TOTAL]:,} is less than one iteration of {BATCH}={show(values[BATCH])}"
            + (f", which is {batch:,}" if values[BATCH] == "auto" else ""),
            ({TOTAL: batch},),
        )


def _at_least_one_update(values: Values) -> Iterator[Violation]:
    ratio, batch, minibatch = values["trainer.replay_ratio"], batch_size(values), values[MINIBATCH]
    if ratio is not None and batch is not None and num_minibatches(batch, minibatch, ratio) == 0:
        yield Violation(
            ("trainer.replay_ratio", MINIBATCH, BATCH),
            f"trainer.replay_ratio={ratio:g} of {BATCH}={batch:,} is less than one minibatch of {MINIBATCH}={minibatch:,}",
            ({"trainer.replay_ratio": minibatch / batch},),
        )


RULES: tuple[Rule, ...] = (
    _one_way_to_count_envs,
    _envs_fill_workers_and_groups,
    _a_share_leaves_envs_for_workers,
    _rows_fill_the_batch,
    _minibatches_divide_the_batch,
    _micro_batches_divide_a_minibatch,
    _at_least_one_iteration,
    _at_least_one_update,
    *ALGORITHM_RULES,
    reward_model_rules,
    schedule_rules,
    known_keys,
)
