"""Envs that step together in a round of a collection: what their steps give is written into rows.

A policy on the CPU reads the envs' arrays, and rows are NumPy arrays too. For a policy on a device everything that a step needs
is sent in one copy, rows are written on the device, and only actions come back.

    n envs   A agents   B = n * A   S state vectors of the core   H hidden size
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from millpond.devices.staging import BlockField, Downloads, Uploads
from millpond.rollout.rows import Rows
from millpond.vector import Batch

Array = npt.NDArray[Any]


class DeviceActor(Protocol):
    """Acts for agents whose observations are on its device."""

    def act_on_device(
        self, observation: Tensor, state: Tensor, action_mask: Tensor | None, generator: torch.Generator | None
    ) -> ActedOnDevice:
        """observation [B, *obs], state [B, S, H] (updated in place), action_mask [B, choices]: always the same memory."""

    def act_in_place(
        self,
        place: Any,
        observation: Tensor,
        state: Tensor,
        action_mask: Tensor | None,
        generator: torch.Generator | None,
    ) -> ActedOnDevice:
        """Do the same for tensors that are in the same memory at every call with a `place`."""

    def value_on_device(self, observation: Tensor, state: Tensor) -> Tensor:
        """Return the value [B] of observations with their states; nothing changes."""


class ActedOnDevice(Protocol):
    """action [B, *action], log_prob [B], value [B], on the device."""

    @property
    def action(self) -> Tensor: ...
    @property
    def log_prob(self) -> Tensor: ...
    @property
    def value(self) -> Tensor: ...


class Slice(Protocol):
    """What a collector asks of the envs that step together, once per step."""

    batch: Batch
    row: int
    state: Tensor  # [n, A, S, H]
    agents: tuple[int, ...]
    action_shape: tuple[int, ...]
    remembers: bool
    alive: Array

    def act(self, actor: Any, generator: torch.Generator | None, t: int) -> tuple[Array, Any, Any]:
        """Return actions [B, ...], log_prob and value [B] for the observations of time `t`; the state moves on."""

    def store(self, t: int, action: Array, log_prob: Any, value: Any) -> None:
        """Write what the policy saw and did at time `t`."""

    def store_outcome(self, t: int, terminated: Array) -> None:
        """Write rewards and ends of the step at time `t`."""

    def write(self, name: str, t: int, values: Array) -> None:
        """Write [n, A, ...] at time `t`."""

    def reset_state(self, ended: Array) -> None:
        """Zero the states of agents [n, A] whose episodes ended."""

    def value_finals(self, actor: Any, env: Array, agent: Array, observation: Array, t: int) -> None:
        """Write the values of final observations [k, ...] at time `t`, with the states before the reset."""

    def end_round(self, actor: Any, *, bootstraps: bool) -> None:
        """Write what is not written yet and, if rows bootstrap from it, the value of the observation after the last step."""


class HostSlice:
    """Envs that step together, with a policy and rows on the CPU.

    A vector returns the same batch, with new contents, at every turn. What does not change between turns is computed here,
    once: with a few small envs it would take longer than the policy.
    """

    def __init__(self, batch: Batch, rows: Rows, row: int, state: Tensor) -> None:
        self.batch, self.row = batch, row
        self.agents = batch.reward.shape
        self.action_shape = batch.action.shape
        # [n * A, ...] of the same memory: a vector's arrays are contiguous
        self.observation = joined(batch.observation)
        self.mask = joined(batch.action_mask) if batch.action_mask.shape[-1] else None
        self.state, self.joined_state = state, state.flatten(0, 1)  # [n, A, S, H], and [n * A, S, H] of the same memory
        self.remembers = state.numel() > 0
        self.alive = np.zeros(self.agents, bool)  # when they acted; only if rewards are centred
        places = rows.places(row, batch.num_envs)
        assert places is not None
        self._rows, self._places = rows, places

    def act(self, actor: Any, generator: torch.Generator | None, t: int) -> tuple[Array, Any, Any]:
        action, log_prob, value = actor.act(self.observation, self.joined_state, self.mask, generator)
        return action, log_prob, value

    def store(self, t: int, action: Array, log_prob: Any, value: Any) -> None:
        places, batch = self._places, self.batch
        places["observation"][t] = batch.observation
        places["action"][t] = action
        if self.mask is not None:
            places["action_mask"][t] = batch.action_mask
        places["alive"][t] = batch.alive
        log_prob, value = log_prob.reshape(self.agents), value.reshape(self.agents)
        places["log_prob"][t] = log_prob.numpy() if isinstance(log_prob, Tensor) else log_prob
        places["value"][t] = value.numpy() if isinstance(value, Tensor) else value

    def store_outcome(self, t: int, terminated: Array) -> None:
        places, batch = self._places, self.batch
        places["reward"][t] = batch.reward
        places["terminated"][t] = terminated
        places["truncated"][t] = batch.truncated

    def write(self, name: str, t: int, values: Array) -> None:
        self._places[name][t] = values

    def reset_state(self, ended: Array) -> None:
        self.state[torch.from_numpy(ended)] = 0.0

    def value_finals(self, actor: Any, env: Array, agent: Array, observation: Array, t: int) -> None:
        final = np.zeros(self.agents, np.float32)
        final[env, agent] = actor.value(observation, self.state[env, agent]).numpy()
        self._rows.write("final_value", self.row, t, final)

    def end_round(self, actor: Any, *, bootstraps: bool) -> None:
        if bootstraps:
            value = actor.value(self.observation, self.joined_state)
            self._rows.write_row("next_value", self.row, value.view(self.agents))


class Lane:
    """Memory through which one group of envs and a policy on a device exchange what a step needs. It serves many rounds."""

    def __init__(self, batch: Batch, rows: Rows, state: Tensor) -> None:
        agents, self.on_device = batch.reward.size, rows.device.type != "cpu"
        observation = joined(batch.observation)
        fields = {
            "observation": BlockField(observation.shape, observation.dtype),
            "reset": BlockField((agents,), np.bool_),
        }
        if batch.action_mask.shape[-1]:
            fields["action_mask"] = BlockField((agents, batch.action_mask.shape[-1]), np.bool_)
        if self.on_device:
            fields |= {
                "alive": BlockField((agents,), np.bool_),
                "reward": BlockField((agents,), np.float32),
                "ends": BlockField((2, agents), np.bool_),  # terminated, truncated
            }
            if "reward_baseline" in rows.fields:
                fields["reward_baseline"] = BlockField((agents,), np.float32)
        # The last arrays of the block, of which only as much is sent as is used.
        fields["final_agent"] = BlockField((agents,), np.int64)
        fields["final_observation"] = fields["observation"]
        self.up = Uploads(fields, state.device)
        per_agent = {"action": BlockField((agents, *batch.action.shape[2:]), rows.fields["action"].dtype)}
        if not self.on_device:
            per_agent |= {name: BlockField((agents,), np.float32) for name in ("log_prob", "value")}
        self.down = Downloads(per_agent, state.device)
        # Truncated steps of this round: their values are computed together, at the end.
        self.finals = Finals(agents, observation, state)


class Finals:
    """Final observations of truncated steps, with the states before the reset, and where their values belong."""

    def __init__(self, capacity: int, observation: Array, state: Tensor) -> None:
        self.count, self._capacity = 0, capacity
        dtype = torch.from_numpy(observation[:0]).dtype
        self.observation = torch.zeros((capacity, *observation.shape[1:]), dtype=dtype, device=state.device)
        self.state = torch.zeros((capacity, *state.shape[2:]), device=state.device)
        self._place = Uploads({"place": BlockField((capacity,), np.int64)}, state.device)
        self.place = np.zeros(capacity, np.int64)  # in [T, R, a]

    def add(self, observation: Tensor, state: Tensor, place: Array) -> None:
        some = slice(self.count, self.count + len(place))
        self.observation[some].copy_(observation)
        if state.numel():
            self.state[some].copy_(state)
        self.place[some] = place
        self.count += len(place)

    def fits(self, count: int) -> bool:
        return self.count + count <= self._capacity

    def write_values(self, actor: DeviceActor, rows: Rows) -> None:
        """Compute the values and write them into the rows."""
        if not self.count:
            return
        value = actor.value_on_device(self.observation[: self.count], self.state[: self.count])
        if rows.device.type == "cpu":
            final = rows["final_value"].numpy()
            t, row, agent = np.unravel_index(self.place[: self.count], (rows.horizon, rows.rows, rows.agents_per_row))
            final[row, t, agent] = value.cpu().numpy()
        else:
            self._place.open()
            self._place.arrays["place"][: self.count] = self.place[: self.count]
            self._place.send(8 * self.count)
            flat = rows["final_value"].transpose(0, 1).view(-1)
            flat.index_copy_(0, self._place.tensors["place"][: self.count], value)
            self._place.release()
        self.count = 0


class DeviceSlice:
    """Envs that step together, with a policy on a device, and rows there or, with `trainer.cpu_offload`, on the host.

    Outcomes of a step are sent together with the next observation, so that each step has one upload.
    """

    def __init__(self, batch: Batch, rows: Rows, row: int, state: Tensor, lane: Lane, place: Any = None) -> None:
        """`place` names states and a lane that are always in the same memory; None: they are not."""
        self.batch, self.row = batch, row
        self.agents, self.action_shape = batch.reward.shape, batch.action.shape
        self.observation = joined(batch.observation)
        self.mask = joined(batch.action_mask) if batch.action_mask.shape[-1] else None
        self.state, self.joined_state = state, state.flatten(0, 1)
        self.remembers = state.numel() > 0
        self.alive = np.zeros(self.agents, bool)
        self._rows, self._lane, self._count = rows, lane, self.observation.shape[0]
        self._host_places = rows.places(row, batch.num_envs)  # None if the rows are on the device
        self._places = rows.device_places(row, batch.num_envs)
        self._place = place
        self._outcome_at = -1  # time of an outcome that is not sent yet
        self._resets, self._centers, self._finals = False, False, 0
        self._final_places: Array = np.zeros(0, np.int64)  # in [T, R, a]
        self._is_open = False
        self._copies: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}  # targets and sources, by dtype

    def act(self, actor: DeviceActor, generator: torch.Generator | None, t: int) -> tuple[Array, Any, Any]:
        tensors = self._send(actor)
        mask = tensors.get("action_mask")
        asked = tensors["observation"], self.joined_state, mask, generator
        acted = actor.act_on_device(*asked) if self._place is None else actor.act_in_place(self._place, *asked)
        if self._host_places is None:
            place = self._places["action"][t]
            place.copy_(acted.action.view(place.shape))  # in the dtype that the envs take
            return self._lane.down.fetch({"action": self._places["action"][t]})["action"], acted.log_prob, acted.value
        fetched = self._lane.down.fetch(
            {"action": acted.action, "log_prob": acted.log_prob.float(), "value": acted.value.float()}
        )
        return fetched["action"], fetched["log_prob"], fetched["value"]

    def store(self, t: int, action: Array, log_prob: Any, value: Any) -> None:
        if self._host_places is not None:
            places, batch = self._host_places, self.batch
            values = {"observation": batch.observation, "action": action, "alive": batch.alive}
            values |= {"log_prob": log_prob.reshape(self.agents), "value": value.reshape(self.agents)}
            for name, array in values.items():
                places[name][t] = array
            if self.mask is not None:
                places["action_mask"][t] = batch.action_mask
            self._lane.up.release()
            return
        tensors = self._lane.up.tensors
        for name in ("observation", "alive", *(("action_mask",) if self.mask is not None else ())):
            self._put(name, t, tensors[name])
        self._put("log_prob", t, log_prob)
        self._put("value", t, value)
        self._write()
        self._lane.up.release()

    def _put(self, name: str, t: int, values: Tensor) -> None:
        self._put_at(self._places[name][t], values)

    def _put_at(self, target: Tensor, values: Tensor) -> None:
        targets, sources = self._copies.setdefault(target.dtype, ([], []))
        targets.append(target)
        sources.append(values.view(target.shape))

    def _write(self) -> None:
        """Write what was put, all arrays of a dtype together."""
        for targets, sources in self._copies.values():
            torch._foreach_copy_(targets, sources)
        self._copies.clear()

    def store_outcome(self, t: int, terminated: Array) -> None:
        self._outcome_at, batch = t, self.batch
        if self._host_places is not None:
            for name, array in (("reward", batch.reward), ("terminated", terminated), ("truncated", batch.truncated)):
                self._host_places[name][t] = array
            return
        arrays = self._open()
        arrays["reward"][:] = batch.reward.reshape(-1)
        arrays["ends"][0], arrays["ends"][1] = terminated.reshape(-1), batch.truncated.reshape(-1)

    def write(self, name: str, t: int, values: Array) -> None:
        if self._host_places is not None:
            self._host_places[name][t] = values
            return
        assert name == "reward_baseline"
        assert t == self._outcome_at
        self._open()[name][:] = values.reshape(-1)
        self._centers = True

    def reset_state(self, ended: Array) -> None:
        self._open()["reset"][:] = ended.reshape(-1)
        self._resets = True

    def value_finals(self, actor: DeviceActor, env: Array, agent: Array, observation: Array, t: int) -> None:
        arrays, count = self._open(), len(env)
        arrays["final_agent"][:count] = env * self.agents[1] + agent
        arrays["final_observation"][:count] = observation
        rows, per_row = self._rows, self._rows.agents_per_row
        row = self.row + (env if rows.rows_per_env == 1 else env * rows.rows_per_env + agent)
        self._final_places = (t * rows.rows + row) * per_row + (agent if per_row > 1 else 0)
        self._finals = count

    def end_round(self, actor: DeviceActor, *, bootstraps: bool) -> None:
        tensors = self._send(actor)
        self._write()
        if bootstraps:
            value = actor.value_on_device(tensors["observation"], self.joined_state)
            self._rows.write_row("next_value", self.row, value.view(self.agents))
        self._lane.up.release()
        self._lane.finals.write_values(actor, self._rows)

    def _open(self) -> Mapping[str, Array]:
        if not self._is_open:
            self._lane.up.open()
            self._is_open = True
        return self._lane.up.arrays

    def _send(self, actor: DeviceActor) -> Mapping[str, Tensor]:
        """Send the current observations with the last outcome, write it into the rows, and reset states."""
        arrays, up, batch = self._open(), self._lane.up, self.batch
        arrays["observation"][:] = self.observation
        if self.mask is not None:
            arrays["action_mask"][:] = self.mask
        if self._host_places is None:
            arrays["alive"][:] = batch.alive.reshape(-1)
        end = up.offsets["final_observation"] + self._finals * arrays["final_observation"][0].nbytes
        up.send(end if self._finals else up.offsets["final_agent"])
        self._is_open = False
        tensors = up.tensors
        if self._host_places is None and self._outcome_at >= 0:
            self._put("reward", self._outcome_at, tensors["reward"])
            for place, ended in zip(self._places["ends"][:, self._outcome_at], tensors["ends"], strict=True):
                self._put_at(place, ended)
            if self._centers:
                self._put("reward_baseline", self._outcome_at, tensors["reward_baseline"])
        if self._finals:
            finals, count = self._lane.finals, self._finals
            if not finals.fits(count):
                finals.write_values(actor, self._rows)
            state = self.joined_state.index_select(0, tensors["final_agent"][:count])
            finals.add(tensors["final_observation"][:count], state, self._final_places)
        if self._resets:
            self.joined_state.masked_fill_(tensors["reset"].view(-1, 1, 1), 0.0)
        self._outcome_at, self._finals, self._resets, self._centers = -1, 0, False, False
        return tensors


def joined(array: Array) -> Array:
    """[n, A, ...] -> [n * A, ...], the same memory."""
    flat = array.reshape(-1, *array.shape[2:])
    assert np.may_share_memory(flat, array), "the arrays of a vector are contiguous"
    return flat
