"""Specs of observations, actions and environments: plain data, known before anything heavy is imported.

The planner computes bytes from them, buffers are allocated from them, and the policy is built from them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

MAX_NAMED_AGENTS = 16  # whose returns are reported one by one
TOKEN_PADDING = 0xFF  # location byte of an unused token
PartKind = Literal["grid", "tokens", "pixels", "vector"]
ActionKind = Literal["discrete", "multidiscrete", "continuous", "mixed"]


@dataclass(frozen=True)
class Part:
    """One named part of an observation: a byte range of the stored array, and how an encoder should read it.

    grid     cells of codes 0..high, shape (height, width)
    tokens   rows of (location, feature, value), shape (tokens, 3)
    pixels   an image, channels first: shape (channels, height, width)
    vector   numbers, any shape

    `high` is the largest value, if the environment knows it: the number of codes of a grid minus one, the largest
    feature of tokens, 1 for planes of zeros and ones. Encoders use it to scale values or to size embeddings; without
    it, bytes are assumed to reach 255 and floats are left unscaled.
    """

    name: str
    kind: PartKind
    shape: tuple[int, ...]
    dtype: str
    offset: int = 0
    high: float | None = None

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class ObservationSpec:
    """One agent's observation: a single array of one dtype, so that it is stored, moved and gathered as one array.

    An observation of several parts (a Dict, a Tuple) is one flat array. If all parts share a dtype, the array has that
    dtype; otherwise it is uint8, and `Part.offset` is the first byte of each part, a multiple of its item size. The
    total size is a multiple of the largest item size, so that parts are aligned in every observation of a batch.
    """

    shape: tuple[int, ...]
    dtype: str
    parts: tuple[Part, ...]

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize

    @staticmethod
    def single(
        shape: tuple[int, ...], dtype: str, kind: PartKind, name: str = "observation", high: float | None = None
    ) -> ObservationSpec:
        return ObservationSpec(shape, dtype, (Part(name, kind, shape, dtype, high=high),))

    @staticmethod
    def packed(
        parts: list[tuple[str, PartKind, tuple[int, ...], str]], high: Mapping[str, float] | None = None
    ) -> ObservationSpec:
        """Pack parts one after another into one flat array, each aligned to its dtype, with padding bytes between.

        `high` gives the largest value of a part by its name.
        """
        packed: list[Part] = []
        end = 0
        for name, kind, shape, dtype in parts:
            offset = _round_up(end, np.dtype(dtype).itemsize)
            packed.append(Part(name, kind, shape, dtype, offset, (high or {}).get(name)))
            end = offset + packed[-1].nbytes
        dtypes = {part.dtype for part in packed}
        end = _round_up(end, max(np.dtype(dtype).itemsize for dtype in dtypes))
        array_dtype = dtypes.pop() if len(dtypes) == 1 else "uint8"
        return ObservationSpec((end // np.dtype(array_dtype).itemsize,), array_dtype, tuple(packed))


def _round_up(offset: int, multiple: int) -> int:
    return -(-offset // multiple) * multiple


@dataclass(frozen=True)
class ActionSpec:
    """The action space of one agent: choices, numbers, or both.

    discrete       one of sizes[0] actions          stored as int32, shape ()
    multidiscrete  one action for each of sizes     stored as int32, shape (len(sizes),)
    continuous     a vector between low and high    stored as float32, shape (len(low),)
    mixed          choices, then a vector           stored as float32, shape (len(sizes) + len(low),)

    An action mask has `mask_size` entries: one for each option of each choice, then one for each number. A number that is
    masked is not chosen: it is 0, and its log-probability and entropy are 0. Only a mixed action has masked numbers.
    """

    kind: ActionKind
    sizes: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    @property
    def dtype(self) -> str:
        return "float32" if self.kind in ("continuous", "mixed") else "int32"

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * 4

    @property
    def mask_size(self) -> int:
        """Number of entries of an action mask."""
        return sum(self.sizes) + len(self.low)

    def split(self, stored: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Return choices [..., C] and numbers [..., D] of stored actions [..., *shape]."""
        if self.kind == "discrete":
            stored = stored[..., None]
        chosen = len(self.sizes)
        return stored[..., :chosen].astype(np.int32), stored[..., chosen:].astype(np.float32)

    def join(self, choices: npt.NDArray[Any], numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return stored actions [..., *shape] of choices [..., C] and numbers [..., D]."""
        joined = np.concatenate([choices, numbers], -1).astype(self.dtype)
        return np.asarray(joined[..., 0] if self.kind == "discrete" else joined)

    @staticmethod
    def discrete(size: int) -> ActionSpec:
        return ActionSpec("discrete", (size,))

    @staticmethod
    def multidiscrete(sizes: tuple[int, ...]) -> ActionSpec:
        return ActionSpec("multidiscrete", sizes, (len(sizes),))

    @staticmethod
    def continuous(low: tuple[float, ...], high: tuple[float, ...]) -> ActionSpec:
        return ActionSpec("continuous", (), (len(low),), low, high)

    @staticmethod
    def mixed(sizes: tuple[int, ...], low: tuple[float, ...], high: tuple[float, ...]) -> ActionSpec:
        return ActionSpec("mixed", sizes, (len(sizes) + len(low),), low, high)


@dataclass(frozen=True)
class EnvSpec:
    """Everything that the rest of Millpond needs to know about an environment.

    `savable`        its whole state can be saved and restored, so that a run resumes bit for bit
    `partial_step`   a slice of the batch can be stepped alone (the top-up round needs it)
    `releases_gil`   steps without holding the GIL, so that threads run in parallel
    `native_vector`  many envs are stepped by the environment's own code in one call
    `action_masks`   reports which actions are allowed at each step
    `info_names`     names of the numbers reported at the end of each episode, if known in advance
    `agent_names`    names of the agents, for metrics; empty if they have none
    """

    id: str
    observation: ObservationSpec
    action: ActionSpec
    num_agents: int = 1
    frame_skip: int = 1
    max_steps: int | None = None
    savable: bool = False
    partial_step: bool = True
    releases_gil: bool = False
    native_vector: bool = False
    action_masks: bool = False
    info_names: tuple[str, ...] = field(default=())
    agent_names: tuple[str, ...] = field(default=())

    @property
    def named_agents(self) -> dict[str, tuple[int, ...]]:
        """Names under which returns are reported, and the agents that each stands for.

        Each agent has its own, unless there are more than `MAX_NAMED_AGENTS`: then those whose names differ by a trailing
        number share one. Empty if that leaves one name for all, or still too many.
        """
        own = len(self.agent_names) <= MAX_NAMED_AGENTS
        agents: dict[str, tuple[int, ...]] = {}
        for number, name in enumerate(self.agent_names):
            shown = name if own else name_stem(name)
            agents[shown] = (*agents.get(shown, ()), number)
        return agents if 1 < len(agents) <= MAX_NAMED_AGENTS else {}


def name_stem(name: str) -> str:
    """Return an agent's name without a trailing number: `adversary` for `adversary_0`."""
    return re.sub(r"[_-]?\d+$", "", name) or name
