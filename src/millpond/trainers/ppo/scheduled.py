"""PPO's settings as they are at an iteration: those of the config, and where there are schedules, their values now."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from millpond.config import PPORecipe
from millpond.config.check import flatten
from millpond.config.ppo import PPOConfig
from millpond.config.schedules import PathSchedule, schedules_of
from millpond.losses import GTD, Coefficients
from millpond.policies import Policy
from millpond.rollout.rows import Rows
from millpond.rollout.sampling import annealed_beta
from millpond.trainers.ppo.advantages import Estimator, lambda_residual
from millpond.trainers.ppo.update import value_scale_of


@dataclass(frozen=True)
class Settings:
    """The section `ppo` at one point of the run, and the values of all schedules by the paths of their keys."""

    ppo: PPOConfig
    scheduled: dict[str, float]
    progress: float  # share of the run's iterations that are over

    def coefficients(self, policy: Policy, rows: Rows) -> Coefficients:
        """Return the coefficients of the loss, with the value's scale of the policy."""
        ppo, gtd = self.ppo, None
        if ppo.critic == "gtd_lambda":
            residual = partial(lambda_residual, rows, Estimator.of(ppo))
            gtd = GTD(ppo.gtd_aux_coef, ppo.gtd_aux_decay, residual)
        return Coefficients(
            clip_coef=ppo.clip_coef,
            vf_clip_coef=ppo.vf_clip_coef,
            vf_coef=ppo.vf_coef,
            ent_coef=ppo.ent_coef,
            max_grad_norm=ppo.max_grad_norm,
            value_scale=value_scale_of(policy) if ppo.normalize_values else None,
            weights_value=ppo.prio_weights == "loss",
            log_ratio_clamp=ppo.log_ratio_clamp,
            gtd=gtd,
        )

    def prio_beta(self) -> float:
        """Return the exponent of importance weights: its own schedule, or annealed from `ppo.prio_beta0`."""
        if "ppo.prio_beta0" in self.scheduled:
            return self.ppo.prio_beta0
        share = 1.0 if self.ppo.prio_beta_end == "one" else self.ppo.prio_alpha
        return annealed_beta(self.ppo.prio_beta0, self.progress, share)

    def set_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Give the optimizer the learning rate and, where these are scheduled, its other numbers."""
        betas = self.ppo.adam_beta1, self.ppo.adam_beta2
        numbers = {"lr": self.ppo.learning_rate}
        for path, name in (
            ("ppo.weight_decay", "weight_decay"),
            ("ppo.adam_eps", "eps"),
            ("ppo.adam_beta1", "momentum"),
        ):
            if path in self.scheduled:
                numbers[name] = self.scheduled[path]
        for group in optimizer.param_groups:
            if isinstance(group["lr"], torch.Tensor) and group["lr"].device.type != "cpu":  # a captured graph reads it
                rate = numbers["lr"]
                if group.get("rate_now") != rate:
                    group["lr"].fill_(rate)
                    group["rate_now"] = rate
                group.update({name: number for name, number in numbers.items() if name in group and name != "lr"})
                continue
            group.update({name: number for name, number in numbers.items() if name in group})
            if "betas" in group and {"ppo.adam_beta1", "ppo.adam_beta2"} & self.scheduled.keys():
                group["betas"] = betas


class ScheduledSettings:
    """The settings of every iteration of a run. They follow from the number of the iteration alone."""

    def __init__(self, recipe: PPORecipe, iterations: int) -> None:
        self.recipe, self.iterations = recipe, iterations
        self.schedules: tuple[PathSchedule, ...] = schedules_of(flatten(recipe))

    def at(self, iteration: int) -> Settings:
        """Return the settings of an iteration, counted from 0."""
        values = {one.path: one.at(iteration, self.iterations) for one in self.schedules}
        changed = {path.partition(".")[2]: value for path, value in values.items()}
        ppo = self.recipe.ppo.model_copy(update=changed) if changed else self.recipe.ppo
        return Settings(ppo, values, iteration / max(1, self.iterations))
