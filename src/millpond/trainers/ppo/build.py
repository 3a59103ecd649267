"""Build what a PPO config describes: the actor that collects, the updater that trains, the optimizer.

This is the one place that asks `millpond.fast`, once per run.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from millpond import fast
from millpond.config.ppo import PPOConfig, PPOTrainerConfig
from millpond.rollout.collector import Actor, PolicyActor
from millpond.trainers.ppo.muon import Muon
from millpond.trainers.ppo.update import GradientsOfRows, Updater


def make_actor(policy: Any, trainer: PPOTrainerConfig, device: torch.device) -> Actor:
    """Build the actor of a collection."""
    actor: Actor | None = None
    if trainer.fast and device.type == "cpu":
        actor = fast.actor(policy, autocast=trainer.precision == "bfloat16")
    return actor or PolicyActor(policy, device)


def make_updater(policy: Any, trainer: PPOTrainerConfig, device: torch.device) -> GradientsOfRows:
    """Build the way from rows to gradients."""
    updater: GradientsOfRows | None = None
    if trainer.fast and device.type == "cpu" and not trainer.compile:
        updater = fast.updater(policy, autocast=trainer.precision == "bfloat16")
    precision = partial(autocast, trainer, device)
    return updater or Updater(policy, device=device, autocast=precision, compiled=trainer.compile)


def autocast(trainer: PPOTrainerConfig, device: torch.device) -> torch.autocast:
    """Return a context in which the policy computes in the configured precision."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=trainer.precision == "bfloat16")


def make_optimizer(ppo: PPOConfig, policy: nn.Module) -> torch.optim.Optimizer:
    """Build the optimizer that the config names."""
    parameters = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    betas = (ppo.adam_beta1, ppo.adam_beta2)
    if ppo.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=ppo.learning_rate, betas=betas, eps=ppo.adam_eps, fused=True)
    if ppo.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=ppo.learning_rate, betas=betas, eps=ppo.adam_eps, fused=True)
    if ppo.optimizer == "muon":
        return Muon(parameters, lr=ppo.learning_rate, momentum=ppo.adam_beta1)
    return torch.optim.RAdam(parameters, lr=ppo.learning_rate, betas=betas, eps=ppo.adam_eps)
