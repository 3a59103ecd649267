"""Collecting: fill rows in whole rounds of every env, then a top-up round of exactly as many envs as are missing.

Every iteration fills exactly its rows with steps of the current policy: every collected step is trained on, and no row
mixes trajectories of different agents.

    N envs   A agents   n agents of a batch of envs   H hidden size   S state vectors of the core
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from millpond.devices.graphs import Replayed
from millpond.envs.env_batch import EpisodeStats
from millpond.envs.spec import ActionSpec
from millpond.rollout.following import FollowingObservations
from millpond.rollout.rows import Rows
from millpond.rollout.slices import DeviceSlice, HostSlice, Lane, Slice
from millpond.vector import Batch, FiniteCheck, Vector
from millpond.vector.finite import is_finite

Array = npt.NDArray[Any]
Phase = Callable[[str], AbstractContextManager[Any]]


class PlayablePolicy(Protocol):
    """A policy as collection and evaluation call it."""

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


class Acted(NamedTuple):
    """action [n, *action], log_prob [n], value [n]. Actors may overwrite them in their next call."""

    action: Array
    log_prob: Array | Tensor
    value: Array | Tensor


class Actor(Protocol):
    """Acts for a batch of agents."""

    @property
    def policy(self) -> PlayablePolicy:
        """The policy, computed as the actor does, to evaluate it with."""

    def freeze_weights(self) -> None:
        """Prepare for a collection, during which the weights stay unchanged."""

    def act(
        self, observation: Array, state: Tensor, action_mask: Array | None, generator: torch.Generator | None
    ) -> Acted:
        """observation [n, *obs], state [n, S, H] (updated in place), action_mask [n, choices]."""

    def value(self, observation: Array, state: Tensor) -> Tensor:
        """Return the value [n] of observations with their states; nothing changes."""


class PolicyActor:
    """Acts with any policy on any device."""

    def __init__(self, policy: PlayablePolicy, device: torch.device | str, *, captures: bool = False) -> None:
        """`captures`: acting for the same memory again and again is captured as a graph."""
        self.policy, self.device, self.captures = policy, torch.device(device), captures
        self._replayed: dict[Any, Replayed[Any]] = {}

    def freeze_weights(self) -> None:
        """Do nothing."""

    def act(
        self, observation: Array, state: Tensor, action_mask: Array | None, generator: torch.Generator | None
    ) -> Acted:
        mask = None if action_mask is None else self._tensor(action_mask)
        acted = self.act_on_device(self._tensor(observation), state, mask, generator)
        return Acted(acted.action.cpu().numpy(), acted.log_prob, acted.value)

    def value(self, observation: Array, state: Tensor) -> Tensor:
        return self.value_on_device(self._tensor(observation), state)

    def act_on_device(
        self, observation: Tensor, state: Tensor, action_mask: Tensor | None, generator: torch.Generator | None
    ) -> Any:
        """Do the same for tensors of the device, which stay there."""
        with torch.inference_mode():
            acted = self.policy.act(observation, state, action_mask=action_mask, generator=generator)
            state.copy_(acted.state)
            return acted

    def act_in_place(
        self,
        place: Any,
        observation: Tensor,
        state: Tensor,
        action_mask: Tensor | None,
        generator: torch.Generator | None,
    ) -> Any:
        """Do the same for tensors that are in the same memory at every call with a `place`; so are the results."""
        if not self.captures:
            return self.act_on_device(observation, state, action_mask, generator)
        if place not in self._replayed:
            work = partial(self.act_on_device, observation, state, action_mask, generator)
            self._replayed[place] = Replayed(self.device, work, generator)
        return self._replayed[place]()

    def value_on_device(self, observation: Tensor, state: Tensor) -> Tensor:
        with torch.inference_mode():
            return self.policy.value(observation, state).float()

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(array).to(self.device)


@dataclass
class Collected:
    """Counts and episodes of one collection."""

    env_steps: int = 0
    agent_steps: int = 0
    dropped_agent_steps: int = 0
    episodes: list[EpisodeStats] = field(default_factory=list)


class _Turns(Protocol):
    """All envs of a vector, or a slice of them, in turns of a group."""

    def recv(self) -> Batch: ...
    def send(self, actions: npt.ArrayLike | None = None) -> None: ...
    def end_round(self) -> None: ...
    def __len__(self) -> int: ...

    @property
    def num_envs(self) -> int: ...


class _Round(NamedTuple):
    """Rows that consecutive envs, from `first_env` on, fill in one round."""

    first_row: int
    first_env: int
    num_envs: int

    def last_row(self, rows: Rows) -> int:
        return self.first_row + self.num_envs * rows.rows_per_env


class Collector:
    """Steps a vector with an actor and writes what happens into rows."""

    def __init__(
        self,
        vector: Vector,
        rows: Rows,
        actor: Actor,
        *,
        num_rows: int,
        state_shape: tuple[int, ...],
        device: str,
        generator: torch.Generator,
        phase: Phase | None = None,
        zero_state: bool = False,
        bootstraps_truncation: bool = True,
        bootstraps_row_end: bool = True,
        next_observations: FollowingObservations | None = None,
    ) -> None:
        """`zero_state`: every row begins with a state of zeros. Values that nothing bootstraps from are not computed.

        `next_observations` gets the observations after steps that rows do not store.
        """
        self.vector, self.rows, self.actor, self.num_rows = vector, rows, actor, num_rows
        self.device = torch.device(device)
        self.generator = generator
        self.zero_state = zero_state
        self.bootstraps_truncation, self.bootstraps_row_end = bootstraps_truncation, bootstraps_row_end
        self.next_observations = next_observations
        self.phase: Phase = phase or (lambda name: nullcontext())
        self._infer: AbstractContextManager[Any] = nullcontext()  # phases of the current round
        self._store: AbstractContextManager[Any] = nullcontext()
        agents = vector.spec.num_agents
        self.state = torch.zeros((vector.num_envs, agents, *state_shape), device=self.device)  # [N, A, S, H]
        self.reward_centering: float | None = None  # share by which the means below move at each step
        self.average_reward = np.zeros(
            (vector.num_envs, agents), np.float32
        )  # exponential mean of each agent's rewards
        self.first_top_up = 0  # first env of the next top-up round
        self.kept_rows = 0  # surplus rows of the last iteration, at the front of the buffer
        self._surplus_from = 0
        self._lanes: dict[tuple[int, int, bool], Lane] = {}  # by group and its size; for a policy on a device
        self._finite = FiniteCheck(vector)
        self._action = vector.spec.action
        self._rounds: list[_Round] = []  # of this collection
        self.following = np.full(
            num_rows, -1
        )  # the row in which the agents of a row continue in this collection; -1: none
        self._latest_row = np.full(vector.num_envs, -1)  # of each env in this collection

    def collect(self) -> Collected:
        """Fill the buffer: `num_rows` rows from row 0 on.

        Raises `NonFiniteEnvError` if an env returned a number that is NaN or infinite, also where an error followed from it:
        in a policy that cannot choose an action, or in an env that got one that is NaN.
        """
        done = Collected()
        self._finite.begin()
        self._rounds.clear()
        if self.next_observations is not None:
            self.next_observations.clear()
        self.rows.following[:], self._latest_row[:] = -1, -1
        try:
            self._fill(done)
        except Exception:
            self._find_bad_numbers()
            self._finite.raise_found(done.episodes)
            raise
        if self._finite.found or not self._rows_are_finite():
            self._find_bad_numbers()
        self._finite.raise_found(done.episodes)
        return done

    def _fill(self, done: Collected) -> None:
        self.actor.freeze_weights()
        row, per_env = self.kept_rows, self.rows.rows_per_env
        per_round = self.vector.num_envs * per_env
        while self.num_rows - row >= per_round:
            self._round(self.vector, row, 0, done)
            row += per_round
        missing = self.num_rows - row
        if missing > 0:
            envs = -(-missing // per_env)
            self._round(self.vector.slice(self.first_top_up, envs), row, self.first_top_up, done)
            self.first_top_up = (self.first_top_up + envs) % self.vector.num_envs
            row += envs * per_env
        self._surplus_from, self.kept_rows = self.num_rows, row - self.num_rows

    def _rows_are_finite(self) -> bool:
        """Return True if all observations and rewards of this collection's rows are finite; one pass over each."""
        rows = slice(self._rounds[0].first_row, self._rounds[-1].last_row(self.rows)) if self._rounds else slice(0, 0)
        reward, observation = self.rows["reward"][rows], self.rows["observation"][rows]
        if self.rows.device.type == "cpu":
            finite = self._finite.finite_observations
            return is_finite(reward.numpy()) and (not self._finite.sees_observations or finite(observation.numpy()))
        if observation.is_floating_point():
            return bool(torch.isfinite(reward).all() & torch.isfinite(observation).all())
        if not self._finite.sees_observations:
            return bool(torch.isfinite(reward).all())
        return bool(torch.isfinite(reward).all()) and self._finite.finite_observations(observation.cpu().numpy())

    def _find_bad_numbers(self) -> None:
        """Look at every number of this collection's rows."""
        per_env, agents = self.rows.rows_per_env, self.rows.num_agents
        for number, collected in enumerate(self._rounds):
            rows = slice(collected.first_row, collected.last_row(self.rows))
            envs = (collected.first_env + np.arange(collected.num_envs)) % self.vector.num_envs
            values = {}
            for name in ("reward", "observation", "action", "terminated", "truncated"):
                stored = self.rows[name][rows].cpu().numpy()  # [n * rows_per_env, T, a, ...]
                split = stored.reshape(collected.num_envs, per_env, *stored.shape[1:]).swapaxes(1, 2)
                values[name] = split.reshape(collected.num_envs, self.rows.horizon, agents, *stored.shape[3:])
            self._finite.steps("reward", values.pop("reward"), envs, number * self.rows.horizon)
            self._finite.steps("observation", values.pop("observation"), envs, number * self.rows.horizon)
            for name, kept in values.items():
                self._finite.keep(name, kept, envs)

    def finish(self) -> None:
        """Move the surplus rows to the front, after training."""
        if self.kept_rows:
            self.rows.keep(self._surplus_from, self.kept_rows)

    def _round(self, turns: _Turns, first_row: int, first_env: int, done: Collected) -> None:
        """Let every env of these turns fill its rows: `horizon` steps, and the value of the observation after them."""
        horizon, count = self.rows.horizon, len(turns)
        self._rounds.append(_Round(first_row, first_env, turns.num_envs))
        step, self._infer, self._store = self.phase("step"), self.phase("infer"), self.phase("store")
        slices: list[Slice] = []
        for t in range(horizon + 1):
            for index in range(count):
                with step:
                    batch = turns.recv()
                if t > 0:
                    envs = slices[index]
                    self._outcome(envs, t - 1, done)
                else:
                    row = first_row + (batch.first - first_env) % self.vector.num_envs * self.rows.rows_per_env
                    envs = self._slice(batch, row, index, whole=turns is self.vector)
                    slices.append(envs)
                    if self.zero_state:
                        envs.state.zero_()
                    elif batch.restarted.any():  # after its last row was full: only its recurrent state is lost
                        envs.state[torch.from_numpy(batch.restarted).to(self.device)] = 0.0
                    self.rows.write_row("initial_state", row, envs.state)
                    self._link(batch, row)
                if t < horizon:
                    self._act(envs, t, done)
                    with step:
                        turns.send()
                else:
                    self._finite.current(batch)
                    if self.next_observations is not None:
                        self.next_observations.after_rows(envs.row, batch.first, batch.observation)
                    with self._infer:
                        envs.end_round(self.actor, bootstraps=self.bootstraps_row_end)
        turns.end_round()

    def _slice(self, batch: Batch, row: int, index: int, *, whole: bool) -> Slice:
        """Return the group number `index` of a round as envs that fill the rows from `row` on.

        `whole`: the round is of all envs, so that the same groups come again; those of a top-up change.
        """
        state = self.state[batch.first : batch.last]
        if self.device.type == "cpu":
            return HostSlice(batch, self.rows, row, state)
        place = index, batch.num_envs, whole
        if place not in self._lanes:
            self._lanes[place] = Lane(batch, self.rows, state)
        return DeviceSlice(batch, self.rows, row, state, self._lanes[place], place if whole else None)

    def _link(self, batch: Batch, first_row: int) -> None:
        """Note in which rows the envs of a batch continue: from `first_row` on, unless they were restarted."""
        per_env = self.rows.rows_per_env
        before = self._latest_row[batch.first : batch.last]
        rows = first_row + per_env * np.arange(batch.num_envs)
        for agent in range(per_env):
            links = (before >= 0) & ~batch.restarted & (rows + agent < self.num_rows)
            self.rows.following[before[links] + agent] = rows[links] + agent
        before[:] = rows

    def _act(self, envs: Slice, t: int, done: Collected) -> None:
        batch = envs.batch
        with self._infer:
            action, log_prob, value = envs.act(self.actor, self.generator, t)
        action = action.reshape(envs.action_shape)
        put_actions(self._action, action, batch.action)
        with self._store:
            envs.store(t, action, log_prob, value)
        if self.reward_centering is not None:
            envs.alive[...] = batch.alive
        done.env_steps += envs.agents[0]
        done.agent_steps += int(np.count_nonzero(batch.alive))

    def _outcome(self, envs: Slice, t: int, done: Collected) -> None:
        batch = envs.batch
        terminated = batch.terminated
        if np.count_nonzero(batch.restarted):  # a fraction of the cost of any()
            # The steps before are dropped. The step counts as an end, so that the row's state is reset after it.
            done.dropped_agent_steps += self.rows.drop(envs.row, batch.restarted, t + 1)
            terminated = terminated | batch.restarted[:, None]
        with self._store:
            envs.store_outcome(t, terminated)
            if self.reward_centering is not None:
                self._center(envs, t, self.reward_centering)
        if batch.episodes:
            done.episodes.extend(batch.episodes)
        truncated = np.count_nonzero(batch.truncated)
        if truncated and self.bootstraps_truncation:
            with self._infer:
                self._value_final_observations(envs, t)
        if self.next_observations is not None:
            self.next_observations.after_ends(envs.row, t, terminated | batch.truncated, batch.final_observation)
        if envs.remembers and self.rows.resets_state and (truncated or np.count_nonzero(terminated)):
            envs.reset_state(terminated | batch.truncated)

    def _center(self, envs: Slice, t: int, share: float) -> None:
        """Store the mean reward of each agent before this step, and move it towards this reward.

            mean <- mean + share * (r - mean)

        Agents that were not alive, and envs that were restarted, keep their mean.
        """
        batch = envs.batch
        mean = self.average_reward[batch.first : batch.last]
        envs.write("reward_baseline", t, mean)
        counts = envs.alive & ~batch.restarted[:, None]
        mean += np.where(counts, np.float32(share) * (batch.reward - mean), np.float32(0.0))

    def _value_final_observations(self, envs: Slice, t: int) -> None:
        """Store the values of true final observations, with the states before the reset, for truncated steps."""
        batch = envs.batch
        where = np.argwhere(batch.truncated)  # [k, 2]: env, agent
        env, agent = where[:, 0], where[:, 1]
        observation = np.ascontiguousarray(batch.final_observation[env, agent])
        self._finite.final(observation, batch.first + env, agent)
        envs.value_finals(self.actor, env, agent, observation, t)

    def state_dict(self) -> dict[str, Any]:
        """Return recurrent states, surplus rows, and the first env of the next top-up round."""
        return {
            "state": self.state.clone(),
            "first_top_up": self.first_top_up,
            "kept_rows": self.kept_rows,
            "rows": self.rows.state_dict(self.kept_rows),
            "generator": self.generator.get_state(),
            "average_reward": torch.from_numpy(self.average_reward.copy()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state.copy_(state["state"])
        self.first_top_up, self.kept_rows = int(state["first_top_up"]), int(state["kept_rows"])
        self.rows.load_state_dict(state["rows"])
        self.generator.set_state(state["generator"])
        if "average_reward" in state:  # checkpoints of earlier versions have none
            self.average_reward[...] = state["average_reward"].numpy()


def put_actions(spec: ActionSpec, drawn: Array, into: Array) -> None:
    """Write a policy's actions for the envs. Vectors are clipped to the action space.

    They are clipped here and only here; rows store the actions as drawn, which the stored log-probability belongs to.
    """
    if spec.kind == "continuous":
        np.clip(drawn, spec.low, spec.high, out=into, casting="same_kind")
        return
    into[...] = drawn
    if spec.kind == "mixed":
        vector = into[..., len(spec.sizes) :]
        np.clip(vector, spec.low, spec.high, out=vector)
