"""What an environment shows and takes: plain facts, known before anything heavy is imported.

The plan counts bytes from these, buffers are allocated from them, and the policy is built from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

TOKEN_PADDING = 0xFF  # the place of a token that is none
PartKind = Literal["grid", "tokens", "pixels", "vector"]
ActionKind = Literal["discrete", "multidiscrete", "continuous"]


@dataclass(frozen=True)
class Part:
    """One named piece of an observation: a byte range of the stored array, and how an encoder should read it.

    grid     cells of codes 0..high, shape (height, width)
    tokens   rows of (place, feature, value), shape (tokens, 3)
    pixels   an image, channels first: shape (channels, height, width)
    vector   numbers, any shape

    `high` is the largest value where the environment knows it: the number of codes of a grid less one, the largest feature of
    tokens, 1 for planes of zeros and ones. An encoder scales or counts codes by it; without it, bytes go to 255 and
    floats are as they are.
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
    """One agent's observation: a single array of one dtype, so that it is stored, moved and gathered in one piece.

    An observation of several parts (a Dict, a Tuple) is one flat array. Where the parts share a dtype the array
    has it; where they do not, the array is bytes, and `Part.offset` says where each part begins: at a multiple of its
    item size. The whole is a multiple of the largest item size, so that parts of every observation in a batch are aligned.
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
        """Lay parts one after another in one flat array, each aligned to its dtype; bytes between them are padding.

        `high` gives a part's largest value by its name.
        """
        placed: list[Part] = []
        end = 0
        for name, kind, shape, dtype in parts:
            offset = _round_up(end, np.dtype(dtype).itemsize)
            placed.append(Part(name, kind, shape, dtype, offset, (high or {}).get(name)))
            end = offset + placed[-1].nbytes
        dtypes = {part.dtype for part in placed}
        end = _round_up(end, max(np.dtype(dtype).itemsize for dtype in dtypes))
        stored = dtypes.pop() if len(dtypes) == 1 else "uint8"
        return ObservationSpec((end // np.dtype(stored).itemsize,), stored, tuple(placed))


def _round_up(offset: int, multiple: int) -> int:
    return -(-offset // multiple) * multiple


@dataclass(frozen=True)
class ActionSpec:
    """What an agent may do.

    discrete       one choice of sizes[0]          stored as int32, shape ()
    multidiscrete  a choice of each of sizes       stored as int32, shape (len(sizes),)
    continuous     a vector between low and high   stored as float32, shape `shape`
    """

    kind: ActionKind
    sizes: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    @property
    def dtype(self) -> str:
        return "float32" if self.kind == "continuous" else "int32"

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * 4

    @staticmethod
    def discrete(size: int) -> ActionSpec:
        return ActionSpec("discrete", (size,))

    @staticmethod
    def multidiscrete(sizes: tuple[int, ...]) -> ActionSpec:
        return ActionSpec("multidiscrete", sizes, (len(sizes),))

    @staticmethod
    def continuous(low: tuple[float, ...], high: tuple[float, ...]) -> ActionSpec:
        return ActionSpec("continuous", (), (len(low),), low, high)


@dataclass(frozen=True)
class EnvSpec:
    """Everything that the rest of Millpond needs to know of an environment.

    `savable`        its whole state can be saved and restored, so that a run resumes bit for bit
    `partial_step`   a part of its envs can be stepped alone (the top-up round needs it)
    `releases_gil`   steps without holding Python's lock, so that threads help
    `native_vector`  many envs are stepped by the environment's own code in one call
    `action_masks`   says which actions are allowed at each step
    `info_names`     numbers that it reports at the end of each episode, where they are known beforehand
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
