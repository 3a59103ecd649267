"""Optimisers by name."""

from __future__ import annotations

import torch
from torch import nn

from millpond.config.ppo import PPOConfig
from millpond.trainers.common.muon import Muon


def make_optimizer(ppo: PPOConfig, policy: nn.Module) -> torch.optim.Optimizer:
    """The optimiser that the config names."""
    parameters = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    betas = (ppo.adam_beta1, ppo.adam_beta2)
    if ppo.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=ppo.learning_rate, betas=betas, eps=ppo.adam_eps, fused=True)
    if ppo.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=ppo.learning_rate, betas=betas, eps=ppo.adam_eps, fused=True)
    if ppo.optimizer == "muon":
        return Muon(parameters, lr=ppo.learning_rate, momentum=ppo.adam_beta1)
    return torch.optim.RAdam(parameters, lr=ppo.learning_rate, betas=betas, eps=ppo.adam_eps)
