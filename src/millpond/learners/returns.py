"""Returns over the steps of blocks drawn from replay, recomputed with a learner's current networks.

    q_lambda   Peng's Q(lambda): the returns of PQN, whatever policy chose the actions
    retrace    the same, but an action that is not greedy now ends the trace

Both bootstrap from the target network: M(s) = Q_target(s, argmax_a Q(s, a)) with `dqn.double`, else the largest of Q_target.

With memory, the networks are unrolled along each block from the state that the agent had there.

N steps   T steps of a block   k blocks   B transitions of a batch   S state vectors   H hidden
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from millpond.kernels.lambda_return import lambda_return_numba, lambda_return_torch
from millpond.kernels.retrace import retrace_numba, retrace_torch
from millpond.learners.dqn import DQN, GoalBatch, SequenceBatch
from millpond.learners.q_network import QNetwork, with_mask
from millpond.replay.blocks import BlockBatch
from millpond.replay.schema import ACTION_MASK, STATE

SMALLEST_ERROR = 1e-3  # added to the size of every error, so that each step can be drawn


@dataclass(frozen=True)
class Observations:
    """Observations [N, ...] without their masks, and the masks [N, actions]; None: there are none."""

    frames: Tensor
    mask: Tensor | None

    @staticmethod
    def of(observation: Tensor | dict[str, Tensor], *, stacked: bool) -> Observations:
        """Separate the masks from observations of a pond; `stacked`: they are stacks of frames."""
        if not isinstance(observation, dict) or set(observation) != {"observation", ACTION_MASK}:
            assert isinstance(observation, Tensor)
            return Observations(observation, None)
        mask = observation[ACTION_MASK]
        return Observations(observation["observation"], mask[:, -1] if stacked else mask)

    def __getitem__(self, where: Tensor) -> Observations:
        return Observations(self.frames[where], None if self.mask is None else self.mask[where])


@dataclass(frozen=True)
class Grid:
    """Steps [N] of blocks as arrays [T, k]."""

    place: Tensor
    shape: tuple[int, int]

    def __call__(self, values: Tensor, fill: float = 0) -> Tensor:
        """Return values [N, ...] as [T, k, ...], `fill` after the end of a short block."""
        length, count = self.shape
        out = torch.full((length * count, *values.shape[1:]), fill, dtype=values.dtype, device=values.device)
        out[self.place] = values
        return out.view(length, count, *values.shape[1:])

    def flat(self, values: Tensor) -> Tensor:
        """Return values [T, k, ...] as [N, ...]."""
        return values.flatten(0, 1)[self.place]


@torch.no_grad()
def block_returns(dqn: DQN, blocks: BlockBatch, *, stacked: bool = False) -> Tensor:
    """Return G [N] of every step of the blocks."""
    steps, config = blocks.steps, dqn.config
    now = Observations.of(steps.observation, stacked=stacked)
    then = Observations.of(steps.next_observation, stacked=stacked)
    # The last step of a block bootstraps as a truncated one does.
    truncated = (steps.truncated | blocks.last) & ~steps.terminated
    where, grid = blocks.bootstraps, Grid(blocks.place, blocks.shape)
    if dqn.network.states:
        along = Memory.of(dqn, blocks, grid)
        q, value, greedy, states = along.values(now)
        final = along.final_values(then[where], [each[where] for each in states])
    else:
        q, value, greedy = _state_values(dqn, now)
        _, final, _ = _state_values(dqn, then[where])
    final_value = torch.zeros_like(value)
    final_value[where] = final

    count = blocks.shape[1]
    missing = grid(torch.zeros_like(truncated), fill=1)  # after the end of a short block
    arrays = [grid(steps.reward), grid(value), torch.zeros(count, device=value.device)]
    arrays += [grid(steps.terminated), grid(truncated), grid(final_value), missing]
    on_cpu, gamma, lam = value.device.type == "cpu", dqn.gamma, config.q_lambda
    if config.target == "retrace":
        taken = q.gather(1, steps.action.long().view(-1, 1)).squeeze(1)
        arrays += [grid(taken), grid(lam * (steps.action == greedy).to(value.dtype))]
        if on_cpu:
            returns = torch.from_numpy(retrace_numba(*(each.numpy() for each in arrays), gamma=gamma))
        else:
            returns = retrace_torch(*arrays, gamma=gamma)
    elif on_cpu:
        returns = torch.from_numpy(lambda_return_numba(*(each.numpy() for each in arrays), gamma=gamma, lam=lam))
    else:
        returns = lambda_return_torch(*arrays, gamma=gamma, lam=lam)
    return returns.view(-1)[blocks.place]


def _state_values(dqn: DQN, observed: Observations) -> tuple[Tensor, Tensor, Tensor]:
    """Return Q [N, actions] of the target network, the value M [N] under the greedy policy, and its actions [N]."""
    q = dqn.values(observed.frames, target=True)
    return q, *_greedy(q, dqn.values(observed.frames, target=False) if dqn.needs_both else q, observed.mask)


def _greedy(q: Tensor, chosen_by: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return q [N] of the greedy actions of `chosen_by` [N, actions], and the actions [N]."""
    greedy = with_mask(chosen_by, mask).argmax(-1)
    return q.gather(1, greedy.unsqueeze(1)).squeeze(1), greedy


@dataclass(frozen=True)
class Memory:
    """The networks of a DQN along blocks: the target network, and the online one if Double DQN needs it."""

    networks: tuple[QNetwork, ...]
    grid: Grid
    state: Tensor  # [k, S, H] before the first steps
    reset: Tensor  # [T, k]

    @staticmethod
    def of(dqn: DQN, blocks: BlockBatch, grid: Grid) -> Memory:
        ended = grid(blocks.steps.terminated | blocks.steps.truncated)
        reset = torch.zeros_like(ended)
        reset[1:] = ended[:-1]
        networks = (dqn.target, dqn.network) if dqn.needs_both else (dqn.target,)
        return Memory(networks, grid, grid(blocks.steps.column[STATE])[0], reset)

    def values(self, observed: Observations) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
        """Return Q [N, actions], the value [N], the greedy actions [N], and the states after each step [N, S, H]."""
        frames = self.grid(observed.frames.reshape(-1, *self.networks[0].observation_shape))
        along = [network.play(frames, self.state, self.reset) for network in self.networks]
        q = [self.grid.flat(each) for each, _ in along]
        return q[0], *_greedy(q[0], q[-1], observed.mask), [self.grid.flat(states) for _, states in along]

    def final_values(self, observed: Observations, states: list[Tensor]) -> Tensor:
        """Return the values [M] of observations that follow steps with these states after them."""
        frames = observed.frames.reshape(-1, *self.networks[0].observation_shape)
        q = [network.step(frames, state)[0] for network, state in zip(self.networks, states, strict=True)]
        return _greedy(q[0], q[-1], observed.mask)[0]


def goal_batches(
    blocks: BlockBatch, returns: Tensor, order: Tensor, *, stacked: bool = False, weight: Tensor | None = None
) -> list[GoalBatch]:
    """Return the steps `order` [U, B] of the blocks as U batches, which lie side by side in memory.

    `weight` [U, B] is the importance of each.
    """
    steps, flat = blocks.steps, order.reshape(-1)
    size = order.shape[1]
    frames = torch.split(Observations.of(steps.observation, stacked=stacked).frames[flat], size)
    action, goal = torch.split(steps.action[flat], size), torch.split(returns[flat], size)
    agent = torch.split(steps.column["agent"][flat], size)
    weights = [None] * len(order) if weight is None else [*weight]
    return [GoalBatch(frames[u], action[u], goal[u], {"agent": agent[u]}, weights[u]) for u in range(len(order))]


@torch.no_grad()
def prioritised_order(
    dqn: DQN, blocks: BlockBatch, returns: Tensor, count: int, rng: np.random.Generator, *, stacked: bool = False
) -> tuple[Tensor, Tensor]:
    """Draw `count` steps of the blocks, each in proportion to |G - Q|^exponent; return them and their importance weights.

    Weights are (N p)^-correction, divided by the largest of all steps, so that none exceeds 1.
    """
    steps, config = blocks.steps, dqn.config
    q = dqn.values(Observations.of(steps.observation, stacked=stacked).frames, target=False)
    error = (returns - q.gather(1, steps.action.long().view(-1, 1)).squeeze(1)).abs()
    priority = (error.double() + SMALLEST_ERROR).pow(config.priority_exponent).cpu().numpy()
    ends = np.cumsum(priority)
    drawn = np.searchsorted(ends, rng.random(count) * ends[-1], side="right").clip(max=len(ends) - 1)
    weight = (priority[drawn] / priority.min()) ** -config.priority_correction
    return torch.from_numpy(drawn).to(q.device), torch.from_numpy(weight).to(q.device, q.dtype)


def sequence_batches(
    dqn: DQN, blocks: BlockBatch, returns: Tensor, updates: int, *, stacked: bool = False
) -> list[SequenceBatch]:
    """Return the blocks, in their order, as so many batches of sequences."""
    steps, grid, burn_in = blocks.steps, Grid(blocks.place, blocks.shape), dqn.config.burn_in
    memory = Memory.of(dqn, blocks, grid)
    frames = Observations.of(steps.observation, stacked=stacked).frames
    observation = grid(frames.reshape(-1, *dqn.network.observation_shape))
    valid = grid(torch.ones_like(blocks.last))
    valid[:burn_in] = False
    action, goal, agent = grid(steps.action), grid(returns), grid(steps.column["agent"])
    size = blocks.shape[1] // updates

    def batch(own: slice) -> SequenceBatch:
        agents = agent[:, own].masked_fill(~valid[:, own], -1)  # no agent's, where nothing is learned
        return SequenceBatch(
            observation[:, own],
            memory.state[own],
            memory.reset[:, own],
            action[:, own],
            goal[:, own],
            valid[:, own],
            burn_in,
            {"agent": agents.flatten()},
        )

    return [batch(slice(k * size, (k + 1) * size)) for k in range(updates)]
