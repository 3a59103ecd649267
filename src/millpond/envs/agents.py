"""Agents with different spaces as one: padded to common observations and actions, so that one policy acts for all.

Observations   Parts of the same name and kind are padded with zeros at the end to the largest shape; what an agent does not
               have is zero. One more part, `agent`, is one-hot and says of which type an agent is: agents are of one type if
               their spaces are equal and their names differ by a trailing number only (`adversary_0`, `adversary_1`).
Actions        As many choices and numbers as the agents with the most of them. Masks forbid what an agent does not have: of a
               choice that it lacks only option 0 is left, and numbers that it lacks are 0; neither counts in
               log-probabilities and entropies. Numbers whose bounds differ are stored in -1..1, and scaled for each agent.

If all agents have the same spaces, nothing is padded or added.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, prod
from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.envs.masks import write_mask
from millpond.envs.spaces import STORED, ActionLayout, ObservationLayout
from millpond.envs.spec import ActionSpec, ObservationSpec, Part, PartKind, name_stem

Array = npt.NDArray[Any]


def agent_types(names: Sequence[str], spaces: Sequence[tuple[Any, Any]]) -> list[int]:
    """Return the type of each agent, numbered in the order in which they appear; `spaces` of observations and actions."""
    known: list[tuple[str, Any, Any]] = []
    types = []
    for name, (observation, action) in zip(names, spaces, strict=True):
        kind = (name_stem(name), observation, action)
        if kind not in known:
            known.append(kind)
        types.append(known.index(kind))
    return types


class AgentObservations:
    """Writes each agent's observations into arrays of one spec. `types` is None if all have the same space."""

    def __init__(self, layouts: Sequence[ObservationLayout], types: Sequence[int] | None) -> None:
        self._layouts, self._types = layouts, types
        self.spec = layouts[0].spec if types is None else self._common_spec(max(types) + 1)
        self._by_name = {part.name: part for part in self.spec.parts}
        self._indicator = self.spec.parts[-1]

    def _common_spec(self, num_types: int) -> ObservationSpec:
        """Return the spec of all parts of all agents, padded, and the type."""
        alike: dict[tuple[str, PartKind], list[Part]] = {}
        for layout in self._layouts:
            for part in layout.spec.parts:
                alike.setdefault((part.name, part.kind), []).append(part)
        names = [name for name, _ in alike]
        parts: list[tuple[str, PartKind, tuple[int, ...], str]] = []
        high: dict[str, float] = {}
        self._names: dict[tuple[str, PartKind], str] = {}
        for (name, kind), same in alike.items():
            unique = name if names.count(name) == 1 else f"{name}_{kind}"
            self._names[name, kind] = unique
            dtype = np.result_type(*(np.dtype(part.dtype) for part in same)).name
            parts.append((unique, kind, _padded_shape([part.shape for part in same]), STORED.get(dtype, dtype)))
            if all(part.high is not None for part in same):
                high[unique] = max(part.high or 0.0 for part in same)
        indicator = "agent" if "agent" not in names else "agent_type"
        floats = all(dtype == "float32" for *_, dtype in parts)  # so that the whole array keeps this dtype
        parts.append((indicator, "vector", (num_types,), "float32" if floats else "uint8"))
        return ObservationSpec.packed(parts, high | {indicator: 1.0})

    def write(self, agent: int, value: Any, into: Array) -> None:
        """Write an observation of one agent into its array; refuse one that is not in its space."""
        layout = self._layouts[agent]
        if self._types is None:
            layout.write(value, into)
            return
        into[...] = 0
        raw = into.view(np.uint8)
        for part, encoded in zip(layout.spec.parts, layout.encode(value), strict=True):
            place = _view(raw, self._by_name[self._names[part.name, part.kind]])
            if place.ndim == encoded.ndim:
                place[tuple(slice(side) for side in encoded.shape)] = encoded
            else:
                place[: encoded.size] = encoded.ravel()
        _view(raw, self._indicator)[self._types[agent]] = 1


def _padded_shape(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the largest side of each axis; one axis for all numbers if the shapes have different numbers of axes."""
    if len({len(shape) for shape in shapes}) > 1:
        return (max(prod(shape) for shape in shapes),)
    return tuple(max(sides) for sides in zip(*shapes, strict=True))


def _view(raw: Array, part: Part) -> Array:
    """Return a part of an observation's bytes as an array of the same memory."""
    return raw[part.offset : part.offset + part.nbytes].view(part.dtype).reshape(part.shape)


class AgentActions:
    """Converts actions of one spec to each agent's own format, and writes masks of what each agent can do."""

    def __init__(self, layouts: Sequence[ActionLayout]) -> None:
        self._layouts = layouts
        specs = [layout.spec for layout in layouts]
        self._bounds = _common_bounds(specs)
        self.spec = specs[0] if len(set(specs)) == 1 else self._common_spec(specs)
        self._own = [self._own_options(spec) for spec in specs]  # entries of a mask, in the order of the agent's own
        self._base = [self._base_mask(spec, own) for spec, own in zip(specs, self._own, strict=True)]
        self.padded = not all(base.all() for base in self._base)

    def _common_spec(self, specs: Sequence[ActionSpec]) -> ActionSpec:
        choices = max(len(spec.sizes) for spec in specs)
        sizes = tuple(max(spec.sizes[k] for spec in specs if k < len(spec.sizes)) for k in range(choices))
        low, high = zip(*self._bounds, strict=True) if self._bounds else ((), ())
        if not low:
            return ActionSpec.discrete(*sizes) if choices == 1 else ActionSpec.multidiscrete(sizes)
        every_number = all(len(spec.low) == len(low) for spec in specs)
        return ActionSpec.mixed(sizes, low, high) if sizes or not every_number else ActionSpec.continuous(low, high)

    def _own_options(self, spec: ActionSpec) -> npt.NDArray[np.int64]:
        """Return where the options of an agent's choices are in a mask of the common spec."""
        begins = np.cumsum((0, *self.spec.sizes))
        options = [begin + np.arange(size) for begin, size in zip(begins, spec.sizes, strict=False)]
        return np.concatenate([np.zeros(0, np.int64), *options])

    def _base_mask(self, spec: ActionSpec, own: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return the mask of all that an agent has: its options, option 0 of choices that it lacks, its numbers."""
        mask, begins = np.zeros(self.spec.mask_size, bool), np.cumsum((0, *self.spec.sizes))
        mask[own] = True
        mask[begins[len(spec.sizes) : -1]] = True
        mask[begins[-1] : begins[-1] + len(spec.low)] = True
        return mask

    def read(self, agent: int, stored: Array) -> Any:
        """Return a stored action as an agent's env expects it."""
        layout = self._layouts[agent]
        if layout.spec == self.spec:
            return layout.read(stored)
        choices, numbers = self.spec.split(stored)
        for k, (low, high) in enumerate(zip(layout.spec.low, layout.spec.high, strict=True)):
            if (low, high) != self._bounds[k]:
                unit = (numbers[k] + 1) / 2 if isfinite(self._bounds[k][0]) else None
                numbers[k] = min(max(numbers[k] if unit is None else low + unit * (high - low), low), high)
        return layout.read_parts(choices, numbers)

    def write_mask(
        self, agent: int, mask: Any, into: npt.NDArray[np.bool_], *, env_id: str, env: int, final: bool = False
    ) -> None:
        """Write the mask of an agent; `mask` is what its env says of its own choices, or None."""
        layout = self._layouts[agent]
        into[...] = self._base[agent]
        if mask is not None:
            own = np.empty(layout.spec.mask_size, bool)
            write_mask(mask, layout, own, env_id=env_id, env=env, final=final)
            into[self._own[agent]] = own[: len(self._own[agent])]


def _common_bounds(specs: Sequence[ActionSpec]) -> list[tuple[float, float]]:
    """Return the bounds of each number: the agents' own if they agree, else -1..1, or none if an agent's are infinite."""
    bounds = []
    for k in range(max(len(spec.low) for spec in specs)):
        own = {(spec.low[k], spec.high[k]) for spec in specs if k < len(spec.low)}
        finite = all(isfinite(low) and isfinite(high) for low, high in own)
        unit = (-1.0, 1.0) if finite else (-np.inf, np.inf)
        bounds.append(own.pop() if len(own) == 1 else unit)
    return bounds
