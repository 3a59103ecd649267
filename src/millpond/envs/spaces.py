"""Gymnasium spaces as arrays: one flat array per observation, one row of numbers per action.

Box            unchanged, except that shape () becomes (1,), images become channels first, and dtypes that torch hardly
               supports change: float64 becomes float32, bool uint8, uint16 int32, uint32 int64
Discrete       one-hot bytes            MultiDiscrete   one-hot bytes, one after another
MultiBinary    bytes                    Dict, Tuple     their parts one after another, named a/b
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium.spaces as gs
import numpy as np
import numpy.typing as npt

from millpond.envs.env_batch import EnvError, NotInSpaceError
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
            self.encode = lambda value: np.asarray(eye[option_of(value, start, len(eye))])
        elif isinstance(space, gs.MultiDiscrete):
            sizes, start_at = space.nvec.ravel(), space.start.ravel()
            self.shape = (int(sizes.sum()),)
            first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
            self.encode = lambda value: one_hots(options_of(value, start_at, sizes) + first, self.shape[0])
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
        for key in self.path:
            try:
                found = found[key]
            except (TypeError, LookupError) as error:
                raise self.refusal(found, f"it has no {key!r}") from error
        try:
            encoded = self.encode(found)
        except (TypeError, ValueError, LookupError) as error:
            raise self.refusal(found, f"{type(error).__name__}: {error}") from error
        if encoded.shape != self.shape:
            raise self.refusal(found, f"its shape is not {self.space.shape}")
        if encoded.dtype != self.dtype and not fits(encoded, np.dtype(self.dtype)):
            numbers = encoded.dtype.kind in NUMBERS
            raise self.refusal(found, f"it does not fit into {self.dtype}" if numbers else "it is not made of numbers")
        return encoded

    def refusal(self, value: Any, why: str) -> NotInSpaceError:
        """Return the error of an env that returned this value."""
        part = f"part {self.name!r} of an observation" if self.path else "an observation"
        return NotInSpaceError(
            self.env_id, f"{describe_value(value)} as {part}, which is not in its space {self.space}: {why}"
        )


def option_of(value: Any, start: int, count: int) -> int:
    """Return the index of a value of a Discrete space; refuse others, which would index from the end, or be cut."""
    option = int(value) - start
    if not 0 <= option < count or option + start != value:
        raise ValueError(f"it is not a whole number from {start} to {start + count - 1}")
    return option


def options_of(value: Any, start: Array, count: Array) -> Array:
    """Return the indices of a value of a MultiDiscrete space; refuse others, which would be options of the next choice."""
    options: Array = np.asarray(value).ravel() - start
    if (options < 0).any() or (options >= count).any():
        raise ValueError(f"a number is not from {start.tolist()} to {(start + count - 1).tolist()}")
    return options


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


def tree_leaves(
    space: Any, name: str = "", path: tuple[str | int, ...] = ()
) -> Iterator[tuple[str, tuple[str | int, ...], Any]]:
    """Yield name, path and space of each part: of a Dict in Gymnasium's order of keys, of a Tuple by index."""
    if isinstance(space, gs.Dict):
        inner: list[tuple[str | int, Any]] = list(space.spaces.items())
    elif isinstance(space, gs.Tuple):
        inner = list(enumerate(space.spaces))
    else:
        yield name, path, space
        return
    for key, part in inner:
        yield from tree_leaves(part, f"{name}/{key}" if name else str(key), (*path, key))


class ObservationLayout:
    """Writes values of a space into the array of an `ObservationSpec`."""

    def __init__(self, space: Any, env_id: str) -> None:
        self._leaves = [Leaf(name, path, part, env_id) for name, path, part in tree_leaves(space)]
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

    @property
    def leaves(self) -> Sequence[Leaf]:
        """Parts of the space, in the order of the spec's."""
        return self._leaves

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
        for encoded, part in zip(self.encode(value), self.spec.parts, strict=True):
            array = np.ascontiguousarray(encoded, part.dtype)
            raw[part.offset : part.offset + part.nbytes] = array.reshape(-1).view(np.uint8)

    def encode(self, value: Any) -> list[Array]:
        """Return the parts of a value of the space as arrays of the parts' shapes; refuse one that is not in it."""
        return [leaf.read(value) for leaf in self._leaves]


def read_part(stored: Array, spec: ObservationSpec, part: Part) -> Array:
    """Return a part of stored observations [..., *spec.shape] as an array [..., *part.shape]."""
    lead = stored.shape[: stored.ndim - len(spec.shape)]
    raw = np.ascontiguousarray(stored).reshape(*lead, -1).view(np.uint8)
    part_bytes = np.ascontiguousarray(raw[..., part.offset : part.offset + part.nbytes])
    return part_bytes.view(part.dtype).reshape(*lead, *part.shape)


def choice_sizes(space: Any) -> tuple[int, ...]:
    """Return the number of options of each choice of a space that is not a Dict or Tuple; a Box has no choices."""
    if isinstance(space, gs.Discrete):
        return (int(space.n),)
    if isinstance(space, gs.MultiDiscrete):
        return tuple(int(size) for size in space.nvec.ravel())
    return (2,) * int(np.prod(space.shape)) if isinstance(space, gs.MultiBinary) else ()


class ActionLeaf:
    """One part of an action: its path in a value of the space, and its place among the choices or the numbers."""

    def __init__(self, name: str, path: tuple[str | int, ...], space: Any, env_id: str, clip: bool) -> None:
        self.name, self.path, self.space, self.clip = name, path, space, clip
        self.sizes = choice_sizes(space)
        self.low: tuple[float, ...] = ()
        self.high: tuple[float, ...] = ()
        if isinstance(space, gs.Box) and space.dtype.kind == "f":
            self.low, self.high = tuple(space.low.ravel().tolist()), tuple(space.high.ravel().tolist())
        elif not self.sizes:
            which = f"part {name!r} of its action space, {space}" if path else f"its action space {space}"
            raise EnvError(
                f"env {env_id!r}: no policy here can act in {which}; wrap the env so that it takes Discrete, MultiDiscrete, "
                "MultiBinary, a Box of floats, or a Dict or Tuple of these (gymnasium.wrappers.TransformAction)"
            )
        self.first = 0  # of its choices or its numbers; set by the layout

    def read(self, choices: Array, numbers: Array) -> Any:
        """Return the value of this part from all choices [C] and numbers [D] of an action."""
        space = self.space
        if isinstance(space, gs.Box):
            return self.read_box(numbers[self.first : self.first + len(self.low)], space.shape)
        chosen = choices[self.first : self.first + len(self.sizes)]
        if isinstance(space, gs.Discrete):
            return int(chosen[0]) + int(space.start)
        if isinstance(space, gs.MultiDiscrete):
            return chosen.reshape(space.shape) + space.start
        return chosen.reshape(space.shape).astype(space.dtype)

    def read_box(self, stored: Array, shape: tuple[int, ...]) -> Array:
        """Return a copy of one stored vector, or of several, as values of a Box."""
        value = stored.reshape(shape).astype(self.space.dtype)
        return np.clip(value, self.space.low, self.space.high) if self.clip else value

    def write(self, value: Any, choices: Array, numbers: Array) -> None:
        """Write the value of this part into all choices [C] and numbers [D] of an action."""
        for key in self.path:
            value = value[key]
        start = self.space.start if isinstance(self.space, gs.Discrete | gs.MultiDiscrete) else 0
        flat = np.ravel(np.asarray(value) - start)
        place = numbers if self.low else choices
        place[self.first : self.first + len(flat)] = flat


class ActionLayout:
    """Converts actions between the policy's format, one array (`spec`), and the env's own: values of a Gymnasium space.

    A Dict or Tuple, nested or not, becomes the choices of all its parts, then their numbers, both in the order of the parts.
    """

    def __init__(self, space: Any, env_id: str, clip: bool = False) -> None:
        self._space, self._env_id = space, env_id
        self._leaves = [ActionLeaf(name, path, leaf, env_id, clip) for name, path, leaf in tree_leaves(space)]
        sizes: tuple[int, ...] = ()
        low: tuple[float, ...] = ()
        high: tuple[float, ...] = ()
        for leaf in self._leaves:
            leaf.first = len(low if leaf.low else sizes)
            sizes, low, high = sizes + leaf.sizes, low + leaf.low, high + leaf.high
        if not sizes and not low:
            raise EnvError(f"env {env_id!r}: its action space {space} has no parts; it needs at least one")
        if sizes and low:
            self.spec = ActionSpec.mixed(sizes, low, high)
        elif low:
            self.spec = ActionSpec.continuous(low, high)
        elif len(self._leaves) == 1 and isinstance(self._leaves[0].space, gs.Discrete):
            self.spec = ActionSpec.discrete(sizes[0])
        else:
            self.spec = ActionSpec.multidiscrete(sizes)

    @property
    def leaves(self) -> Sequence[ActionLeaf]:
        """Parts of the space, in its order."""
        return self._leaves

    def read_all(self, stored: Array) -> list[Any]:
        """Return stored actions [N, ...] of N agents as their envs expect them."""
        space = self._space
        if isinstance(space, gs.Discrete):
            actions = stored.astype(np.int64)  # the type that space.sample() returns
            return list(actions + int(space.start) if space.start else actions)
        if isinstance(space, gs.Box):
            return list(self._leaves[0].read_box(stored, (len(stored), *space.shape)))
        return [self.read(action) for action in stored]

    def read(self, stored: Array) -> Any:
        """Return a stored action of one agent as the env expects it: a number, an array, a dict with its keys, a tuple."""
        return self.read_parts(*self.spec.split(stored))

    def read_parts(self, choices: Array, numbers: Array) -> Any:
        """Return the action of one agent from its choices [C or more] and numbers [D or more]."""
        values = iter([leaf.read(choices, numbers) for leaf in self._leaves])

        def build(space: Any) -> Any:
            if isinstance(space, gs.Dict):
                return {key: build(inner) for key, inner in space.spaces.items()}
            if isinstance(space, gs.Tuple):
                return tuple(build(inner) for inner in space.spaces)
            return next(values)

        return build(self._space)

    def write(self, action: Any) -> Array:
        """Return an action in the env's own format as a stored action: the reverse of `read`."""
        spec = self.spec
        choices, numbers = np.zeros(len(spec.sizes), np.int32), np.zeros(len(spec.low), np.float32)
        try:
            for leaf in self._leaves:
                leaf.write(action, choices, numbers)
        except (TypeError, ValueError, LookupError) as error:
            raise EnvError(
                f"env {self._env_id!r}: {describe_value(action)} is not an action of its space {self._space}: {error}"
            ) from error
        return spec.join(choices, numbers)

    def read_mask(self, mask: Any) -> Array:
        """Return an env's mask as one entry for each option of each choice.

        A mask is one flat array, or has the structure of the space, as Gymnasium's `sample(mask)` takes it: what it says of a
        Box is ignored, and None allows everything.
        """
        pieces = list(_mask_pieces(self._space, mask))
        return np.concatenate(pieces).astype(bool) if pieces else np.zeros(0, bool)


def _mask_pieces(space: Any, mask: Any) -> Iterator[Array]:
    if isinstance(space, gs.Dict) and isinstance(mask, Mapping):
        for key, inner in space.spaces.items():
            yield from _mask_pieces(inner, mask.get(key))
    elif isinstance(space, gs.Tuple) and isinstance(mask, tuple):
        for inner, part in zip(space.spaces, mask, strict=True):
            yield from _mask_pieces(inner, part)
    elif isinstance(space, gs.Box):
        return
    elif mask is None:
        yield from (np.ones(sum(choice_sizes(leaf)), bool) for _, _, leaf in tree_leaves(space))
    elif isinstance(mask, tuple):
        yield from (np.ravel(part) for part in mask)
    else:
        yield np.ravel(mask)
