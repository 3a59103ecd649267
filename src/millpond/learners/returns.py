"""Returns over the steps of blocks drawn from replay, recomputed with a learner's current networks.

    q_lambda   Peng's Q(lambda): the returns of PQN, whatever policy chose the actions
    retrace    the same, but an action that is not greedy now ends the trace

Both bootstrap from the target network: M(s) = Q_target(s, argmax_a Q(s, a)) with `dqn.double`, else the largest of Q_target.

N steps   T steps of a block   k blocks   B transitions of a batch
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from millpond.kernels.lambda_return import lambda_return_numba, lambda_return_torch
from millpond.kernels.retrace import retrace_numba, retrace_torch
from millpond.learners.dqn import DQN, GoalBatch
from millpond.learners.q_network import with_mask
from millpond.replay.blocks import BlockBatch
from millpond.replay.schema import ACTION_MASK


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


@torch.no_grad()
def block_returns(dqn: DQN, blocks: BlockBatch, *, stacked: bool = False) -> Tensor:
    """Return G [N] of every step of the blocks."""
    steps, config = blocks.steps, dqn.config
    now = Observations.of(steps.observation, stacked=stacked)
    q, value, greedy = _state_values(dqn, now)
    # The last step of a block bootstraps as a truncated one does.
    truncated = (steps.truncated | blocks.last) & ~steps.terminated
    where, final_value = blocks.bootstraps, torch.zeros_like(value)
    _, final_value[where], _ = _state_values(dqn, Observations.of(steps.next_observation, stacked=stacked)[where])

    length, count = blocks.shape

    def grid(values: Tensor, fill: float = 0) -> Tensor:
        out = torch.full((length * count,), fill, dtype=values.dtype, device=values.device)
        out[blocks.place] = values
        return out.view(length, count)

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
    chosen_by = dqn.values(observed.frames, target=False) if dqn.config.double and not dqn.target_is_online else q
    greedy = with_mask(chosen_by, observed.mask).argmax(-1)
    return q, q.gather(1, greedy.unsqueeze(1)).squeeze(1), greedy


def goal_batches(blocks: BlockBatch, returns: Tensor, order: Tensor, *, stacked: bool = False) -> list[GoalBatch]:
    """Return the steps `order` [U, B] of the blocks as U batches, which lie side by side in memory."""
    steps, flat = blocks.steps, order.reshape(-1)
    size = order.shape[1]
    frames = torch.split(Observations.of(steps.observation, stacked=stacked).frames[flat], size)
    action, goal = torch.split(steps.action[flat], size), torch.split(returns[flat], size)
    agent = torch.split(steps.column["agent"][flat], size)
    return [GoalBatch(frames[u], action[u], goal[u], {"agent": agent[u]}) for u in range(len(order))]
