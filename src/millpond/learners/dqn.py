"""DQN (Mnih et al., 2015) from replay: Double (van Hasselt et al., 2016), n-step, with a hard or a soft target.

    y = R + discount * Q_target(s', argmax_a Q(s', a))       R and discount = gamma^steps come with the batch

The maximum is over the actions that are allowed in s', if the batch has their masks. A `GoalBatch` has y itself: returns over
many steps are computed in `returns`.

A partial reset (shrink and perturb; Ash and Adams, 2020) keeps a share of the weights, takes the rest from new initial
weights, all of those of the last layer, and resets the optimiser. Discount and number of steps are annealed after it
(Schwarzer et al., 2023).

A network with memory learns from sequences, from the states that the agents had (R2D2; Kapturowski et al., 2019): the first
steps of each, the burn-in, only bring the state up to date with the current weights.

With `dqn.quantiles` the network has quantiles of the return (QR-DQN; Dabney et al., 2018), and Q is their mean:

    sum over i, mean over j of |tau_i - (d < 0)| huber(d)      d = y_j - theta_i, tau_i = (2 i + 1) / (2 N)

B transitions   N quantiles   T steps   k sequences   S state vectors   H hidden
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from millpond.config.mixture import DQNConfig
from millpond.devices import saved
from millpond.learners.flat_parameters import FlatParameters, RowOptimizer, clip_rows
from millpond.learners.q_network import LearnerError, QNetwork, with_mask
from millpond.schedules import geometric, named

LAST_LAYER = "output."
ANNEALING_STEP = 32  # updates for which discount and number of steps stay the same
UPDATES_AT_ONCE = (
    32  # threads are started once for all of them, and their batches are drawn and sent to a device together
)


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


@dataclass(frozen=True)
class GoalBatch:
    """Transitions [B, ...] whose reward is the whole return; `column` has provenance. `weight`: importance; None: all 1."""

    observation: Tensor
    action: Tensor
    reward: Tensor
    column: dict[str, Tensor]
    weight: Tensor | None = None


@dataclass(frozen=True)
class SequenceBatch:
    """Steps [T, k, ...] of k sequences, for a network with memory; `reward` is the whole return.

    `state` is that before the first step; where `reset`, an episode begins. `valid` steps are learned from: not the burn-in,
    which is the first `burn_in` steps, and not those after the end of a short sequence. `column` has their provenance.
    """

    observation: Tensor
    state: Tensor  # [k, S, H]
    reset: Tensor
    action: Tensor
    reward: Tensor
    valid: Tensor
    burn_in: int
    column: dict[str, Tensor]


Replayed = TransitionBatch | GoalBatch | SequenceBatch


class DQNUpdates(Protocol):
    """Compiled versions of what a DQN computes; see `millpond.fast`."""

    def gradient(self, batch: TransitionBatch | GoalBatch, reward: Tensor, parts: int) -> Tensor:
        """Write the gradient into `online.grad`; return loss and mean Q [2], both divided by `parts`."""

    def updates(
        self, batches: Sequence[TransitionBatch | GoalBatch], rewards: Sequence[Tensor]
    ) -> Sequence[Mapping[str, Any]]:
        """Take one gradient step per batch; return metrics of each, up to one that is not finite."""

    def values(self, observation: Tensor, *, target: bool) -> Tensor:
        """Return Q [N, actions] of the online network, or of the target."""


class DQN:
    """`update(batch)` is one gradient step, `update_all(batches)` one for each. `updates` counts them.

    `total_updates`  of the whole run: the length of the learning rate's schedule
    `compiled`       returns a faster version of the updates, or None if there is none for this network
    `initial`        returns new initial weights for partial reset number 1, 2, ...; needed with `dqn.reset_every`

    `mean` is the network to act with and to clone. With `dqn.mean_decay` it has the exponential mean of the weights, with
    `dqn.quantiles` one output per action, the mean of its quantiles; else it is `network`.
    """

    def __init__(
        self,
        network: QNetwork,
        config: DQNConfig,
        *,
        device: torch.device | str = "cpu",
        total_updates: int = 0,
        compiled: Callable[[DQN], DQNUpdates | None] | None = None,
        initial: Callable[[int], QNetwork] | None = None,
    ) -> None:
        self.config, self.device, self._initial = config, torch.device(device), initial
        if config.reset_every is not None and initial is None:
            raise LearnerError("dqn.reset_every needs `initial`, new initial weights for each partial reset")
        self.network = network.to(self.device)
        self.target = copy.deepcopy(self.network)
        self.online = FlatParameters([self.network])
        self.target_parameters = FlatParameters([self.target], trained=False)
        self.mean, self._mean_parameters = self.network, self.online
        if config.quantiles is not None:
            if self.network.quantiles != config.quantiles:
                raise LearnerError(
                    f"dqn.quantiles={config.quantiles}, but the network has {self.network.quantiles}; build it with as many"
                )
            self.mean = copy.deepcopy(self.network).without_quantiles()
        elif config.mean_decay is not None:
            self.mean = copy.deepcopy(self.network)
        if self.mean is not self.network:
            self._mean_parameters = FlatParameters([self.mean], trained=False)
        self.optimizer = RowOptimizer(
            self.online.data,
            self.online.grad,
            rectified=config.optimizer == "radam",
            weight_decay=config.weight_decay,
        )
        self.total_updates, self.updates = total_updates, 0
        self._compiled = None if compiled is None else compiled(self)

    @property
    def updates_at_once(self) -> int:
        """Number of batches that are best passed to `update_all` together."""
        return 1 if self._compiled is None and self.device.type == "cpu" else UPDATES_AT_ONCE

    def update_all(self, batches: Sequence[Replayed]) -> Sequence[Mapping[str, Any]]:
        """Learn from batches of one size, one after the other; return metrics of each.

        Compiled updates stop after one whose metrics are not finite. With a mean of the weights, which moves after each
        update, they are called one by one.
        """
        if self._compiled is None or self.config.mean_decay is not None:
            return [self.update(batch) for batch in batches]
        done: list[Mapping[str, Any]] = []
        while len(done) < len(batches):
            self._reset_if_due()
            count = self._updates_before_reset()
            now = [self._without_memory(batch) for batch in batches[len(done) : len(done) + count]]
            metrics = self._compiled.updates(now, [batch.reward for batch in now])
            done += metrics
            if len(metrics) < len(now):
                break
        return done

    def update(
        self,
        batch: Replayed,
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
        self._reset_if_due()
        if self._compiled is not None and all_reduce is None:
            (metrics,) = self._compiled.updates([self._without_memory(batch)], [reward])
            self._update_mean()
            return dict(metrics)
        if self._compiled is None:
            means = self._gradient(batch, reward, parts)
        else:
            means = self._compiled.gradient(self._without_memory(batch), reward, parts)
        if all_reduce is not None:  # one call for everything: a small one costs as much as a large one
            together = torch.cat([self.online.grad[0], means])
            all_reduce(together)
            self.online.grad[0].copy_(together[: -len(means)])
            means = together[-len(means) :]
        norm = clip_rows(self.online.grad, self.config.max_grad_norm)
        self.optimizer.step([self.learning_rate()])
        self.updates += 1
        self._update_target()
        self._update_mean()
        return {"q_loss": means[0], "q_value": means[1], "grad_norm": norm[0]}

    @staticmethod
    def _without_memory(batch: Replayed) -> TransitionBatch | GoalBatch:
        assert not isinstance(batch, SequenceBatch)  # networks with memory are not compiled
        return batch

    def _gradient(self, batch: Replayed, reward: Tensor, parts: int) -> Tensor:
        """Compute the gradient of the loss; return loss and mean Q [2]."""
        if isinstance(batch, SequenceBatch):  # steps that are not valid count as 0 in both means
            share = batch.valid.float().mean().clamp(min=1e-6)
            q, target = self._unroll(batch) * batch.valid / share, reward * batch.valid
            loss = td_loss(q * share - target, self.config.loss) / share / parts
        elif self.network.quantiles > 1:
            q, loss = self._quantile_loss(batch, reward)
            loss = loss / parts
        else:
            target = self.targets(batch, reward)
            q_of_actions = self.network(self._as_network_input(batch.observation))
            q = q_of_actions.gather(1, batch.action.long().view(-1, 1)).squeeze(1)
            weight = batch.weight if isinstance(batch, GoalBatch) else None
            loss = td_loss(q - target, self.config.loss, weight) / parts
        self.online.backward(loss)
        return torch.stack([loss.detach(), q.detach().mean() / parts])

    def _quantile_loss(self, batch: TransitionBatch | GoalBatch, reward: Tensor) -> tuple[Tensor, Tensor]:
        """Return Q [B] of the actions, and the loss."""
        with torch.no_grad():
            if isinstance(batch, GoalBatch):
                target = reward.unsqueeze(1)  # [B, 1]: one sample of the return
            else:
                following = self._as_network_input(batch.next_observation)
                of_target = self.target.of_quantiles(following)  # [B, actions, N]
                chosen_by = self.network(following) if self.config.double else of_target.mean(-1)
                best = with_mask(chosen_by, batch.next_action_mask).argmax(-1)
                future = of_target[torch.arange(len(best), device=best.device), best]
                target = torch.addcmul(reward.unsqueeze(1), batch.discount.unsqueeze(1), future)
        of_actions = self.network.of_quantiles(self._as_network_input(batch.observation))
        action = batch.action.long().view(-1, 1, 1).expand(-1, 1, self.network.quantiles)
        quantiles = of_actions.gather(1, action).squeeze(1)  # [B, N]
        weight = batch.weight if isinstance(batch, GoalBatch) else None
        return quantiles.mean(1), quantile_loss(quantiles, target, weight)

    def _unroll(self, batch: SequenceBatch) -> Tensor:
        """Return Q [T, k] of the actions after the burn-in, and 0 in it."""
        first, state = batch.burn_in, batch.state
        if first:
            _, states = self.network.play(batch.observation[:first], state, batch.reset[:first])
            state = states[-1]
        q = self.network.unroll(batch.observation[first:], state, batch.reset[first:])
        q = q.gather(2, batch.action[first:].long().unsqueeze(-1)).squeeze(2)
        return torch.cat([torch.zeros_like(batch.reward[:first]), q])

    @torch.no_grad()
    def targets(self, batch: TransitionBatch | GoalBatch, reward: Tensor) -> Tensor:
        """Return y [B]."""
        if isinstance(batch, GoalBatch):
            return reward
        next_observation = self._as_network_input(batch.next_observation)
        target_q = self.target(next_observation)
        if self.config.double:
            best = with_mask(self.network(next_observation), batch.next_action_mask).argmax(-1, keepdim=True)
            future = target_q.gather(1, best).squeeze(1)
        else:
            future = with_mask(target_q, batch.next_action_mask).amax(-1)
        return torch.addcmul(reward, batch.discount, future)

    @torch.no_grad()
    def values(self, observation: Tensor, *, target: bool) -> Tensor:
        """Return Q [N, actions] of the online network, or of the target, for observations or stacks of frames."""
        if self._compiled is not None:
            return self._compiled.values(observation, target=target)
        q: Tensor = (self.target if target else self.network)(self._as_network_input(observation))
        return q

    # -- partial resets and annealing: functions of the number of updates

    @property
    def resets(self) -> int:
        """Number of partial resets that are due so far: none in the last `reset_every` updates of the run."""
        every = self.config.reset_every
        return 0 if every is None else max(0, min(self.updates // every, self.total_updates // every - 1))

    @property
    def since_reset(self) -> int:
        """Updates since the last partial reset, or since the start."""
        return self.updates - self.resets * (self.config.reset_every or 0)

    def _updates_before_reset(self) -> int:
        every = self.config.reset_every
        return self.total_updates + UPDATES_AT_ONCE if every is None else every - self.updates % every

    @torch.no_grad()
    def _reset_if_due(self) -> None:
        """Reset partially before the first update after `reset_every` of them."""
        if self._initial is None or self.resets == 0 or self.since_reset > 0:
            return
        new = self._initial(self.resets).to(self.device).state_dict()
        keep = self.config.reset_keep
        for network in (self.network, self.target):
            for name, parameter in network.named_parameters():
                parameter.lerp_(new[name], 1.0 if name.startswith(LAST_LAYER) else 1 - keep)
        self.optimizer.reset(0)

    @property
    def _annealed(self) -> float:
        """Progress of the annealing, in steps of `ANNEALING_STEP` updates, so that batches drawn together have the same."""
        return min(1.0, self.since_reset // ANNEALING_STEP * ANNEALING_STEP / self.config.anneal_over)

    @property
    def gamma(self) -> float:
        """The discount factor now; 1 - gamma is annealed geometrically."""
        config = self.config
        if config.gamma_from is None:
            return config.gamma
        return 1 - geometric(1 - config.gamma_from, 1 - config.gamma, over=1.0)(self._annealed)

    @property
    def n_step(self) -> int:
        """The number of rewards to sum now, annealed geometrically."""
        config = self.config
        if config.n_step_from is None:
            return config.n_step
        return round(geometric(config.n_step_from, config.n_step, over=1.0)(self._annealed))

    def updates_with_same_targets(self, most: int) -> int:
        """Return how many of the next `most` updates have the same discount and number of steps; at most those `at_once`."""
        most = min(most, self.updates_at_once)
        if self.config.gamma_from is None and self.config.n_step_from is None:
            return most
        return min(most, ANNEALING_STEP - self.since_reset % ANNEALING_STEP, self._updates_before_reset())

    @property
    def target_is_online(self) -> bool:
        """True if the target network always equals the online network."""
        return self.config.target_tau == 1

    @property
    def needs_both(self) -> bool:
        """True if the online network chooses the actions that another one, the target network, values."""
        return self.config.double and not self.target_is_online

    def learning_rate(self, updates: int | None = None) -> float:
        """Return the learning rate after so many updates; None: now."""
        progress = (self.updates if updates is None else updates) / max(1, self.total_updates)
        return named(self.config.lr_schedule, self.config.learning_rate, over=1.0)(progress)

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

    @torch.no_grad()
    def _update_mean(self) -> None:
        if self.config.quantiles is not None:
            self.mean.pull(self.network, 1 - (self.config.mean_decay or 0.0))
        elif self.config.mean_decay is not None:
            self._mean_parameters.data.lerp_(self.online.data, 1 - self.config.mean_decay)

    def start_from(self, network: QNetwork) -> None:
        """Copy another network's parameters, and reset the target, the mean and the optimiser."""
        for own in (self.network, self.target, self.mean):
            own.pull(network)
        self.optimizer.reset(0)

    def state_dict(self) -> dict[str, Any]:
        return {
            "network": _copy(self.network),
            "target": _copy(self.target),
            "mean": None if self.mean is self.network else _copy(self.mean),
            "optimizer": self.optimizer.row_state(0),
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self.target.load_state_dict(state["target"])
        self.mean.load_state_dict(state.get("mean") or state["network"])  # states of earlier versions have none
        self.optimizer.load_row_state(0, state["optimizer"])
        self.updates = int(state["updates"])


def _copy(network: QNetwork) -> dict[str, Tensor]:
    return {name: saved(tensor) for name, tensor in network.state_dict().items()}


def td_loss(difference: Tensor, kind: str, weight: Tensor | None = None) -> Tensor:
    """Return the mean over a batch of 0.5 d^2, or of Huber's loss, which is |d| - 0.5 beyond 1; each times its weight."""
    if weight is not None:
        size = difference.abs()
        each = torch.where(size < 1, 0.5 * size.square(), size - 0.5) if kind == "huber" else 0.5 * size.square()
        return (weight * each).mean()
    if kind == "huber":
        return torch.nn.functional.huber_loss(difference, torch.zeros_like(difference))
    return 0.5 * difference.square().mean()


def quantile_loss(quantiles: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the loss of quantiles theta [B, N] against samples y [B, M] of the return, the mean over a batch."""
    count = quantiles.shape[1]
    tau = (2 * torch.arange(count, device=quantiles.device) + 1) / (2 * count)
    difference = target.unsqueeze(1) - quantiles.unsqueeze(2)  # [B, N, M]
    size = difference.abs()
    huber = torch.where(size < 1, 0.5 * size.square(), size - 0.5)
    each = ((tau.view(1, -1, 1) - (difference.detach() < 0).float()).abs() * huber).mean(2).sum(1)
    return each.mean() if weight is None else (weight * each).mean()
