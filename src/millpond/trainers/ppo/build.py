"""Build what a PPO config describes: the envs, the actor that collects, the updater that trains, the optimizer.

This is the one place that asks `millpond.fast`, once per run.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from millpond import fast
from millpond.config.ppo import PPOConfig, PPORecipe, PPOTrainerConfig
from millpond.distributed import Ranks
from millpond.envs.spec import EnvSpec
from millpond.planner import PPOPlan
from millpond.rollout.collector import Actor, PolicyActor
from millpond.store import Run
from millpond.trainers.common.backend import VectorSizes, choose_vector, time_actor
from millpond.trainers.common.envs import build_vector, rank_vector
from millpond.trainers.ppo.muon import Muon
from millpond.trainers.ppo.schedule_free import ScheduleFreeAdamW
from millpond.trainers.ppo.update import GradientsOfRows, Updater
from millpond.vector import Vector

WEIGHT_DECAY = 0.01  # torch's for AdamW


def make_vector(
    recipe: PPORecipe,
    plan: PPOPlan,
    spec: EnvSpec,
    policy: Any,
    actor: Actor,
    run: Run,
    ranks: Ranks,
    device: torch.device,
) -> Vector:
    """Make the envs of this rank, stepped as the config says or, with `auto`, as is fastest next to this policy.

    `recipe` and `plan` are the share of this rank.
    """
    state = policy.initial_state(plan.envs_per_group * plan.num_agents, device)
    precision = partial(autocast, recipe.trainer, device)
    sizes = VectorSizes(plan.num_envs, plan.groups, plan.num_workers)
    time_acting = time_actor(actor, state, spec, plan.envs_per_group, precision)
    return build_vector(
        recipe.env,
        rank_vector(recipe.vector, ranks.place),
        num_envs=plan.num_envs,
        groups=plan.groups,
        num_workers=plan.num_workers,
        stacked=True,
        choice=choose_vector(recipe, spec, sizes, run, ranks, time_acting),
    )


def make_actor(policy: Any, trainer: PPOTrainerConfig, device: torch.device) -> Actor:
    """Build the actor of a collection."""
    actor: Actor | None = None
    if trainer.fast and device.type == "cpu":
        actor = fast.actor(policy, autocast=trainer.precision == "bfloat16")
    return actor or PolicyActor(policy, device, captures=trainer.graphs)


def make_updater(policy: Any, trainer: PPOTrainerConfig, device: torch.device) -> GradientsOfRows:
    """Build the way from rows to gradients."""
    updater: GradientsOfRows | None = None
    if trainer.fast and device.type == "cpu" and not trainer.compile:
        updater = fast.updater(policy, autocast=trainer.precision == "bfloat16")
    precision, compiled = partial(autocast, trainer, device), trainer.compile
    network = policy if compiled else make_network(policy, trainer, device)
    return updater or Updater(network, device=device, autocast=precision, compiled=compiled)


def make_network(policy: Any, trainer: PPOTrainerConfig, device: torch.device) -> Any:
    """Return the policy, with compiled parts if it can have any: as a whole it may be trained in plain PyTorch."""
    network = None
    if trainer.fast and device.type == "cpu" and getattr(policy, "critic", None) is None:
        network = fast.compiled_parts(policy, autocast=trainer.precision == "bfloat16")
    return policy if network is None else network


def autocast(trainer: PPOTrainerConfig, device: torch.device) -> torch.autocast:
    """Return a context in which the policy computes in the configured precision."""
    return torch.autocast(
        device.type,
        dtype=torch.bfloat16,
        enabled=trainer.precision == "bfloat16",
        cache_enabled=not trainer.graphs,  # a graph would read weights that were converted before it
    )


def prepare_device(trainer: PPOTrainerConfig, device: torch.device) -> None:
    """Set how a GPU computes: the precision of products of float32, and convolutions by whichever kernel is fastest."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision(trainer.matmul_precision)
        torch.backends.cudnn.allow_tf32 = trainer.matmul_precision != "highest"
        torch.backends.cudnn.benchmark = True


def make_optimizer(ppo: PPOConfig, policy: nn.Module, *, capturable: bool = False) -> torch.optim.Optimizer:
    """Build the optimizer that the config names; `capturable`: its steps can be part of a captured graph."""
    parameters = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    fused: dict[str, Any] = {"fused": True, "capturable": capturable}
    betas = (ppo.adam_beta1, ppo.adam_beta2)
    if ppo.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=ppo.learning_rate, betas=betas, eps=ppo.adam_eps, **fused)
    decay = WEIGHT_DECAY if ppo.weight_decay is None else ppo.weight_decay
    with_decay: dict[str, Any] = {
        "lr": ppo.learning_rate, "betas": betas, "eps": ppo.adam_eps, "weight_decay": decay,
    }  # fmt: skip
    if ppo.optimizer == "adamw":
        return torch.optim.AdamW(parameters, **with_decay, **fused)
    if ppo.optimizer == "schedule_free_adamw":
        return ScheduleFreeAdamW(parameters, **with_decay, warmup=ppo.warmup_updates)
    if ppo.optimizer == "muon":
        return Muon(parameters, lr=ppo.learning_rate, momentum=ppo.adam_beta1, form=ppo.muon)
    return torch.optim.RAdam(parameters, lr=ppo.learning_rate, betas=betas, eps=ppo.adam_eps)
