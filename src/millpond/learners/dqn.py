"""DQN (Mnih et al., 2015) from replay: Double (van Hasselt et al., 2016), n-step, with a hard or a soft target.

    y = R + discount * Q_target(s', argmax_a Q(s', a))       R and discount = gamma^steps come with the batch

The maximum is over the actions that are allowed in s', if the batch has their masks.

B transitions
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from millpond.config.mixture import DQNConfig
from millpond.learners.flat_parameters import FlatParameters, RowOptimizer, clip_rows
from millpond.learners.q_network import QNetwork, with_mask

UPDATES_AT_ONCE = 32  # of compiled updates: threads are started once for all of them


class TransitionBatch(Protocol):
    """Transitions [B, ...] on the learner's device, for example a `PondBatch`; `discount` is 0 where terminated.

    `next_action_mask` [B, actions] is true for the actions that are allowed in the next observation; None: all are.
    """

    observation: Tensor
    next_observation: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    next_action_mask: Tensor | None


class DQNUpdates(Protocol):
    """Compiled versions of what a DQN computes; see `millpond.fast`."""

    def gradient(self, batch: TransitionBatch, reward: Tensor, parts: int) -> Tensor:
        """Write the gradient into `online.grad`; return loss and mean Q [2], both divided by `parts`."""

    def updates(self, batches: Sequence[TransitionBatch], rewards: Sequence[Tensor]) -> Sequence[Mapping[str, Any]]:
        """Take one gradient step per batch; return metrics of each, up to one that is not finite."""


class DQN:
    """`update(batch)` is one gradient step, `update_all(batches)` one for each. `updates` counts them.

    `compiled` returns a faster version of the updates, or None if there is none for this network.
    """

    def __init__(
        self,
        network: QNetwork,
        config: DQNConfig,
        *,
        device: torch.device | str = "cpu",
        compiled: Callable[[DQN], DQNUpdates | None] | None = None,
    ) -> None:
        self.config, self.device = config, torch.device(device)
        self.network = network.to(self.device)
        self.target = copy.deepcopy(self.network)
        self.online = FlatParameters([self.network])
        self.target_parameters = FlatParameters([self.target], trained=False)
        self.optimizer = RowOptimizer(self.online.data, self.online.grad, rectified=False)
        self.updates = 0
        self._compiled = None if compiled is None else compiled(self)

    @property
    def updates_at_once(self) -> int:
        """Number of batches that are best passed to `update_all` together."""
        return 1 if self._compiled is None else UPDATES_AT_ONCE

    def update_all(self, batches: Sequence[TransitionBatch]) -> Sequence[Mapping[str, Any]]:
        """Learn from batches of one size, one after the other; return metrics of each.

        Compiled updates stop after one whose metrics are not finite.
        """
        if self._compiled is not None:
            return self._compiled.updates(batches, [batch.reward for batch in batches])
        return [self.update(batch) for batch in batches]

    def update(
        self,
        batch: TransitionBatch,
        reward: Tensor | None = None,
        *,
        parts: int = 1,
        all_reduce: Callable[[Tensor], object] | None = None,
    ) -> dict[str, Any]:
        """Learn from transitions; `reward` replaces theirs. Returns metrics, numbers or scalars on the device.

        `parts`, `all_reduce`: this batch is one of `parts` equal parts, one per rank; `all_reduce` sums gradient and metrics
        over all of them, in place.
        """
        reward = batch.reward if reward is None else reward
        if self._compiled is not None and all_reduce is None:
            return dict(self._compiled.updates([batch], [reward])[0])
        gradient = self._gradient if self._compiled is None else self._compiled.gradient
        means = gradient(batch, reward, parts)
        if all_reduce is not None:  # one call for everything: a small one costs as much as a large one
            together = torch.cat([self.online.grad[0], means])
            all_reduce(together)
            self.online.grad[0].copy_(together[: -len(means)])
            means = together[-len(means) :]
        norm = clip_rows(self.online.grad, self.config.max_grad_norm)
        self.optimizer.step([self.config.learning_rate])
        self.updates += 1
        self._update_target()
        return {"q_loss": means[0], "q_value": means[1], "grad_norm": norm[0]}

    def _gradient(self, batch: TransitionBatch, reward: Tensor, parts: int) -> Tensor:
        """Compute the gradient of the loss; return loss and mean Q [2]."""
        target = self.targets(batch, reward)
        q_of_actions = self.network(self._as_network_input(batch.observation))
        q = q_of_actions.gather(1, batch.action.long().view(-1, 1)).squeeze(1)
        loss = td_loss(q - target, self.config.loss) / parts
        self.online.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        return torch.stack([loss.detach(), q.detach().mean() / parts])

    @torch.no_grad()
    def targets(self, batch: TransitionBatch, reward: Tensor) -> Tensor:
        """Return y [B]."""
        next_observation = self._as_network_input(batch.next_observation)
        target_q = self.target(next_observation)
        if self.config.double:
            best = with_mask(self.network(next_observation), batch.next_action_mask).argmax(-1, keepdim=True)
            future = target_q.gather(1, best).squeeze(1)
        else:
            future = with_mask(target_q, batch.next_action_mask).amax(-1)
        return torch.addcmul(reward, batch.discount, future)

    def _as_network_input(self, observation: Tensor) -> Tensor:
        """Reshape stacks of frames [B, stack, ...] to the observation that the network was built for."""
        return observation.reshape(len(observation), *self.network.observation_shape)

    def target_step(self, updates: int) -> float:
        """Return the weight of the online network in the target's update number `updates`.

        Soft: a small step at each update. Hard: a copy every `target_interval` updates.
        """
        if self.config.target_tau > 0:
            return self.config.target_tau
        return float(updates % self.config.target_interval == 0)

    @torch.no_grad()
    def _update_target(self) -> None:
        weight = self.target_step(self.updates)
        if weight == 1:
            self.target_parameters.data.copy_(self.online.data)
        elif weight > 0:
            self.target_parameters.data.lerp_(self.online.data, weight)

    def start_from(self, network: QNetwork) -> None:
        """Copy another network's parameters, and reset the target and the optimiser."""
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


def td_loss(difference: Tensor, kind: str) -> Tensor:
    """Return the mean over a batch of 0.5 d^2, or of Huber's loss, which is |d| - 0.5 beyond 1."""
    if kind == "huber":
        return torch.nn.functional.huber_loss(difference, torch.zeros_like(difference))
    return 0.5 * difference.square().mean()
