"""DQN (Mnih et al., 2015) from replay: Double (van Hasselt et al., 2016), n-step, with a hard or a soft target.

    y = R + discount * Q_target(s', argmax_a Q(s', a))       R and discount = gamma^steps as the pond's sample gives them

B transitions
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from millpond.config.mixture import DQNConfig
from millpond.learners.flat_parameters import FlatParameters, RowOptimizer, clip_rows
from millpond.learners.q_network import QNetwork


class TransitionBatch(Protocol):
    """What a pond's sample has: [B, ...] on the learner's device; `discount` is 0 where terminated."""

    observation: Tensor
    next_observation: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor


class DQN:
    """`update(batch)` is one gradient step. `updates` counts them."""

    def __init__(self, network: QNetwork, config: DQNConfig, *, device: torch.device | str = "cpu") -> None:
        self.config, self.device = config, torch.device(device)
        self.network = network.to(self.device)
        self.target = copy.deepcopy(self.network)
        self.online = FlatParameters([self.network])
        self.behind = FlatParameters([self.target], trained=False)
        self.optimizer = RowOptimizer(self.online.data, self.online.grad, rectified=False)
        self.updates = 0

    def update(
        self,
        batch: TransitionBatch,
        reward: Tensor | None = None,
        *,
        parts: int = 1,
        all_reduce: Callable[[Tensor], object] | None = None,
    ) -> dict[str, Tensor]:
        """Learn from transitions; `reward` takes the place of theirs. Returns metrics, scalars on the device.

        `parts`, `all_reduce`: the batch is one of so many equal parts, and others have the rest; what `all_reduce` adds up over
        all of them, in place, are the gradient and the metrics of the whole batch.
        """
        target = self.targets(batch, batch.reward if reward is None else reward)
        q = self.network(self._shown(batch.observation)).gather(1, batch.action.long().view(-1, 1)).squeeze(1)
        loss = loss_of(q - target, self.config.loss) / parts
        self.online.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        means = torch.stack([loss.detach(), q.detach().mean() / parts])
        if all_reduce is not None:  # once for everything: a small sum costs as much as a large one
            together = torch.cat([self.online.grad[0], means])
            all_reduce(together)
            self.online.grad[0].copy_(together[: -len(means)])
            means = together[-len(means) :]
        norm = clip_rows(self.online.grad, self.config.max_grad_norm)
        self.optimizer.step([self.config.learning_rate])
        self.updates += 1
        self._follow()
        return {"q_loss": means[0], "q_value": means[1], "grad_norm": norm[0]}

    @torch.no_grad()
    def targets(self, batch: TransitionBatch, reward: Tensor) -> Tensor:
        """y [B]."""
        then = self._shown(batch.next_observation)
        later = self.target(then)
        if self.config.double:
            best = self.network(then).argmax(-1, keepdim=True)
            future = later.gather(1, best).squeeze(1)
        else:
            future = later.amax(-1)
        return torch.addcmul(reward, batch.discount, future)

    def _shown(self, observation: Tensor) -> Tensor:
        """Frames [B, stack, ...] that a sample put together, as the one observation that the network was built for."""
        return observation.reshape(len(observation), *self.network.observation_shape)

    @torch.no_grad()
    def _follow(self) -> None:
        """Soft: a little of the online network at each update. Hard: all of it, every `target_interval` updates."""
        if self.config.target_tau > 0:
            self.behind.data.lerp_(self.online.data, self.config.target_tau)
        elif self.updates % self.config.target_interval == 0:
            self.behind.data.copy_(self.online.data)

    def start_from(self, network: QNetwork) -> None:
        """Take another network's parameters, with a fresh target and a fresh optimiser."""
        self.network.load_state_dict(network.state_dict())
        self.target.load_state_dict(network.state_dict())
        self.optimizer.reset(0)

    def state_dict(self) -> dict[str, Any]:
        return {
            "network": {name: tensor.clone() for name, tensor in self.network.state_dict().items()},
            "target": {name: tensor.clone() for name, tensor in self.target.state_dict().items()},
            "optimizer": self.optimizer.row_state(0),
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self.target.load_state_dict(state["target"])
        self.optimizer.load_row_state(0, state["optimizer"])
        self.updates = int(state["updates"])


def loss_of(difference: Tensor, kind: str) -> Tensor:
    """Mean over a batch: 0.5 d^2, or Huber's, which is |d| - 0.5 beyond 1."""
    if kind == "huber":
        return torch.nn.functional.huber_loss(difference, torch.zeros_like(difference))
    return 0.5 * difference.square().mean()
