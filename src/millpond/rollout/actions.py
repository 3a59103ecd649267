"""What an env is told, of what a policy drew."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.envs.spec import ActionSpec


def put_actions(spec: ActionSpec, drawn: npt.NDArray[Any], into: npt.NDArray[Any]) -> None:
    """Numbers are clipped to the action space here and only here; rows keep what was drawn, since that is what the
    stored log-probability is of."""
    if spec.kind == "continuous":
        np.clip(drawn, spec.low, spec.high, out=into, casting="same_kind")
    else:
        into[...] = drawn
