"""A one-dimensional array that grows: appended to in place, copied only when its room is used up."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class Growing:
    def __init__(self, dtype: Any) -> None:
        self._room = np.empty(0, dtype)
        self._length = 0

    @property
    def values(self) -> Array:
        return self._room[: self._length]

    def extend(self, values: Array) -> None:
        needed = self._length + len(values)
        if needed > len(self._room):
            # A quarter more than is needed; what is not used of it is never touched, and takes no memory.
            room = np.empty(needed + needed // 4, self._room.dtype)
            room[: self._length] = self.values
            self._room = room
        self._room[self._length : needed] = values
        self._length = needed
