"""SAC (Haarnoja et al., 2018) for continuous actions: a squashed Gaussian actor, twin critics, automatic temperature.

    y        = r + discount * (min_k Q'_k(s', a') - alpha log pi(a'|s'))          a' ~ pi(s')
    critics  sum over k of mean (Q_k(s, a) - y)^2
    actor    mean (alpha log pi(a|s) - min_k Q_k(s, a))                           a ~ pi(s)
    alpha    mean -log(alpha) (log pi(a|s) + target entropy)

The twins are two rows of one matrix and are computed in one operation per layer: for small networks the number of
operations determines the cost.

B transitions   D numbers per action   K networks
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from millpond.devices import make_generator, saved
from millpond.envs.spec import ActionSpec, ObservationSpec
from millpond.learners.dqn import TransitionBatch
from millpond.learners.flat_parameters import FlatParameters, RowOptimizer
from millpond.learners.q_network import LearnerError
from millpond.policies.policy import Act

LAYERS = ("0", "2", "4")
LOG_DEVIATION = (-20.0, 2.0)  # its limits, as in the reference implementation


def mlp(inputs: int, hidden_size: int, outputs: int) -> nn.Sequential:
    """Return a network inputs -> hidden -> hidden -> outputs, with ReLU."""
    return nn.Sequential(
        nn.Linear(inputs, hidden_size),
        nn.ReLU(),
        nn.Linear(hidden_size, hidden_size),
        nn.ReLU(),
        nn.Linear(hidden_size, outputs),
    )


class StackedMLP:
    """The networks of a parameter matrix, each an `mlp` with one output, on the same inputs [B, inputs] -> [K, B]."""

    def __init__(self, parameters: FlatParameters) -> None:
        self.parameters = parameters
        self.stacked = parameters.stacked()
        self.frozen = {name: tensor.detach() for name, tensor in self.stacked.items()}

    def __call__(self, inputs: Tensor, *, frozen: bool = False) -> Tensor:
        """Evaluate all networks. `frozen`: gradients flow to the inputs only."""
        weights = self.frozen if frozen or not torch.is_grad_enabled() else self.stacked
        hidden = inputs.expand(len(self.parameters.networks), *inputs.shape)
        for layer in LAYERS:
            weight, bias = weights[f"{layer}.weight"], weights[f"{layer}.bias"]
            hidden = torch.baddbmm(bias.unsqueeze(1), hidden, weight.transpose(1, 2))
            if layer != LAYERS[-1]:
                hidden = hidden.relu_()
        return hidden.squeeze(-1)

    def backward(self, loss: Tensor) -> None:
        """Compute the networks' gradients from a loss of a call that was not frozen."""
        self.parameters.put_gradients(torch.autograd.grad(loss, list(self.stacked.values())))


class SACActor(nn.Module):
    """Observations [B, ...] -> actions within [low, high], tanh of a Gaussian. It has the interface of a policy."""

    centre: Tensor
    reach: Tensor

    def __init__(self, observation: ObservationSpec, action: ActionSpec, hidden_size: int) -> None:
        super().__init__()
        low, high = torch.tensor(action.low), torch.tensor(action.high)
        if action.kind != "continuous" or not bool((low.isfinite() & high.isfinite() & (low < high)).all()):
            raise LearnerError(
                f"SAC needs continuous actions with finite bounds; these are {action.kind}, low {action.low}, "
                f"high {action.high}"
            )
        if any(part.kind != "vector" for part in observation.parts) or observation.dtype != "float32":
            raise LearnerError(
                f"SAC needs vectors of float32; this environment's are {observation.dtype} of shape {observation.shape}"
            )
        self.register_buffer("centre", (low + high) / 2)
        self.register_buffer("reach", (high - low) / 2)
        self.layers = mlp(math.prod(observation.shape), hidden_size, 2 * len(action.low))

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation [B, D] before tanh."""
        mean, log_deviation = self.layers(observation.flatten(1)).chunk(2, -1)
        return mean, log_deviation.clamp(*LOG_DEVIATION)

    def sample(self, observation: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Draw actions [B, D] and return them with their log-probabilities [B], both differentiable."""
        mean, log_deviation = self(observation)
        noise = torch.empty_like(mean).normal_(generator=generator)
        before = torch.addcmul(mean, noise, log_deviation.exp())
        # log(1 - tanh(x)^2) = 2 (log 2 - x - softplus(-2 x)), which does not overflow
        squash = 2 * (math.log(2) - before - F.softplus(-2 * before))
        each = -0.5 * noise.square() - log_deviation - 0.5 * math.log(2 * math.pi) - squash - self.reach.log()
        return torch.addcmul(self.centre, before.tanh(), self.reach), each.sum(-1)

    def initial_state(self, batch: int, device: torch.device | str = "cpu") -> Tensor:
        """Return an empty state [B, 0, 0]: the actor is not recurrent."""
        return torch.zeros(batch, 0, 0, device=device)

    @torch.no_grad()
    def act(
        self,
        observation: Tensor,
        state: Tensor,
        *,
        action_mask: Tensor | None = None,
        generator: torch.Generator | None = None,
        deterministic: bool = False,
    ) -> Act:
        """Draw an action, or return tanh of the mean if deterministic; the value is 0."""
        if deterministic:
            action = torch.addcmul(self.centre, self(observation)[0].tanh(), self.reach)
            log_prob = torch.zeros(action.shape[0], device=action.device)
        else:
            action, log_prob = self.sample(observation, generator)
        return Act(action, log_prob, torch.zeros_like(log_prob), state)


class SACUpdates(Protocol):
    """Compiled actions and updates; see `millpond.fast`."""

    def act(self, observation: Tensor, *, deterministic: bool) -> Tensor:
        """Return actions [B, D], drawn with the learner's generator."""

    def updates(self, batches: Sequence[TransitionBatch], rewards: Sequence[Tensor]) -> Sequence[Mapping[str, Any]]:
        """Take one gradient step per batch; return metrics of each, up to one that is not finite."""


class SAC:
    """`update(batch)` is one gradient step of critics, actor and temperature, `update_all(batches)` one for each.

    `updates` counts them. `compiled` returns a faster version of actions and updates, or None if there is none.
    """

    def __init__(
        self,
        observation: ObservationSpec,
        action: ActionSpec,
        *,
        seed: int,
        hidden_size: int = 256,
        learning_rate: float = 3e-4,
        target_tau: float = 0.005,
        target_entropy: float | None = None,
        device: torch.device | str = "cpu",
        compiled: Callable[[SAC], SACUpdates | None] | None = None,
    ) -> None:
        self.device = torch.device(device)
        self.learning_rate, self.target_tau = learning_rate, target_tau
        self.generator = make_generator(self.device, seed)
        first = torch.Generator().manual_seed(seed)  # weights are drawn on the CPU, so that devices agree
        self.actor = SACActor(observation, action, hidden_size)
        inputs = math.prod(observation.shape) + len(action.low)
        twins = [mlp(inputs, hidden_size, 1) for _ in range(2)]
        targets = [mlp(inputs, hidden_size, 1) for _ in range(2)]
        for layers in (self.actor.layers, *twins):
            _draw_weights(layers, first)
        for target, twin in zip(targets, twins, strict=True):
            target.load_state_dict(twin.state_dict())
        self.actor.to(self.device)
        self.policy = FlatParameters([self.actor])
        self.critics = FlatParameters([twin.to(self.device) for twin in twins])
        self.target_parameters = FlatParameters([target.to(self.device) for target in targets], trained=False)
        self._q, self._target_q = StackedMLP(self.critics), StackedMLP(self.target_parameters)
        self.target_entropy = -float(len(action.low)) if target_entropy is None else target_entropy
        self.log_alpha = torch.zeros(1, 1, device=self.device)
        self._log_alpha_grad = torch.zeros_like(self.log_alpha)
        self.optimizers = {
            "policy": RowOptimizer(self.policy.data, self.policy.grad, rectified=False),
            "critics": RowOptimizer(self.critics.data, self.critics.grad, rectified=False),
            "alpha": RowOptimizer(self.log_alpha, self._log_alpha_grad, rectified=False),
        }
        self.updates = 0
        self._compiled = None if compiled is None else compiled(self)

    def act(self, observation: Tensor, *, deterministic: bool = False) -> Tensor:
        """Return actions [B, D], drawn with the learner's generator."""
        if self._compiled is not None:
            return self._compiled.act(observation, deterministic=deterministic)
        state = self.actor.initial_state(len(observation), self.device)
        return self.actor.act(observation, state, generator=self.generator, deterministic=deterministic).action

    def update_all(self, batches: Sequence[TransitionBatch]) -> Sequence[Mapping[str, Any]]:
        """Learn from batches of one size, one after the other; return metrics of each.

        Compiled updates stop after one whose metrics are not finite.
        """
        if self._compiled is not None:
            return self._compiled.updates(batches, [batch.reward for batch in batches])
        return [self.update(batch) for batch in batches]

    def update(self, batch: TransitionBatch, reward: Tensor | None = None) -> dict[str, Any]:
        """Learn from transitions; `reward` replaces theirs. Returns metrics, numbers or scalars on the device."""
        if self._compiled is not None:
            return dict(self._compiled.updates([batch], [batch.reward if reward is None else reward])[0])
        alpha = self.log_alpha.exp()[0, 0]
        target = self._targets(batch, batch.reward if reward is None else reward, alpha)
        critic_loss, q = self._train_critics(batch, target)
        actor_loss, log_prob = self._train_actor(batch, alpha)
        self._log_alpha_grad.fill_(-(log_prob + self.target_entropy).mean())
        self.optimizers["alpha"].step([self.learning_rate])
        with torch.no_grad():
            self.target_parameters.data.lerp_(self.critics.data, self.target_tau)
        self.updates += 1
        return {
            "q_loss": critic_loss,
            "q_value": q,
            "policy_loss": actor_loss,
            "entropy": -log_prob.mean(),
            "alpha": alpha,
        }

    @torch.no_grad()
    def _targets(self, batch: TransitionBatch, reward: Tensor, alpha: Tensor) -> Tensor:
        action, log_prob = self.actor.sample(batch.next_observation, self.generator)
        future = self._target_q(_inputs(batch.next_observation, action)).amin(0) - alpha * log_prob
        return torch.addcmul(reward, batch.discount, future)

    def _train_critics(self, batch: TransitionBatch, target: Tensor) -> tuple[Tensor, Tensor]:
        q = self._q(_inputs(batch.observation, batch.action))  # [2, B]
        loss = (q - target).square().mean(1).sum()
        self._q.backward(loss)
        self.optimizers["critics"].step([self.learning_rate] * 2)
        return loss.detach(), q.detach().mean()

    def _train_actor(self, batch: TransitionBatch, alpha: Tensor) -> tuple[Tensor, Tensor]:
        action, log_prob = self.actor.sample(batch.observation, self.generator)
        q = self._q(_inputs(batch.observation, action), frozen=True).amin(0)
        loss = (alpha * log_prob - q).mean()
        self.policy.backward(loss)
        self.optimizers["policy"].step([self.learning_rate])
        return loss.detach(), log_prob.detach()

    def state_dict(self) -> dict[str, Any]:
        rows = {
            name: [optimizer.row_state(row) for row in range(len(optimizer.updates))]
            for name, optimizer in self.optimizers.items()
        }
        matrices = {"policy": self.policy.data, "critics": self.critics.data, "behind": self.target_parameters.data}
        return {
            "matrices": {name: saved(matrix) for name, matrix in matrices.items()},
            "log_alpha": saved(self.log_alpha),
            "optimizers": rows,
            "generator": self.generator.get_state(),
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, flat in (("policy", self.policy), ("critics", self.critics), ("behind", self.target_parameters)):
            saved = state["matrices"][name]
            if saved.shape != flat.data.shape:
                raise LearnerError(f"the saved {name} are {tuple(saved.shape)}, these {tuple(flat.data.shape)}")
            flat.data.copy_(saved)
        self.log_alpha.copy_(state["log_alpha"])
        for name, optimizer in self.optimizers.items():
            for row, saved in enumerate(state["optimizers"][name]):
                optimizer.load_row_state(row, saved)
        self.generator.set_state(state["generator"])
        self.updates = int(state["updates"])


def _inputs(observation: Tensor, action: Tensor) -> Tensor:
    return torch.cat([observation.flatten(1), action], dim=1)


def _draw_weights(layers: nn.Sequential, generator: torch.Generator) -> None:
    """Draw weights as torch does by default, uniform within 1 / sqrt(inputs), from a generator."""
    for layer in layers:
        if isinstance(layer, nn.Linear):
            bound = 1 / math.sqrt(layer.in_features)
            nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
            nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
