"""Saving an environment's arrays: what every savable environment does in the same way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.envs.env_batch import Buffers
from millpond.envs.errors import EnvError

# Actions are the caller's; everything else belongs to the step that was last taken and must be there on resume.
SAVED_BUFFERS = ("observation", "final_observation", "reward", "terminated", "truncated", "alive", "action_mask")


def save_arrays(prefix: str, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    return {f"{prefix}.{name}": array.copy() for name, array in arrays.items()}


def load_arrays(
    prefix: str, arrays: Mapping[str, npt.NDArray[Any]], state: Mapping[str, npt.NDArray[Any]], *, env_id: str
) -> None:
    """Copy saved arrays into those of an environment; a state of another size or kind is refused."""
    for name, array in arrays.items():
        key = f"{prefix}.{name}"
        if key not in state:
            raise EnvError(f"the saved state has no {key!r}: it is not of env {env_id!r}; start a new run")
        saved = np.asarray(state[key])
        if saved.shape != array.shape or saved.dtype != array.dtype:
            raise EnvError(
                f"the saved state of env {env_id!r} has {key} of {saved.dtype} {saved.shape}, but the environment as "
                f"configured needs {array.dtype} {array.shape}; resume with the run's own env options and env count"
            )
        array[...] = saved


def buffer_arrays(buffers: Buffers) -> dict[str, npt.NDArray[Any]]:
    return {name: getattr(buffers, name) for name in SAVED_BUFFERS}
