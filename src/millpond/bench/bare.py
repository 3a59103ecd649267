"""The bare arithmetic of an iteration: the same policy acts on as many steps and is trained as often, and nothing else.

No worlds, no storing, no drawing, no gathering, no advantages, no records: data lies ready. Observations are those of a
real iteration and not noise, since encoders that skip what is empty would have more to do on noise than a run has.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from millpond.bench.timing import Effort, timed
from millpond.losses import ppo_loss
from millpond.policies.threads import in_lanes
from millpond.rollout.rows import resets
from millpond.trainers.clipping import clip_gradients
from millpond.trainers.optimizers import make_optimizer
from millpond.trainers.ppo import PPOTrainer
from millpond.trainers.ppo_part import TRAINED
from millpond.trainers.ppo_update import least_rows

READY = 2  # minibatches, and batches to act on, that take turns


@dataclass(frozen=True)
class Ready:
    """Data of one minibatch as sequences [B, T, ...], and of one forward pass [N, ...]."""

    batch: dict[str, Tensor]
    reset: Tensor
    advantage: Tensor
    target: Tensor
    seen: Tensor
    seen_mask: Tensor | None


def make_ready(trainer: PPOTrainer) -> list[Ready]:
    """From rows that a real iteration has filled."""
    plan, rows, device = trainer.share, trainer.rows, trainer.device
    names = [*TRAINED, *(name for name in ("initial_state", "action_mask") if name in rows.fields)]
    agents = plan.envs_per_group * plan.num_agents
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(READY):
        picked = torch.randperm(plan.segments, generator=generator)[: plan.minibatch_segments]
        batch = rows.sequences(names, picked, device)
        advantage = torch.randn(batch["value"].shape, generator=generator).to(device)
        flat = rows["observation"][: plan.segments].flatten(0, 2)
        chosen = torch.randint(len(flat), (agents,), generator=generator)
        mask = rows["action_mask"].flatten(0, 2)[chosen].to(device) if "action_mask" in rows.fields else None
        reset = resets(batch["terminated"], batch["truncated"])
        found.append(Ready(batch, reset, advantage, batch["value"] + advantage, flat[chosen].to(device), mask))
    return found


class Network:
    """A network that can act and be trained on ready data: the policy, or a plain one to compare it with."""

    def __init__(
        self,
        trainer: PPOTrainer,
        policy: Any,
        effort: Effort,
        *,
        lanes: bool = False,
        compiled: bool = False,
        autocast: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self.policy, self.effort, self.lanes, self.autocast = policy, effort, lanes, autocast
        self.plan, self.ppo, self.device = trainer.share, trainer.recipe.ppo, trainer.device
        self.parameters: list[nn.Parameter] = list(policy.parameters())
        self.optimizer = make_optimizer(trainer.recipe.ppo, policy)
        self.unroll = torch.compile(policy.unroll) if compiled else policy.unroll
        self.state = policy.initial_state(self.plan.envs_per_group * self.plan.num_agents, self.device)
        self.generator = torch.Generator(self.device).manual_seed(0)

    @staticmethod
    def of_trainer(trainer: PPOTrainer, effort: Effort) -> Network:
        """The trainer's own policy, copied, so that training goes on undisturbed."""
        enabled = trainer.recipe.trainer.precision == "bfloat16"
        autocast = partial(torch.autocast, trainer.device.type, dtype=torch.bfloat16, enabled=enabled)
        compiled = trainer.recipe.trainer.compile
        lanes = not compiled and trainer.device.type == "cpu"
        policy = copy.deepcopy(trainer.policy)
        return Network(trainer, policy, effort, lanes=lanes, compiled=compiled, autocast=autocast)

    def seconds(self, ready: list[Ready]) -> tuple[float, float]:
        """Of acting on all agent steps of an iteration, and of all its updates."""
        return self.acting_seconds(ready), self.training_seconds(ready)

    def acting_seconds(self, ready: list[Ready]) -> float:
        """A part is run, and scaled up to all agent steps."""
        in_all = self.plan.agent_steps / (self.plan.envs_per_group * self.plan.num_agents)
        calls = max(1, min(self.effort.calls, round(in_all)))
        return timed(lambda: self._repeat(self.act, ready, calls)) * in_all / calls

    def training_seconds(self, ready: list[Ready]) -> float:
        """A part is run, and scaled up to all updates."""
        in_all = self.plan.gradient_updates
        updates = max(1, min(self.effort.updates, in_all))
        return timed(lambda: self._repeat(self.train, ready, updates)) * in_all / updates

    def act(self, ready: Ready) -> None:
        """One forward pass of one group's agents."""
        with self.autocast(), torch.inference_mode():
            self.state = self.policy.act(
                ready.seen, self.state, action_mask=ready.seen_mask, generator=self.generator
            ).state

    def train(self, ready: Ready) -> None:
        """One update on one minibatch."""
        self.optimizer.zero_grad(set_to_none=True)
        sequences = len(ready.reset)
        part = -(-sequences // self.plan.accumulated_parts)
        for first in range(0, sequences, part):
            count = min(part, sequences - first)
            compute = partial(self._gradients, ready, first)
            least = least_rows(self.plan.bptt_horizon)
            for gradients in in_lanes(compute, count, least) if self.lanes else [compute(0, count)]:
                for parameter, gradient in zip(self.parameters, gradients, strict=True):
                    if gradient is not None:
                        parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        clip_gradients(self.parameters, self.ppo.max_grad_norm)
        self.optimizer.step()

    def _gradients(self, ready: Ready, first: int, start: int, stop: int) -> tuple[Tensor | None, ...]:
        at = slice(first + start, first + stop)
        batch = {name: array[at] for name, array in ready.batch.items()}
        state = batch.get("initial_state")
        if state is None:
            state = torch.zeros((len(batch["alive"]), 0, 0), device=self.device)
        mask = batch.get("action_mask")
        with self.autocast():
            unrolled = self.unroll(batch["observation"], state, ready.reset[at], batch["action"], action_mask=mask)
        loss = ppo_loss(
            unrolled.log_prob.float(),
            batch["log_prob"],
            ready.advantage[at],
            unrolled.value.float(),
            batch["value"],
            ready.target[at],
            unrolled.entropy.float(),
            batch["alive"].float(),
            clip_coef=self.ppo.clip_coef,
            vf_clip_coef=self.ppo.vf_clip_coef,
            vf_coef=self.ppo.vf_coef,
            ent_coef=self.ppo.ent_coef,
            denominator=float(ready.reset.numel()),
        )
        return torch.autograd.grad(loss.total, self.parameters, allow_unused=True)

    def _repeat(self, work: Callable[[Ready], None], ready: list[Ready], times: int) -> None:
        for k in range(times):
            work(ready[k % len(ready)])
        if self.device.type == "cuda":  # it works on its own
            torch.cuda.synchronize(self.device)
