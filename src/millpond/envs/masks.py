"""Action masks of Gymnasium and PettingZoo envs.

An env may report its action mask, in this order of preference, in `infos["action_mask"]`, by a method `action_masks()` or
`action_mask()`, or in an observation that is a Dict of `observation` and `action_mask` (as in PettingZoo). A mask has one
entry for each option of each choice, True if it is allowed; `ActionLayout.read_mask` says how several choices
are masked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium.spaces as gs
import numpy as np
import numpy.typing as npt

from millpond.envs.env_batch import EnvError
from millpond.envs.spaces import ActionLayout


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


def write_mask(
    mask: Any, layout: ActionLayout, into: npt.NDArray[np.bool_], *, env_id: str, env: int, final: bool = False
) -> None:
    """Check a mask and write it; None allows everything. `into` has the entries of a mask of `layout.spec`.

    `final`: the episode has ended, so that nothing needs to be allowed.
    """
    into[...] = True
    if mask is None:
        return
    flat, choices = layout.read_mask(mask), sum(layout.spec.sizes)
    if flat.shape != (choices,):
        raise EnvError(
            f"env {env_id!r} (env {env}) gave an action mask of {flat.size} entries, but there are {choices} "
            "choices; a mask has one entry for each choice"
        )
    if choices and not flat.any() and not final:
        raise EnvError(f"env {env_id!r} (env {env}) gave an action mask that allows nothing; allow at least one action")
    into[:choices] = flat
