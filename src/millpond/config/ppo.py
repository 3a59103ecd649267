"""Sections of kind `ppo`: batch arithmetic in `trainer`, the algorithm in `ppo`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from millpond.config.base import Count, Few, Fraction, NonNegative, Positive, Section, Size, Switch
from millpond.config.run import TrainerConfig

BatchUnit = Literal["env_steps", "agent_steps"]
Schedule = Literal["constant", "linear", "cosine"]


class PPOTrainerConfig(TrainerConfig):
    """Sizes of collection and training, under the names that Metta and PufferLib use."""

    num_workers: Few = Field(1, description="Workers that step envs; env counts are multiples of it.")
    num_envs: Size | None = Field(
        None, description="Envs in all. Instead of forward_pass_minibatch_target_size, never with it."
    )
    forward_pass_minibatch_target_size: Size | None = Field(
        None,
        description="Agents in one forward pass. Envs a group = this // num_agents, floored to whole workers.",
    )
    async_factor: Few = Field(
        1,
        description="Groups of envs: while one group is with the policy, the others step. 2 is double buffering.",
    )
    batch_unit: BatchUnit = Field(
        "agent_steps",
        description="What batch_size, minibatch_size, max_minibatch_size and total_timesteps count. "
        "env_steps: a row is one env with all its agents. agent_steps: a row is one agent.",
    )
    batch_size: Size | Literal["auto"] = Field(
        "auto",
        description="Steps collected for one iteration, in batch_unit; auto is one round: rows of every env once.",
    )
    minibatch_size: Size = Field(16_384, description="Steps of one gradient update, in batch_unit.")
    max_minibatch_size: Size | None = Field(
        None, description="Larger minibatches are split and their gradients added up, exactly; null: never split."
    )
    bptt_horizon: Few = Field(64, description="Steps in a row: what the core is unrolled over.")
    update_epochs: Few = Field(1, description="Passes over the rows of one iteration.")
    total_timesteps: Count = Field(
        10_000_000, description="Length of the run in batch_unit; iterations = this // batch_size."
    )
    precision: Literal["float32", "bfloat16"] = Field("float32", description="Arithmetic of the network (autocast).")
    compile: Switch = Field(False, description="Compile the policy with torch.compile.")
    cpu_offload: Switch = Field(False, description="Keep the rows in host memory and move minibatches to the device.")


class PPOConfig(Section):
    """The algorithm: advantage estimation, losses, optimiser."""

    advantage: Literal["gae", "vtrace"] = Field("gae", description="Advantage estimator.")
    gamma: Fraction = Field(0.977, description="Fraction of future rewards.")
    gae_lambda: Fraction = Field(
        0.916, description="Mixes short and long returns: 0 is one step, 1 is the whole return."
    )
    rho_clip: Positive = Field(1.0, description="V-trace: cap of the importance weight on each temporal difference.")
    c_clip: Positive = Field(1.0, description="V-trace: cap of the importance weight that carries the trace.")
    bootstrap_truncation: Switch = Field(
        True, description="A truncated step has a future, valued at its final observation. False is for experiments."
    )
    clip_coef: Positive = Field(0.1, description="Policy loss: the ratio counts within 1 +- this.")
    vf_clip_coef: Positive | None = Field(0.1, description="Value loss: the value may move this far; null: unclipped.")
    vf_coef: NonNegative = Field(0.44, description="Weight of the value loss (which has the usual factor 0.5).")
    value_trains_core: Switch = Field(
        True,
        description="Whether the value loss trains encoder and core too; false where returns are large: docs/policies.md.",
    )
    ent_coef: NonNegative = Field(0.0021, description="Weight of the entropy bonus, subtracted from the loss.")
    normalize_advantage: Switch = Field(
        True, description="Advantages to mean 0 and deviation 1 over the iteration's rows."
    )
    target_kl: Positive | None = Field(None, description="Stop an iteration's updates above this approximate KL.")
    max_grad_norm: Positive = Field(0.5, description="Gradients are scaled down to this global norm.")
    optimizer: Literal["adam", "adamw", "radam", "muon"] = Field(
        "adam", description="Optimiser. muon is PufferLib's, with adam_beta1 as its momentum; its rates are larger."
    )
    learning_rate: Positive = Field(4.57e-4, description="Learning rate at the start.")
    adam_beta1: Fraction = Field(0.9, description="Adam: decay of the first moment.")
    adam_beta2: Fraction = Field(0.999, description="Adam: decay of the second moment.")
    adam_eps: Positive = Field(1e-8, description="Adam: added to the denominator.")
    lr_schedule: Schedule = Field("constant", description="Learning rate over the run: constant, or down to 0.")
    ent_schedule: Schedule = Field("constant", description="Entropy coefficient over the run.")
    clip_schedule: Schedule = Field("constant", description="Policy clip over the run.")
    sampling: Literal["uniform", "sequential", "prioritized"] = Field(
        "uniform",
        description="uniform: a fresh permutation each epoch, every row exactly once. sequential: in order. "
        "prioritized: drawn by the sum of |advantage| of a row.",
    )
    prio_alpha: Fraction = Field(0.0, description="Priority exponent; 0 makes all rows alike.")
    prio_beta0: Fraction = Field(0.6, description="Importance-weight exponent at the start; it is annealed to 1.")
