"""Parts of a stored observation, as tensors. N observations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor

from millpond.envs.spec import ObservationSpec, Part
from millpond.policies.errors import PolicyError


def torch_dtype(name: str, part: str) -> torch.dtype:
    """Return the dtype with a name such as "float32"."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise PolicyError(
            f"observation part {part!r} has dtype {name!r}, which torch does not have; "
            "let the environment show it as uint8, int32 or float32"
        )
    return dtype


class PartReader:
    """Extracts one part of observations [N, *shape]: [N, *part.shape] in the part's dtype.

    A mapping of the parts by name is taken as well: exported policies get them separately.
    """

    def __init__(self, spec: ObservationSpec, part: Part) -> None:
        self.name, self.shape = part.name, part.shape
        self.dtype = torch_dtype(part.dtype, part.name)
        self.stored = torch_dtype(spec.dtype, part.name)
        self.whole = len(spec.parts) == 1
        itemsize = self.stored.itemsize
        if part.offset % itemsize or part.nbytes % itemsize:
            raise PolicyError(f"observation part {part.name!r} is not aligned to whole {spec.dtype} items: {part}")
        self.start = part.offset // itemsize
        self.stop = self.start + part.nbytes // itemsize
        if self.stop > prod(spec.shape):
            raise PolicyError(f"observation part {part.name!r} ends beyond the observation of shape {spec.shape}")

    def __call__(self, observation: Tensor | Mapping[str, Tensor]) -> Tensor:
        if isinstance(observation, Mapping):
            return observation[self.name]
        if self.whole:
            return observation
        piece = observation.flatten(1)[:, self.start : self.stop]
        if self.dtype == self.stored:
            return piece.contiguous().view(-1, *self.shape)
        # Only a copy can be viewed as any dtype. `contiguous` would not copy a batch of one, whose stride still prevents
        # the view, and not every spec is aligned: those of older runs and lakes are not.
        return piece.clone(memory_format=torch.contiguous_format).view(self.dtype).view(-1, *self.shape)


def observation_parts(spec: ObservationSpec) -> Callable[[Tensor | Mapping[str, Tensor]], dict[str, Tensor]]:
    """Return a function from observations [..., *spec.shape] to their parts by name, each [..., *part.shape]."""
    readers = {part.name: PartReader(spec, part) for part in spec.parts}

    def split(observation: Tensor | Mapping[str, Tensor]) -> dict[str, Tensor]:
        if isinstance(observation, Mapping):
            return dict(observation)
        lead = observation.shape[: observation.dim() - len(spec.shape)]
        flat = observation.reshape(-1, *spec.shape)
        return {name: reader(flat).view(*lead, *reader.shape) for name, reader in readers.items()}

    return split


def join_parts(spec: ObservationSpec, parts: Mapping[str, Any]) -> Tensor:
    """Return observations [B, *spec.shape] from arrays or tensors of their parts by name, each [B, *part.shape]."""
    names = [part.name for part in spec.parts]
    if set(parts) != set(names):
        raise PolicyError(
            f"the observation has the parts {', '.join(map(str, parts))}; it must have {', '.join(names)}"
        )
    tensors = {name: torch.as_tensor(value) for name, value in parts.items()}
    batch = len(tensors[names[0]])
    stored = torch.zeros((batch, spec.nbytes), dtype=torch.uint8)
    for part in spec.parts:
        tensor = tensors[part.name]
        if tuple(tensor.shape) != (batch, *part.shape):
            raise PolicyError(
                f"observation part {part.name!r} has shape {tuple(tensor.shape)}; it must be {(batch, *part.shape)}: a "
                "batch of what the environment writes"
            )
        piece = tensor.to("cpu", torch_dtype(part.dtype, part.name)).contiguous()
        stored[:, part.offset : part.offset + part.nbytes] = piece.reshape(batch, -1).view(torch.uint8)
    return stored.view(torch_dtype(spec.dtype, names[0])).view(batch, *spec.shape)


def check_largest(codes: Tensor, limit: int, check: Callable[[int, int], None], message: str) -> None:
    """Check that no code is above `limit`: by `check(largest, limit)`, which raises PolicyError.

    On other devices than the CPU, and under torch.compile, an assertion with `message` that does not wait for the device.
    """
    if codes.device.type != "cpu" or torch.compiler.is_compiling():
        torch._assert_async((codes <= limit).all(), message)
    elif codes.numel():
        check(int(codes.max()), limit)
