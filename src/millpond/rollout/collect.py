"""Filling rows: whole rounds of every env, then a top-up round of just as many as are missing.

    N envs   A agents   H hidden size   S state vectors of the core

Every iteration fills exactly its rows with steps of the current policy: nothing is collected that is not trained on,
and no row holds two trajectories of different agents.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from millpond.envs.env_batch import EpisodeStats
from millpond.rollout.actions import put_actions
from millpond.rollout.rows import Rows
from millpond.vector import Batch, Vector

Array = npt.NDArray[Any]
Phase = Callable[[str], AbstractContextManager[Any]]


class CompiledActor(Protocol):
    """What acts without torch for `policy`: see `millpond.policies.acting`. The state may be written in place."""

    policy: Any

    def settle(self) -> None: ...

    def act(
        self, observation: Array, state: Array, after: Array, mask: Array | None, generator: torch.Generator
    ) -> tuple[Array, Array, Array]: ...


class Actor(Protocol):
    """What collection needs of a policy. It may also have `compiled_actor()`, which gives a CompiledActor or None."""

    def act(
        self,
        observation: Tensor,
        state: Tensor,
        *,
        action_mask: Tensor | None = None,
        generator: torch.Generator | None = None,
        deterministic: bool = False,
    ) -> Any: ...

    def value(self, observation: Tensor, state: Tensor) -> Tensor: ...

    def initial_state(self, batch: int, device: torch.device) -> Tensor: ...


@dataclass
class Collected:
    """What one collection did."""

    env_steps: int = 0
    agent_steps: int = 0
    dropped_agent_steps: int = 0
    episodes: list[EpisodeStats] = field(default_factory=list)


class _Turns(Protocol):
    def recv(self) -> Batch: ...
    def send(self, actions: npt.ArrayLike | None = None) -> None: ...
    def end_round(self) -> None: ...
    def __len__(self) -> int: ...


class Collector:
    """Steps a vector with a policy and writes what happens into rows."""

    def __init__(
        self,
        vector: Vector,
        rows: Rows,
        *,
        rows_wanted: int,
        state_shape: tuple[int, ...],
        device: str,
        generator: torch.Generator,
        phase: Phase | None = None,
    ) -> None:
        self.vector, self.rows, self.rows_wanted = vector, rows, rows_wanted
        self.device = torch.device(device)
        self.generator = generator
        self.phase: Phase = phase or (lambda name: nullcontext())
        agents = vector.spec.num_agents
        self.state = torch.zeros((vector.num_envs, agents, *state_shape), device=self.device)  # [N, A, S, H]
        self.first_top_up = 0  # the env that the next top-up round begins with
        self.kept_rows = 0  # surplus rows of the last iteration, at the front of the buffer
        self._surplus_from = 0
        self._compiled: CompiledActor | None = None
        self._state_array: Array | None = self.state.numpy() if self.device.type == "cpu" else None

    def collect(self, policy: Actor) -> Collected:
        """Fill the buffer up: `rows_wanted` rows from row 0 on."""
        done = Collected()
        self._compiled = self._compiled_actor(policy)
        row, per_env = self.kept_rows, self.rows.rows_per_env
        per_round = self.vector.num_envs * per_env
        while self.rows_wanted - row >= per_round:
            self._round(self.vector, row, 0, policy, done)
            row += per_round
        missing = self.rows_wanted - row
        if missing > 0:
            envs = -(-missing // per_env)
            self._round(self.vector.slice(self.first_top_up, envs), row, self.first_top_up, policy, done)
            self.first_top_up = (self.first_top_up + envs) % self.vector.num_envs
            row += envs * per_env
        self._surplus_from, self.kept_rows = self.rows_wanted, row - self.rows_wanted
        self._compiled = None  # it is of these weights
        return done

    def _compiled_actor(self, policy: Actor) -> CompiledActor | None:
        offers = getattr(policy, "compiled_actor", None) if self.device.type == "cpu" else None
        actor: CompiledActor | None = offers() if offers is not None else None
        # What stands before another policy, and passes its attributes on, has an `act` of its own.
        if actor is None or actor.policy is not policy:
            return None
        actor.settle()  # nothing is learned before all rows are full
        return actor

    def finish(self) -> None:
        """After training: move the surplus rows to the front."""
        if self.kept_rows:
            self.rows.keep(self._surplus_from, self.kept_rows)

    def _round(self, turns: _Turns, first_row: int, first_env: int, policy: Actor, done: Collected) -> None:
        """Every env of these turns fills its rows: `horizon` steps, and the value of what comes after."""
        horizon = self.rows.horizon
        for t in range(horizon + 1):
            for _ in range(len(turns)):
                with self.phase("step"):
                    batch = turns.recv()
                row = first_row + (batch.first - first_env) % self.vector.num_envs * self.rows.rows_per_env
                if t > 0:
                    self._outcome(batch, row, t - 1, policy, done)
                elif batch.restarted.any():  # after its last row was whole: nothing is lost but its memory
                    self.state[batch.first : batch.last][torch.from_numpy(batch.restarted).to(self.device)] = 0.0
                if t < horizon:
                    self._act(batch, row, t, policy, done)
                    with self.phase("step"):
                        turns.send()
                else:
                    self._bootstrap(batch, row, policy)
        turns.end_round()

    def _act(self, batch: Batch, row: int, t: int, policy: Actor, done: Collected) -> None:
        state = self.state[batch.first : batch.last]
        if t == 0:
            self.rows.write_row("initial_state", row, state)
        masked = batch.action_mask.shape[-1] > 0
        with self.phase("infer"):
            taken, log_prob, value = self._act_compiled(batch) if self._compiled else self._act_plain(batch, policy)
        put_actions(self.vector.spec.action, taken, batch.action)
        with self.phase("store"):
            self.rows.write("observation", row, t, batch.observation)
            self.rows.write("action", row, t, taken)
            if masked:
                self.rows.write("action_mask", row, t, batch.action_mask)
            self.rows.write("alive", row, t, batch.alive)
            self.rows.write("log_prob", row, t, log_prob)
            self.rows.write("value", row, t, value)
        done.env_steps += batch.num_envs
        done.agent_steps += int(np.count_nonzero(batch.alive))

    def _act_plain(self, batch: Batch, policy: Actor) -> tuple[Array, Array | Tensor, Array | Tensor]:
        state, agents = self.state[batch.first : batch.last], batch.reward.shape
        with torch.inference_mode():
            mask = self._tensor(batch.action_mask).flatten(0, 1) if batch.action_mask.shape[-1] else None
            chosen = policy.act(
                self._tensor(batch.observation).flatten(0, 1),
                state.flatten(0, 1),
                action_mask=mask,
                generator=self.generator,
            )
            state.copy_(chosen.state.view(state.shape))
            action = chosen.action.view(*agents, *chosen.action.shape[1:])
        return action.cpu().numpy(), chosen.log_prob.view(agents), chosen.value.view(agents)

    def _act_compiled(self, batch: Batch) -> tuple[Array, Array, Array]:
        assert self._compiled is not None
        assert self._state_array is not None
        agents = batch.reward.shape
        state = _joined(self._state_array[batch.first : batch.last])
        mask = _joined(batch.action_mask) if batch.action_mask.shape[-1] else None
        acted = self._compiled.act(_joined(batch.observation), state, state, mask, self.generator)
        action, log_prob, value = acted
        return action.reshape(*agents, *action.shape[1:]), log_prob.reshape(agents), value.reshape(agents)

    def _outcome(self, batch: Batch, row: int, t: int, policy: Actor, done: Collected) -> None:
        terminated = batch.terminated
        if batch.restarted.any():
            # What led here is forgotten. The step counts as an end, so that the row's state begins anew behind it.
            done.dropped_agent_steps += self.rows.drop(row, batch.restarted, t + 1)
            terminated = terminated | batch.restarted[:, None]
        with self.phase("store"):
            self.rows.write("reward", row, t, batch.reward)
            self.rows.write("terminated", row, t, terminated)
            self.rows.write("truncated", row, t, batch.truncated)
        done.episodes.extend(batch.episodes)
        if batch.truncated.any():
            with self.phase("infer"):
                self._value_final_observations(batch, row, t, policy)
        ended = terminated | batch.truncated
        if ended.any():
            self.state[batch.first : batch.last][torch.from_numpy(ended).to(self.device)] = 0.0

    def _value_final_observations(self, batch: Batch, row: int, t: int, policy: Actor) -> None:
        """A truncated step bootstraps from the true final observation, with the state before the reset."""
        where = np.argwhere(batch.truncated)  # [k, 2]: env, agent
        env, agent = where[:, 0], where[:, 1]
        with torch.inference_mode():
            state = self.state[batch.first : batch.last][env, agent]
            value = policy.value(self._tensor(batch.final_observation[env, agent]), state)
        final = np.zeros(batch.truncated.shape, np.float32)
        final[env, agent] = value.float().cpu().numpy()
        self.rows.write("final_value", row, t, final)

    def _bootstrap(self, batch: Batch, row: int, policy: Actor) -> None:
        """The value at the observation that begins the next row."""
        with self.phase("infer"), torch.inference_mode():
            state = self.state[batch.first : batch.last].flatten(0, 1)
            value = policy.value(self._tensor(batch.observation).flatten(0, 1), state)
        self.rows.write_row("next_value", row, value.float().view(batch.reward.shape))

    def _tensor(self, array: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def state_dict(self) -> dict[str, Any]:
        """Recurrent states, surplus rows, and whose turn the next top-up is."""
        return {
            "state": self.state.clone(),
            "first_top_up": self.first_top_up,
            "kept_rows": self.kept_rows,
            "rows": self.rows.state_dict(self.kept_rows),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state.copy_(state["state"])
        self.first_top_up, self.kept_rows = int(state["first_top_up"]), int(state["kept_rows"])
        self.rows.load_state_dict(state["rows"])
        self.generator.set_state(state["generator"])


def _joined(array: Array) -> Array:
    """[n, A, ...] -> [n * A, ...], contiguous; of what is contiguous already, a view."""
    return np.ascontiguousarray(array).reshape(-1, *array.shape[2:])
