"""The bare arithmetic of an iteration, and plain networks to compare it with.

Bare arithmetic: the same policy acts on as many steps and is trained as often on ready data, without environments, storing,
sampling, gathering, advantages or records. Observations are those of a real iteration, not noise: encoders skip empty cells,
so noise would cost them more than a run does.

A plain network is what one writes in an afternoon, and it is pinned so that results stay comparable:

    flat observation -> nn.Linear -> ReLU -> nn.LSTM -> nn.Linear (actions), nn.Linear (value)

It reads observations as bytes, or one-hot if the codes of a grid are known. nn.LSTM cannot reset inside a row, so it does
less work than our core.

B sequences   T horizon   N agents of one group   S states   H hidden size
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from millpond.bench.measure import Effort, timed
from millpond.envs.spec import EnvSpec, Part
from millpond.losses import Coefficients
from millpond.policies.heads import make_head
from millpond.policies.parts import PartReader
from millpond.policies.policy import Act, Unrolled
from millpond.processor import can_use_bfloat16, claims_bfloat16, cpu_flags
from millpond.rollout.collector import Actor, PolicyActor
from millpond.rollout.micro_batch import Advantages, MicroBatch, gather
from millpond.trainers.ppo.build import autocast, make_actor, make_optimizer, make_updater
from millpond.trainers.ppo.trainer import PPOTrainer
from millpond.trainers.ppo.update import GradientsOfRows, Updater, take_step

READY_BATCHES = 2  # used alternately
CORES: dict[str, Any] = {"lstm": nn.LSTM, "gru": nn.GRU, "mingru": nn.GRU}  # torch has no MinGRU
STATES = {"lstm": 2, "gru": 1, "mingru": 1, "none": 0}
PLAIN_CALLS, PLAIN_UPDATES = 12, 2  # fewer than for the policy: there are four plain networks
EMULATED_CALLS = 3  # emulated bfloat16 is ten times slower


@dataclass(frozen=True)
class ReadyBatch:
    """A minibatch to train on, with its number of valid steps, and observations [N, ...] to act on."""

    minibatch: MicroBatch
    valid_steps: Tensor
    observation: Tensor
    action_mask: Tensor | None


def make_ready_batches(trainer: PPOTrainer) -> list[ReadyBatch]:
    """Return data from rows that a real iteration has filled."""
    plan, rows, device = trainer.share, trainer.rows, trainer.device
    agents = plan.envs_per_group * plan.num_agents
    generator = torch.Generator().manual_seed(0)
    batches = []
    for _ in range(READY_BATCHES):
        picked = torch.randperm(plan.segments, generator=generator)[: plan.minibatch_segments]
        advantage = torch.randn(rows["value"][: plan.segments].shape, generator=generator).to(rows.device)
        valid_steps = rows["alive"][: plan.segments].sum(dim=(1, 2))
        advantages = Advantages(advantage, advantage, np.zeros(plan.segments), torch.zeros(()), valid_steps)
        minibatch = gather(rows, advantages, picked, np.ones(len(picked), np.float32), device)
        flat = rows["observation"][: plan.segments].flatten(0, 2)
        chosen = torch.randint(len(flat), (agents,), generator=generator)
        mask = rows["action_mask"].flatten(0, 2)[chosen].cpu() if "action_mask" in rows.fields else None
        batches.append(ReadyBatch(minibatch, valid_steps[picked].sum().to(device), flat[chosen].cpu(), mask))
    return batches


class Network:
    """A network that acts and trains on ready data: the policy, or a plain network."""

    def __init__(
        self,
        trainer: PPOTrainer,
        policy: Any,
        effort: Effort,
        actor: Actor,
        updater: GradientsOfRows,
        precision: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self.policy, self.effort, self.autocast = policy, effort, precision
        self.actor, self.updater = actor, updater
        self.plan, self.device = trainer.share, trainer.device
        ppo = trainer.recipe.ppo
        self.coefficients = Coefficients(ppo.clip_coef, ppo.vf_clip_coef, ppo.vf_coef, ppo.ent_coef, ppo.max_grad_norm)
        self.optimizer = make_optimizer(trainer.recipe.ppo, policy)
        self.state = policy.initial_state(self.plan.envs_per_group * self.plan.num_agents, self.device)
        self.generator = torch.Generator(self.device).manual_seed(0)
        self._split: dict[int, list[list[MicroBatch]]] = {}  # by the id of a ReadyBatch

    @staticmethod
    def of_trainer(trainer: PPOTrainer, effort: Effort) -> Network:
        """Return a copy of the trainer's policy, so that training is not affected."""
        policy, config = copy.deepcopy(trainer.policy), trainer.recipe.trainer
        actor, updater = make_actor(policy, config, trainer.device), make_updater(policy, config, trainer.device)
        return Network(trainer, policy, effort, actor, updater, partial(autocast, config, trainer.device))

    def seconds(self, ready: list[ReadyBatch]) -> tuple[float, float]:
        """Return the seconds of acting on all agent steps of an iteration, and of all its updates."""
        return self.acting_seconds(ready), self.training_seconds(ready)

    def acting_seconds(self, ready: list[ReadyBatch]) -> float:
        """Time some forward passes, scaled up to all agent steps of an iteration."""
        total = self.plan.agent_steps / (self.plan.envs_per_group * self.plan.num_agents)
        calls = max(1, min(self.effort.calls, round(total)))
        self.actor.freeze_weights()
        return timed(lambda: self._repeat(self.act, ready, calls)) * total / calls

    def training_seconds(self, ready: list[ReadyBatch]) -> float:
        """Time some updates, scaled up to all of an iteration."""
        total = self.plan.gradient_updates
        updates = max(1, min(self.effort.updates, total))
        return timed(lambda: self._repeat(self.train, ready, updates)) * total / updates

    def act(self, ready: ReadyBatch) -> None:
        """Run one forward pass of one group's agents."""
        mask = None if ready.action_mask is None else ready.action_mask.numpy()
        with self.autocast():
            self.actor.act(ready.observation.numpy(), self.state, mask, self.generator)

    def act_plainly(self, ready: ReadyBatch) -> None:
        """Do the same by the policy itself, whose products torch counts."""
        with self.autocast(), torch.inference_mode():
            observation, state = ready.observation.to(self.device), self.state.clone()
            mask = None if ready.action_mask is None else ready.action_mask.to(self.device)
            self.policy.act(observation, state, action_mask=mask, generator=self.generator)

    def train(self, ready: ReadyBatch) -> None:
        """Run one update on one minibatch."""
        for parameter in self.updater.parameters:
            parameter.grad = None
        for shares in self._shares(ready):
            fresh = [share.some(slice(None)) for share in shares]  # copies, since observations can be taken once only
            self.updater.backward_of(fresh, self.coefficients, ready.valid_steps)
        take_step(self.updater, self.optimizer, self.coefficients.max_grad_norm, [])

    def _shares(self, ready: ReadyBatch) -> list[list[MicroBatch]]:
        """Return the micro-batches of a minibatch, each split between threads; split once per batch."""
        split = self._split.get(id(ready))
        if split is None:
            sequences, split = len(ready.minibatch.reset), []
            each = -(-sequences // self.plan.accumulated_parts)
            for first in range(0, sequences, each):
                edges = self.updater.shares(min(each, sequences - first), self.plan.bptt_horizon, 1)
                split.append([ready.minibatch.some(slice(first + start, first + stop)) for start, stop in edges])
            self._split[id(ready)] = split
        return split

    def _repeat(self, work: Callable[[ReadyBatch], None], ready: list[ReadyBatch], times: int) -> None:
        for k in range(times):
            work(ready[k % len(ready)])
        if self.device.type == "cuda":  # it runs asynchronously
            torch.cuda.synchronize(self.device)


class PlainNetwork(nn.Module):
    """A plain network with the interface of a policy; state [N, S, H], with S = 2 for an LSTM."""

    def __init__(self, spec: EnvSpec, core: str, hidden_size: int, *, one_hot: bool) -> None:
        super().__init__()
        self.one_hot, self.hidden_size, self.states = one_hot, hidden_size, STATES[core]
        self.parts = [(part, PartReader(spec.observation, part)) for part in spec.observation.parts]
        inputs = sum(_numbers(part) * (_codes(part) if one_hot else 1) for part, _ in self.parts)
        self.encoder = nn.Linear(inputs, hidden_size)
        self.core = CORES[core](hidden_size, hidden_size) if core in CORES else nn.Linear(hidden_size, hidden_size)
        self.head: Any = make_head(spec.action)
        self.actions, self.values = nn.Linear(hidden_size, self.head.outputs), nn.Linear(hidden_size, 1)

    def initial_state(self, batch: int, device: torch.device | str = "cpu") -> Tensor:
        return torch.zeros(batch, self.states, self.hidden_size, device=device)

    def act(self, observation: Tensor, state: Tensor, *, action_mask: Tensor | None, generator: torch.Generator) -> Act:
        hidden, state = self._recur(self._features(observation)[None], state)
        action, log_prob = self.head.sample(self.actions(hidden[0]), action_mask, generator, False)
        return Act(action, log_prob, self.values(hidden[0]).squeeze(-1), state)

    def unroll(
        self, observation: Tensor, state: Tensor, reset: Tensor, action: Tensor, *, action_mask: Tensor | None = None
    ) -> Unrolled:
        batch, steps = reset.shape
        features = self._features(observation.transpose(0, 1).flatten(0, 1)).view(steps, batch, -1)
        hidden = self._recur(features, state)[0].transpose(0, 1)
        log_prob, entropy = self.head.evaluate(self.actions(hidden), action, action_mask)
        return Unrolled(log_prob, entropy, self.values(hidden).squeeze(-1))

    def _features(self, observation: Tensor) -> Tensor:
        flat = [self._read(part, reader(observation).flatten(1)) for part, reader in self.parts]
        return torch.relu(self.encoder(flat[0] if len(flat) == 1 else torch.cat(flat, -1)))

    def _read(self, part: Part, values: Tensor) -> Tensor:
        if self.one_hot and _codes(part) > 1:
            return functional.one_hot(values.long(), _codes(part)).flatten(1).float()
        return values.float() / 255 if part.dtype == "uint8" else values.float()

    def _recur(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        if self.states == 0:
            return torch.relu(self.core(features)), state
        states = state[:, : self.states].to(features.dtype).transpose(0, 1)  # a MinGRU may have more layers
        parts = tuple(part.contiguous() for part in states.unsqueeze(1))
        hidden, after = self.core(features, parts if self.states == 2 else parts[0])
        vectors = after if self.states == 2 else (after,)
        return hidden, torch.stack([vector[0] for vector in vectors], dim=1).float()


def plain_networks(trainer: PPOTrainer, effort: Effort) -> dict[str, Network]:
    """Return plain networks of a recipe's sizes, by encoding of observations and by precision (bfloat16 is autocast).

    Both precisions where the processor can do both: without instructions for bfloat16 it is much slower, and the faster one
    is the reference.
    """
    policy, spec, device = trainer.recipe.policy, trainer.vector.spec, trainer.device
    plain_effort = replace(effort, calls=min(effort.calls, PLAIN_CALLS), updates=min(effort.updates, PLAIN_UPDATES))
    emulated_effort = replace(effort, calls=min(effort.calls, EMULATED_CALLS), updates=1)
    on_cpu = device.type == "cpu"
    emulated = on_cpu and not claims_bfloat16(cpu_flags())
    precisions = ("float32",) if on_cpu and not can_use_bfloat16() else ("bfloat16", "float32")
    networks = {}
    for encoding in ("bytes", "one-hot"):
        one_hot = encoding == "one-hot"
        if one_hot and not any(_codes(part) > 1 for part in spec.observation.parts):
            continue
        for precision in precisions:
            enabled = precision == "bfloat16"
            precise = partial(torch.autocast, device.type, dtype=torch.bfloat16, enabled=enabled)
            plain = PlainNetwork(spec, policy.core, policy.hidden_size, one_hot=one_hot).to(device)
            plain_or_emulated = emulated_effort if enabled and emulated else plain_effort
            networks[f"{encoding}, {precision}"] = Network(
                trainer,
                plain,
                plain_or_emulated,
                PolicyActor(plain, device),  # type: ignore[arg-type]  # it is never asked for a value
                Updater(plain, device=device, autocast=precise),
                precise,
            )
    return networks


def _codes(part: Part) -> int:
    """Return the number of codes of a grid's cells; 1 for parts that are not one-hot."""
    return int(part.high) + 1 if part.kind == "grid" and part.high is not None else 1


def _numbers(part: Part) -> int:
    return int(torch.Size(part.shape).numel())
