"""Observations that follow steps of a collection and are not in its rows: after the end of an episode, and after a row.

R rows   T horizon   a agents of a row   n envs   A agents   P rows of an env (P x a = A)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from millpond.rollout.rows import Rows

Array = npt.NDArray[Any]


class Filled(NamedTuple):
    """Rows that neighbouring envs filled at the same time, each agent's steps in order.

    lanes: number of the env times A, plus that of the agent.
    """

    lanes: npt.NDArray[np.int64]  # [n * A]
    rows: slice
    steps: dict[str, Array]  # name -> [n * A, T, ...]: observation, action, reward, alive, ended
    next_observation: Array  # [n * A, T, ...]


class FollowingObservations:
    """Filled by a collector; `transitions` then returns whole transitions."""

    def __init__(self) -> None:
        self._ends: dict[int, list[tuple[int, Array, Array]]] = {}  # by first row: time, agents [k, 2], observations
        self._rows: list[tuple[int, int, Array]] = []  # first row, first env, observations [n, A, ...]

    def clear(self) -> None:
        """Forget the collection before."""
        self._ends.clear()
        self._rows.clear()

    def after_ends(self, first_row: int, t: int, ended: Array, final_observation: Array) -> None:
        """Keep the final observations [n, A, ...] of agents whose episode ended with step `t`."""
        if ended.any():
            self._ends.setdefault(first_row, []).append((t, np.argwhere(ended), final_observation[ended]))

    def after_rows(self, first_row: int, first_env: int, observation: Array) -> None:
        """Keep the observations [n, A, ...] after the last step of the rows from `first_row` on."""
        self._rows.append((first_row, first_env, observation.copy()))

    def transitions(self, rows: Rows) -> list[Filled]:
        """Return what was collected, in the order in which it was: of an agent, the earlier rows come first."""
        return [self._filled(rows, *one) for one in self._rows]

    def _filled(self, rows: Rows, first_row: int, first_env: int, after: Array) -> Filled:
        envs, agents = after.shape[:2]
        where = slice(first_row, first_row + envs * rows.rows_per_env)

        def by_agent(name: str) -> Array:  # [n * P, T, a, ...] -> [n * A, T, ...]
            stored = rows[name][where].cpu().numpy()
            split = stored.reshape(envs, rows.rows_per_env, rows.horizon, rows.agents_per_row, *stored.shape[3:])
            return split.swapaxes(2, 3).reshape(envs * agents, rows.horizon, *stored.shape[3:])

        steps = {name: by_agent(name) for name in ("observation", "action", "reward", "alive")}
        steps["ended"] = by_agent("terminated") | by_agent("truncated")
        following = np.empty_like(steps["observation"])
        following[:, :-1] = steps["observation"][:, 1:]
        following[:, -1] = after.reshape(following[:, -1].shape)
        for t, who, final in self._ends.get(first_row, ()):
            following[who[:, 0] * agents + who[:, 1], t] = final
        lanes = first_env * agents + np.arange(envs * agents)
        return Filled(lanes, where, steps, following)


def write_by_agent(rows: Rows, name: str, filled: Filled, values: Array) -> None:
    """Write values [n * A, T] into an array of the rows that were filled."""
    import torch

    target = rows[name][filled.rows]  # [n * P, T, a]
    split = values.reshape(len(target), rows.agents_per_row, rows.horizon).swapaxes(1, 2)
    target.copy_(torch.from_numpy(np.ascontiguousarray(split)))
