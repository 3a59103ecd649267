"""A fixed set of random rows, of which each rank has a part."""

from __future__ import annotations

import numpy as np
import torch

from millpond.envs.spec import EnvSpec
from millpond.rollout.rows import Rows
from millpond.rollout.schema import row_fields

ROWS, HORIZON, AGENTS, HIDDEN = 12, 6, 2, 8


def spec() -> EnvSpec:
    from millpond.envs.registry import describe

    return describe("recall", {})


def stored_rows(first: int, count: int) -> Rows:
    """Return rows `first` to `first + count` of a fixed set of random rows, many of whose steps are not valid."""
    fields = row_fields(spec(), (2, HIDDEN), ratio=True)
    rng = np.random.default_rng(5)
    whole = Rows(fields, ROWS, HORIZON, AGENTS, AGENTS, "cpu")
    for name, tensor in whole.arrays.items():
        if tensor.dtype == torch.bool:
            # Later rows have fewer agents alive, so that the halves have different numbers of valid steps.
            chance = np.linspace(0.95, 0.2, ROWS).reshape(-1, *[1] * (tensor.ndim - 1)) if name == "alive" else 0.1
            tensor.copy_(torch.from_numpy(rng.random(tensor.shape) < chance))
        elif tensor.dtype.is_floating_point:
            tensor.copy_(torch.from_numpy(rng.normal(size=tensor.shape)))
        else:
            tensor.copy_(torch.from_numpy(rng.integers(0, 2, tensor.shape)))
    whole["log_prob"].copy_(-whole["log_prob"].abs())
    part = Rows(fields, count, HORIZON, AGENTS, AGENTS, "cpu")
    for name, tensor in whole.arrays.items():
        part[name].copy_(tensor[first : first + count])
    return part
