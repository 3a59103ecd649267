"""Action masks: which actions an env allows now, wherever it says so.

In order: `infos["action_mask"]`, a method `action_masks()` or `action_mask()`, or an observation that is a Dict of
`observation` and `action_mask` (PettingZoo's habit). A mask has one entry for each choice, True where it is allowed;
for several choices at once (MultiDiscrete) the masks follow one another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium.spaces as gs
import numpy as np
import numpy.typing as npt

from millpond.envs.errors import EnvError


def mask_method(env: Any) -> Callable[[], Any] | None:
    """The env's own method for masks, found through Gymnasium's wrappers."""
    base = getattr(env, "unwrapped", env)
    for holder in (env, base):
        for name in ("action_masks", "action_mask"):
            method = getattr(holder, name, None) if not isinstance(holder, gs.Space) else None
            if callable(method):
                return method  # type: ignore[no-any-return]
    return None


def shows_mask(space: Any) -> bool:
    """Whether an observation space is a Dict that carries the mask beside the observation."""
    return isinstance(space, gs.Dict) and set(space.spaces) == {"observation", "action_mask"}


def find_mask(infos: Mapping[str, Any], observation: Any, env: Any, *, in_observation: bool) -> Any:
    """The mask an env gives now, or None."""
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
