"""Pieces of a stored observation, as tensors. N observations."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from millpond.envs.spec import ObservationSpec, Part
from millpond.policies.errors import PolicyError


def torch_dtype(name: str, part: str) -> torch.dtype:
    """The dtype of a name such as "float32"."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise PolicyError(
            f"observation part {part!r} has dtype {name!r}, which torch does not have; "
            "let the world show it as uint8, int32 or float32"
        )
    return found


class PartReader:
    """Takes one part out of observations [N, *shape] of a spec, as [N, *part.shape] in the part's own dtype."""

    def __init__(self, spec: ObservationSpec, part: Part) -> None:
        self.shape = part.shape
        self.dtype = torch_dtype(part.dtype, part.name)
        self.stored = torch_dtype(spec.dtype, part.name)
        self.whole = len(spec.parts) == 1
        itemsize = self.stored.itemsize
        if part.offset % itemsize or part.nbytes % itemsize:
            raise PolicyError(f"observation part {part.name!r} does not lie on whole {spec.dtype} items: {part}")
        self.start = part.offset // itemsize
        self.stop = self.start + part.nbytes // itemsize
        if self.stop > prod(spec.shape):
            raise PolicyError(f"observation part {part.name!r} ends beyond the observation of shape {spec.shape}")

    def __call__(self, observation: Tensor) -> Tensor:
        if self.whole:
            return observation
        piece = observation.flatten(1)[:, self.start : self.stop].contiguous()
        if self.dtype != self.stored:
            piece = piece.view(self.dtype)
        return piece.view(-1, *self.shape)
