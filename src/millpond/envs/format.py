"""Observations and actions in the environment's own format, to and from the arrays of its spec: single values and batches.

Environments of Gymnasium and PettingZoo, and custom ones made of such envs, have the values of their spaces; a batch has one
more axis in every array. Other environments have the arrays of their spec.

B values in a batch
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from millpond.envs.env_batch import EnvError, NotInSpaceError
from millpond.envs.families import LOOPED, family_of
from millpond.envs.registry import REWARD_NAMES, make_env_batch
from millpond.envs.spec import EnvSpec, Part

if TYPE_CHECKING:
    from millpond.envs.adapters.pettingzoo import PettingZooSpaces
    from millpond.envs.spaces import ActionLayout, ObservationLayout

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class EncodedObservations:
    """Observations as a policy reads them."""

    observation: Array  # [B, *spec.observation.shape]
    mask: Array | None  # [B, entries of a mask], if the observation had one in it
    single: bool  # it was one observation, not a batch of them


class EnvFormat:
    """The format of an environment with its spec alone: arrays, or for several parts a mapping of them."""

    agents: tuple[Any, ...] = ()  # names of the agents, if observations and actions come as dicts of them
    observations: ObservationLayout | None = None  # of the env's spaces, if it has any
    actions: ActionLayout | None = None

    def __init__(self, spec: EnvSpec) -> None:
        self.spec = spec

    def encode(self, observation: Any) -> EncodedObservations:
        """Return one observation, or a batch of them, as a batch of arrays."""
        spec = self.spec.observation
        if isinstance(observation, Mapping):
            return self._join(observation)
        array = np.asarray(observation)
        if array.shape not in (spec.shape, (*array.shape[:1], *spec.shape)) or not _same_kind(array, spec.dtype):
            parts = ", ".join(f"{part.name} {part.dtype} {part.shape}" for part in spec.parts)
            several = f", or a mapping of the parts: {parts}" if len(spec.parts) > 1 else ""
            raise EnvError(
                f"an observation of {array.dtype} {array.shape}; {self.spec.id} has {spec.dtype} {spec.shape}, or batches of "
                f"{('B', *spec.shape)}{several}"
            )
        single = array.shape == spec.shape
        _require_some(1 if single else len(array))
        return EncodedObservations(np.array(array[None] if single else array, spec.dtype), None, single)

    def decode(self, action: Array, single: bool) -> Any:
        """Return actions [B, ...] as the environment takes them; one without its axis if `single`."""
        actions = action.astype(np.int64) if self.spec.action.kind == "discrete" else action
        return actions[0] if single else actions

    def encode_agent(self, agent: Any, observation: Any, mask: Any) -> EncodedObservations:
        """Return the observation of one agent of a parallel env, with `mask` if there is one, as a batch of one."""
        encoded = self.encode(observation)
        return encoded if mask is None else replace(encoded, mask=np.asarray(mask, np.bool_).reshape(1, -1))

    def decode_agent(self, agent: Any, action: Array) -> Any:
        """Return the action [1, ...] of one agent of a parallel env as it takes it."""
        return self.decode(action, True)

    def _join(self, parts: Mapping[Any, Any]) -> EncodedObservations:
        spec = self.spec.observation
        names = [part.name for part in spec.parts]
        if set(parts) != set(names):
            raise EnvError(
                f"an observation of {self.spec.id} has the parts {', '.join(names)}, not {', '.join(map(str, parts))}"
            )
        single = np.ndim(parts[names[0]]) == len(spec.parts[0].shape)
        batch = 1 if single else len(parts[names[0]])
        stored = np.zeros((batch, spec.nbytes), np.uint8)
        for part in spec.parts:
            array = self._part(parts[part.name], part, None if single else batch)
            stored[:, part.offset : part.offset + part.nbytes] = array.reshape(batch, -1).view(np.uint8)
        return EncodedObservations(stored.view(spec.dtype).reshape(batch, *spec.shape), None, single)

    def _part(self, value: Any, part: Part, batch: int | None) -> Array:
        array, shape = np.ascontiguousarray(value, part.dtype), part.shape if batch is None else (batch, *part.shape)
        if array.shape != shape:
            raise EnvError(f"observation part {part.name!r} has shape {array.shape}; it must be {shape}")
        return array


def _same_kind(array: Array, dtype: str) -> bool:
    return array.dtype.kind in "fiub" and (array.dtype.kind == "f") == (np.dtype(dtype).kind == "f")


class SpaceFormat(EnvFormat):
    """The format of Gymnasium spaces: those of the env, or of each agent of a parallel env."""

    observations: ObservationLayout
    actions: ActionLayout

    def __init__(self, spec: EnvSpec, observation_space: Any, action_space: Any, agents: tuple[Any, ...] = ()) -> None:
        from millpond.envs.masks import shows_mask
        from millpond.envs.spaces import ActionLayout, ObservationLayout

        super().__init__(spec)
        self.agents = agents
        self._mask_within = shows_mask(observation_space)
        self._space = observation_space["observation"] if self._mask_within else observation_space
        self._action_space = action_space
        self.observations = ObservationLayout(self._space, spec.id)
        self.actions = ActionLayout(action_space, spec.id, clip=True)
        if (self.observations.spec, self.actions.spec) != (spec.observation, spec.action):
            raise EnvError(
                f"the spaces of {spec.id} are not those of its spec; use act() with arrays of `spec.observation`"
            )

    def encode(self, observation: Any) -> EncodedObservations:
        mask = None
        if self._mask_within and isinstance(observation, Mapping):
            observation, mask = observation["observation"], np.asarray(observation["action_mask"], np.bool_)
        single, batch = _count(observation, self._space, self.spec.id)
        _require_some(batch)
        values = [observation] if single else [_pick(observation, self._space, index) for index in range(batch)]
        spec = self.spec.observation
        stored = np.zeros((len(values), *spec.shape), spec.dtype)
        with _passed_by_caller(self.spec.id):
            self.observations.write_all(values, stored)
        return EncodedObservations(stored, mask if mask is None else mask.reshape(len(values), -1), single)

    def decode(self, action: Array, single: bool) -> Any:
        actions = _stack([self.actions.read(one) for one in action], self._action_space)
        return _pick(actions, self._action_space, 0) if single else actions


class AgentsFormat(EnvFormat):
    """The format of a parallel env whose agents have different spaces: dicts by agent, padded as in training."""

    def __init__(self, spaces: PettingZooSpaces) -> None:
        super().__init__(spaces.spec)
        self.agents, self._spaces = tuple(spaces.agents), spaces

    def encode(self, observation: Any) -> EncodedObservations:
        raise EnvError(
            f"agents of {self.spec.id} have different spaces: pass a dict of observations by agent, with names among "
            f"{', '.join(map(str, self.agents))}"
        )

    def encode_agent(self, agent: Any, observation: Any, mask: Any) -> EncodedObservations:
        spaces, number = self._spaces, self._spaces.index[agent]
        if spaces.mask_in_observation[number]:
            mask = observation["action_mask"] if mask is None else mask
            observation = observation["observation"]
        shown = self.spec.observation
        stored, masks = np.zeros((1, *shown.shape), shown.dtype), np.zeros((1, self.spec.action.mask_size), np.bool_)
        with _passed_by_caller(self.spec.id):
            spaces.observation.write(number, observation, stored[0])
        spaces.action.write_mask(number, mask, masks[0], env_id=self.spec.id, env=0)
        return EncodedObservations(stored, masks if self.spec.action_masks else None, True)

    def decode_agent(self, agent: Any, action: Array) -> Any:
        return self._spaces.action.read(self._spaces.index[agent], action[0])


@contextmanager
def _passed_by_caller(env_id: str) -> Iterator[None]:
    """Report observations that are not in the space as those of the caller, not of the env."""
    try:
        yield
    except NotInSpaceError as error:
        raise EnvError(f"{env_id}: predict was called with {error.what}") from error


def _require_some(batch: int) -> None:
    if not batch:
        raise EnvError("a batch of 0 observations; pass at least one")


def _inner(space: Any) -> list[tuple[Any, Any]] | None:
    """Return the parts of a Dict or Tuple; None of any other space."""
    import gymnasium.spaces as gs

    if isinstance(space, gs.Dict):
        return list(space.spaces.items())
    return list(enumerate(space.spaces)) if isinstance(space, gs.Tuple) else None


def _count(value: Any, space: Any, env_id: str) -> tuple[bool, int]:
    """Return True for a single value of a space, and the number of values of a batch."""
    inner = _inner(space)
    try:
        if inner is not None:
            return _count(value[inner[0][0]], inner[0][1], env_id)
        shown, own = np.shape(value), tuple(space.shape or ())
        extra = len(shown) - len(own) if shown[len(shown) - len(own) :] == own else -1
    except (TypeError, LookupError, ValueError):
        extra = -1
    if extra not in (0, 1):
        shape = f"shape {np.shape(value)}" if isinstance(value, np.ndarray) else f"{type(value).__name__} {value!r:.60}"
        raise EnvError(
            f"an observation with {shape} is neither a value of {env_id}'s space {space}, nor a batch of them"
        )
    return extra == 0, len(value) if extra else 1


def _pick(value: Any, space: Any, index: int) -> Any:
    """Return one value of a batch."""
    inner = _inner(space)
    if inner is None:
        return value[index]
    picked = {key: _pick(value[key], part, index) for key, part in inner}
    return picked if hasattr(space, "keys") else tuple(picked.values())


def _stack(values: list[Any], space: Any) -> Any:
    """Return a batch of values of a space: arrays with one more axis, in the structure of the space."""
    inner = _inner(space)
    if inner is None:
        return np.stack([np.asarray(value) for value in values])
    stacked = {key: _stack([value[key] for value in values], part) for key, part in inner}
    return stacked if hasattr(space, "keys") else tuple(stacked.values())


def format_of(env_id: str, options: Mapping[str, Any], spec: EnvSpec) -> EnvFormat:
    """Return the format of an environment; one env is made and closed if only it knows its spaces."""
    family = family_of(env_id)
    if family is None or family.name not in LOOPED:
        return EnvFormat(spec)
    plain = {name: value for name, value in options.items() if name not in REWARD_NAMES}
    env_batch: Any = make_env_batch(env_id, 1, plain)
    try:
        if not getattr(env_batch, "envs", None):
            return EnvFormat(spec)  # a custom batch
        env = env_batch.envs[0]
        if not hasattr(env, "possible_agents"):
            return SpaceFormat(spec, env.observation_space, env.action_space)
        from millpond.envs.adapters.pettingzoo import PettingZooSpaces

        agents = tuple(env.possible_agents)
        spaces = [(env.observation_space(agent), env.action_space(agent)) for agent in agents]
        if all(each == spaces[0] for each in spaces):
            return SpaceFormat(spec, *spaces[0], agents)
        return AgentsFormat(PettingZooSpaces(env, env_id, replace(env_batch.options, clip_actions=True)))
    finally:
        env_batch.close()
