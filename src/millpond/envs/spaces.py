"""Gymnasium spaces as arrays: one flat array per observation, one row of numbers per action; and action masks.

Box            unchanged, except that shape () becomes (1,), images become channels first, and dtypes that torch hardly
               supports change: float64 becomes float32, bool uint8, uint16 int32, uint32 int64
Discrete       one-hot bytes            MultiDiscrete   one-hot bytes, one after another
MultiBinary    bytes                    Dict, Tuple     their parts one after another, named a/b

An env may report its action mask, in this order of preference, in `infos["action_mask"]`, by a method `action_masks()` or
`action_mask()`, or in an observation that is a Dict of `observation` and `action_mask` (as in PettingZoo). A mask has one
entry per choice, True if it is allowed; for several choices at once (MultiDiscrete) the masks are concatenated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium.spaces as gs
import numpy as np
import numpy.typing as npt

from millpond.envs.env_batch import EnvError
from millpond.envs.spec import ActionSpec, ObservationSpec, Part, PartKind

Array = npt.NDArray[Any]
STORED = {"float64": "float32", "longdouble": "float32", "bool": "uint8", "uint16": "int32", "uint32": "int64"}
NUMBERS = "fiub"  # kinds of dtypes that are numbers: floats, integers, booleans
REFUSED = ("uint64",)  # no signed dtype holds all its values


def is_image(space: gs.Box) -> bool:
    """True for a Box of bytes with two or three axes, of which at least two have 8 or more entries."""
    return space.dtype == np.uint8 and len(space.shape) in (2, 3) and sum(side >= 8 for side in space.shape) >= 2


def channels_last(shape: tuple[int, ...]) -> bool:
    return len(shape) == 3 and shape[2] < shape[0] and shape[2] <= shape[1]


class Leaf:
    """One part of an observation: its path in a value of the space, and its encoding."""

    def __init__(self, name: str, path: tuple[str | int, ...], space: Any, env_id: str) -> None:
        self.name = name or "observation"
        self.path = path
        self.space, self.env_id = space, env_id
        self.kind: PartKind = "vector"
        self.dtype = "uint8"
        self.high: float | None = 1.0
        self.encode: Callable[[Any], Array]
        if isinstance(space, gs.Box):
            if space.dtype.name in REFUSED:
                raise EnvError(
                    f"env {env_id!r}: observation part {self.name!r} is a Box of {space.dtype.name}, which torch cannot "
                    "compute with; show it as uint8, int32, int64 or float32 (gymnasium.wrappers.TransformObservation)"
                )
            self.dtype = STORED.get(space.dtype.name, space.dtype.name)
            finite = np.isfinite(space.high).all() and space.dtype.kind != "f"
            self.high = float(np.max(space.high)) if finite else None
            self.shape: tuple[int, ...] = tuple(space.shape) or (1,)
            self.encode = np.asarray if space.shape else one_number
            if is_image(space):
                self.kind = "pixels"
                if len(self.shape) == 2:
                    self.shape = (1, *self.shape)
                    self.encode = lambda value: np.asarray(value)[None]
                elif channels_last(self.shape):
                    self.shape = (self.shape[2], self.shape[0], self.shape[1])
                    self.encode = lambda value: np.moveaxis(value, 2, 0)
        elif isinstance(space, gs.Discrete):
            self.shape = (int(space.n),)
            eye, start = np.eye(int(space.n), dtype=np.uint8), int(space.start)
            self.encode = lambda value: np.asarray(eye[int(value) - start])
        elif isinstance(space, gs.MultiDiscrete):
            sizes, start_at = space.nvec.ravel(), space.start.ravel()
            self.shape = (int(sizes.sum()),)
            ends = np.concatenate([[0], np.cumsum(sizes)[:-1]]) - start_at
            self.encode = lambda value: one_hots(np.asarray(value).ravel() + ends, self.shape[0])
        elif isinstance(space, gs.MultiBinary):
            self.shape = tuple(space.shape)
            self.encode = np.asarray
        else:
            raise EnvError(
                f"env {env_id!r}: observation part {self.name!r} is a {type(space).__name__} space, which has no fixed "
                "size; wrap the env so that it shows Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of "
                "these (gymnasium.wrappers.TransformObservation)"
            )

    def read(self, value: Any) -> Array:
        """Return this part of a value of the space, encoded; refuse what is not a value of its shape and kind."""
        found = value
        try:
            for key in self.path:
                found = found[key]
            encoded = self.encode(found)
        except (TypeError, ValueError, LookupError) as error:
            raise self.refusal(found, f"{type(error).__name__}: {error}") from error
        if encoded.shape != self.shape:
            raise self.refusal(found, f"its shape is not {self.space.shape}")
        if encoded.dtype != self.dtype and not fits(encoded, np.dtype(self.dtype)):
            numbers = encoded.dtype.kind in NUMBERS
            raise self.refusal(found, f"it does not fit into {self.dtype}" if numbers else "it is not made of numbers")
        return encoded

    def refusal(self, value: Any, why: str) -> EnvError:
        """Return the error of an env that returned this value."""
        part = f" as part {self.name!r} of an observation" if self.path else " as an observation"
        return EnvError(
            f"env {self.env_id!r} returned {describe_value(value)}{part}, which is not in its space {self.space}: {why}. "
            f"Return a value of the space, or change observation_space; `millpond envs check {self.env_id}` checks it"
        )


def one_number(value: Any) -> Array:
    """Return a value of a Box without axes as an array of one number."""
    array = np.asarray(value)
    return array.reshape(1) if array.size == 1 else array


def fits(array: Array, dtype: np.dtype[Any]) -> bool:
    """Return True if numbers can be stored in a dtype without becoming other numbers: text, None and objects cannot.

    Floats may be rounded to fewer digits. They are stored as integers only if they are whole.
    """
    if array.dtype.kind not in NUMBERS:
        return False
    if dtype.kind == "f" or np.can_cast(array.dtype, dtype, "safe"):
        return True
    with np.errstate(invalid="ignore"):
        return bool((array.astype(dtype) == array).all())


def describe_value(value: Any) -> str:
    """Describe what an env returned, on one line: type, dtype and shape if it is an array, and its first characters."""
    text = " ".join(repr(value).split())
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    kind = f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
    return f"{shown} ({kind})"


def read_rewards(values: Sequence[Any]) -> Array | None:
    """Return one number per env or agent, or None if one of them is not a number: None would become NaN, text a number."""
    try:
        rewards = np.array(values)
    except ValueError:  # of different shapes
        return None
    fit = rewards.dtype.kind in NUMBERS and rewards.size == len(values)
    return rewards.reshape(len(values)) if fit else None


def reward_refusal(value: Any, env_id: str, agent: Any = None) -> EnvError:
    """Return the error of an env that returned this as a reward."""
    who = "" if agent is None else f" of agent {agent!r}"
    return EnvError(
        f"env {env_id!r} returned the reward{who} {describe_value(value)}, which is not a number. Return a float; 0.0 where "
        f"there is no reward"
    )


def one_hots(indices: Array, size: int) -> Array:
    encoded = np.zeros(size, np.uint8)
    encoded[indices] = 1
    return encoded


def leaves(space: Any, env_id: str, name: str = "", path: tuple[str | int, ...] = ()) -> list[Leaf]:
    """Return the parts of a space in a fixed order: of a Dict in Gymnasium's order of keys, of a Tuple by index."""
    if isinstance(space, gs.Dict):
        inner: list[tuple[str | int, Any]] = list(space.spaces.items())
    elif isinstance(space, gs.Tuple):
        inner = list(enumerate(space.spaces))
    else:
        return [Leaf(name, path, space, env_id)]
    return [
        leaf
        for key, part in inner
        for leaf in leaves(part, env_id, f"{name}/{key}" if name else str(key), (*path, key))
    ]


class ObservationLayout:
    """Writes values of a space into the array of an `ObservationSpec`."""

    def __init__(self, space: Any, env_id: str) -> None:
        self._leaves = leaves(space, env_id)
        if not self._leaves:
            raise EnvError(f"env {env_id!r}: its observation space {space} has no parts; it needs at least one number")
        self._plain = not self._leaves[0].path and self._leaves[0].encode is np.asarray  # a value is stored unchanged
        if len(self._leaves) == 1:
            leaf = self._leaves[0]
            self.spec = ObservationSpec.single(leaf.shape, leaf.dtype, leaf.kind, leaf.name, leaf.high)
        else:
            self.spec = ObservationSpec.packed(
                [(leaf.name, leaf.kind, leaf.shape, leaf.dtype) for leaf in self._leaves],
                high={leaf.name: leaf.high for leaf in self._leaves if leaf.high is not None},
            )

    def write_all(self, values: list[Any], into: Array, watch: Callable[[int], None] | None = None) -> None:
        """Write one value of the space per agent; refuse values that are not in it.

        `watch` is called with the index of the value before it is written, if values are written one by one.
        """
        if self._plain:
            try:
                array = np.array(values)
            except ValueError:  # of different shapes
                array = np.array(None)
            if array.shape == into.shape and (array.dtype == into.dtype or fits(array, into.dtype)):
                into[...] = array
                return
        for index, (value, row) in enumerate(zip(values, into, strict=True)):
            if watch is not None:
                watch(index)
            self.write(value, row)

    def write(self, value: Any, into: Array) -> None:
        """Write a value of the space into one agent's array; refuse one that is not in it."""
        if len(self._leaves) == 1:
            into[...] = self._leaves[0].read(value)
            return
        raw = into.view(np.uint8)
        for leaf, part in zip(self._leaves, self.spec.parts, strict=True):
            array = np.ascontiguousarray(leaf.read(value), part.dtype)
            raw[part.offset : part.offset + part.nbytes] = array.reshape(-1).view(np.uint8)


def read_part(stored: Array, spec: ObservationSpec, part: Part) -> Array:
    """Return a part of stored observations [..., *spec.shape] as an array [..., *part.shape]."""
    lead = stored.shape[: stored.ndim - len(spec.shape)]
    raw = np.ascontiguousarray(stored).reshape(*lead, -1).view(np.uint8)
    part_bytes = np.ascontiguousarray(raw[..., part.offset : part.offset + part.nbytes])
    return part_bytes.view(part.dtype).reshape(*lead, *part.shape)


class ActionLayout:
    """Converts stored actions to values of a Gymnasium space."""

    def __init__(self, space: Any, env_id: str, clip: bool = False) -> None:
        self._space = space
        if isinstance(space, gs.Discrete):
            self.spec = ActionSpec.discrete(int(space.n))
        elif isinstance(space, gs.MultiDiscrete):
            self.spec = ActionSpec.multidiscrete(tuple(int(size) for size in space.nvec.ravel()))
        elif isinstance(space, gs.MultiBinary):
            self.spec = ActionSpec.multidiscrete((2,) * int(np.prod(space.shape)))
        elif isinstance(space, gs.Box) and space.dtype.kind == "f":
            low, high = space.low.ravel().tolist(), space.high.ravel().tolist()
            self.spec = ActionSpec.continuous(tuple(low), tuple(high))
        else:
            raise EnvError(
                f"env {env_id!r}: no policy here can act in its action space {space}; wrap the env so "
                "that it takes Discrete, MultiDiscrete, MultiBinary or a Box of floats "
                "(gymnasium.wrappers.TransformAction)"
            )
        self._clip = clip and isinstance(space, gs.Box)
        self._start = int(space.start) if isinstance(space, gs.Discrete) else None

    def read_all(self, stored: Array) -> list[Any]:
        """Return stored actions [N, ...] of N agents as their envs expect them."""
        if self._start is not None:
            actions = stored.astype(np.int64)  # the type that space.sample() returns
            return list(actions + self._start if self._start else actions)
        if isinstance(self._space, gs.Box):
            return list(self._read_box(stored, (len(stored), *self._space.shape)))
        return [self.read(action) for action in stored]

    def read(self, stored: Array) -> Any:
        """Return a stored action of one agent as the env expects it."""
        space = self._space
        if isinstance(space, gs.Discrete):
            return int(stored) + int(space.start)
        if isinstance(space, gs.MultiDiscrete):
            return stored.reshape(space.shape) + space.start
        if isinstance(space, gs.Box):
            return self._read_box(stored, space.shape)
        return stored.reshape(space.shape).astype(space.dtype)

    def _read_box(self, stored: Array, shape: tuple[int, ...]) -> Array:
        """Return a copy of one stored action, or of several, as values of a Box."""
        value = stored.reshape(shape).astype(self._space.dtype)
        return np.clip(value, self._space.low, self._space.high) if self._clip else value


def mask_method(env: Any) -> Callable[[], Any] | None:
    """Return the env's own method for masks, also through Gymnasium's wrappers."""
    base = getattr(env, "unwrapped", env)
    for holder in (env, base):
        for name in ("action_masks", "action_mask"):
            method = getattr(holder, name, None) if not isinstance(holder, gs.Space) else None
            if callable(method):
                return method  # type: ignore[no-any-return]
    return None


def shows_mask(space: Any) -> bool:
    """True if an observation space is a Dict of the observation and the mask."""
    return isinstance(space, gs.Dict) and set(space.spaces) == {"observation", "action_mask"}


def find_mask(infos: Mapping[str, Any], observation: Any, env: Any, *, in_observation: bool) -> Any:
    """Return the current mask of an env, or None."""
    if "action_mask" in infos:
        return infos["action_mask"]
    if in_observation:
        return observation["action_mask"]
    method = mask_method(env)
    return None if method is None else method()


def write_mask(mask: Any, into: npt.NDArray[np.bool_], *, env_id: str, env: int) -> None:
    """Check a mask and write it; None allows everything."""
    if mask is None:
        into[...] = True
        return
    flat = np.concatenate([np.ravel(part) for part in mask]) if isinstance(mask, tuple) else np.ravel(mask)
    if flat.shape != into.shape:
        raise EnvError(
            f"env {env_id!r} (env {env}) gave an action mask of {flat.size} entries, but there are {into.size} "
            "choices; a mask has one entry for each choice"
        )
    into[...] = flat.astype(bool)
    if not into.any():
        raise EnvError(f"env {env_id!r} (env {env}) gave an action mask that allows nothing; allow at least one action")
