"""The bare arithmetic of an iteration: the same policy acts on as many steps and is trained as often, and nothing else.

No environments, no storing, no drawing, no gathering, no advantages, no records: data lies ready. Observations are those of a
real iteration and not noise, since encoders that skip what is empty would have more to do on noise than a run has.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from millpond.bench.timing import Effort, timed
from millpond.policies.acting import CompiledActor
from millpond.policies.threads import pieces
from millpond.trainers.common.optimizers import make_optimizer
from millpond.trainers.ppo.micro_batch import Coefficients, Estimate, Part
from millpond.trainers.ppo.trainer import PPOTrainer
from millpond.trainers.ppo.update import Losses, gradient_call, least_rows, take_step

READY = 2  # minibatches, and batches to act on, that take turns


@dataclass(frozen=True)
class Ready:
    """Data of one minibatch, and of one forward pass [N, ...]."""

    part: Part
    living: Tensor
    seen: Tensor
    seen_mask: Tensor | None


def make_ready(trainer: PPOTrainer) -> list[Ready]:
    """From rows that a real iteration has filled."""
    plan, rows, device = trainer.share, trainer.rows, trainer.device
    agents = plan.envs_per_group * plan.num_agents
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(READY):
        picked = torch.randperm(plan.segments, generator=generator)[: plan.minibatch_segments]
        advantage = torch.randn(rows["value"][: plan.segments].shape, generator=generator).to(rows.device)
        living = rows["alive"][: plan.segments].sum(dim=(1, 2))
        estimate = Estimate(advantage, advantage, np.zeros(plan.segments), torch.zeros(()), living)
        part = Part.of(rows, estimate, picked, np.ones(len(picked), np.float32), device)
        flat = rows["observation"][: plan.segments].flatten(0, 2)
        chosen = torch.randint(len(flat), (agents,), generator=generator)
        mask = rows["action_mask"].flatten(0, 2)[chosen].to(device) if "action_mask" in rows.fields else None
        found.append(Ready(part, living[picked].sum().to(device), flat[chosen].to(device), mask))
    return found


class Network:
    """A network that can act and be trained on ready data: the policy, or a plain one to compare it with."""

    def __init__(
        self,
        trainer: PPOTrainer,
        policy: Any,
        effort: Effort,
        *,
        in_threads: bool = False,
        compiled: bool = False,
        autocast: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self.policy, self.effort, self.in_threads, self.autocast = policy, effort, in_threads, autocast
        self.plan, self.device = trainer.share, trainer.device
        ppo = trainer.recipe.ppo
        self.coefficients = Coefficients(ppo.clip_coef, ppo.vf_clip_coef, ppo.vf_coef, ppo.ent_coef, ppo.max_grad_norm)
        self.parameters: list[nn.Parameter] = list(policy.parameters())
        self.optimizer = make_optimizer(trainer.recipe.ppo, policy)
        self.unroll = torch.compile(policy.unroll) if compiled else policy.unroll
        self.state = policy.initial_state(self.plan.envs_per_group * self.plan.num_agents, self.device)
        self.generator = torch.Generator(self.device).manual_seed(0)
        self._actor: CompiledActor | None = None
        self._cut: dict[int, list[list[Part]]] = {}  # by the id of what is ready

    @staticmethod
    def of_trainer(trainer: PPOTrainer, effort: Effort) -> Network:
        """The trainer's own policy, copied, so that training goes on undisturbed."""
        enabled = trainer.recipe.trainer.precision == "bfloat16"
        autocast = partial(torch.autocast, trainer.device.type, dtype=torch.bfloat16, enabled=enabled)
        compiled = trainer.recipe.trainer.compile
        in_threads = not compiled and trainer.device.type == "cpu"
        policy = copy.deepcopy(trainer.policy)
        return Network(trainer, policy, effort, in_threads=in_threads, compiled=compiled, autocast=autocast)

    def seconds(self, ready: list[Ready]) -> tuple[float, float]:
        """Of acting on all agent steps of an iteration, and of all its updates."""
        return self.acting_seconds(ready), self.training_seconds(ready)

    def acting_seconds(self, ready: list[Ready]) -> float:
        """A part is run, and scaled up to all agent steps."""
        in_all = self.plan.agent_steps / (self.plan.envs_per_group * self.plan.num_agents)
        calls = max(1, min(self.effort.calls, round(in_all)))
        self._actor = self._settled_actor()
        try:
            return timed(lambda: self._repeat(self.act, ready, calls)) * in_all / calls
        finally:
            self._actor = None  # it is of these weights

    def training_seconds(self, ready: list[Ready]) -> float:
        """A part is run, and scaled up to all updates."""
        in_all = self.plan.gradient_updates
        updates = max(1, min(self.effort.updates, in_all))
        return timed(lambda: self._repeat(self.train, ready, updates)) * in_all / updates

    def act(self, ready: Ready) -> None:
        """One forward pass of one group's agents."""
        if self._actor is not None:
            state, mask = self.state.numpy(), None if ready.seen_mask is None else ready.seen_mask.numpy()
            self._actor.act(ready.seen.numpy(), state, state, mask, self.generator)
            return
        with self.autocast(), torch.inference_mode():
            self.state = self.policy.act(
                ready.seen, self.state, action_mask=ready.seen_mask, generator=self.generator
            ).state

    def _settled_actor(self) -> CompiledActor | None:
        """As a collection acts, where it does so without torch in between."""
        with self.autocast():
            actor: CompiledActor | None = getattr(self.policy, "compiled_actor", lambda: None)()
        if actor is not None:
            actor.settle()
        return actor

    def train(self, ready: Ready) -> None:
        """One update on one minibatch."""
        calls = [[partial(self._call, ready, part) for part in parts] for parts in self._shares(ready)]
        take_step(calls, self.parameters, self.optimizer, self.coefficients.max_grad_norm, self.in_threads)

    def _call(self, ready: Ready, part: Part) -> Callable[[], Losses]:
        fresh = part.some(slice(None))  # its observations are taken once only
        return gradient_call(self.unroll, self.parameters, fresh, self.coefficients, ready.living, self.autocast)

    def _shares(self, ready: Ready) -> list[list[Part]]:
        """The parts of a minibatch that gradients are added up over, each as threads share it; cut when first asked for."""
        kept = self._cut.get(id(ready))
        if kept is None:
            sequences, kept = len(ready.part.reset), []
            each = -(-sequences // self.plan.accumulated_parts)
            least = least_rows(self.unroll, self.plan.bptt_horizon, 1, self.device)
            for first in range(0, sequences, each):
                count = min(each, sequences - first)
                edges = pieces(count, least) if self.in_threads else [(0, count)]
                kept.append([ready.part.some(slice(first + start, first + stop)) for start, stop in edges])
            self._cut[id(ready)] = kept
        return kept

    def _repeat(self, work: Callable[[Ready], None], ready: list[Ready], times: int) -> None:
        for k in range(times):
            work(ready[k % len(ready)])
        if self.device.type == "cuda":  # it works on its own
            torch.cuda.synchronize(self.device)
