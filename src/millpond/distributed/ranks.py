"""What ranks tell each other: sums, values, bytes.

Everything is a collective: all ranks call the same methods in the same order. With one rank each method is the
identity, and nothing is called.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from millpond.distributed.errors import FollowedError
from millpond.distributed.peers import Peers
from millpond.distributed.place import Place
from millpond.errors import MillpondError

if TYPE_CHECKING:
    import torch

Result = TypeVar("Result")
AllReduce = Callable[["torch.Tensor"], object]


class Ranks:
    """All processes of a run. Made by `join`."""

    def __init__(self, place: Place | None = None) -> None:
        self.place = place or Place()
        self.rank, self.count = self.place.rank, self.place.count
        self.alone, self.first = self.count == 1, self.rank == 0
        # Adds a tensor up over all ranks, in place; None where there is nothing to add.
        self.all_reduce: AllReduce | None = None if self.alone else self._all_reduce
        self.peers = Peers(self.rank, [])
        if not self.alone:
            self.peers = Peers(self.rank, self.share(Peers.this()))

    def share(self, value: Any) -> list[Any]:
        """The plain values (as JSON has them) of all ranks, in their order."""
        if self.alone:
            return [value]
        return [json.loads(data) for data in self.share_bytes(json.dumps(value).encode())]

    def share_bytes(self, data: bytes) -> list[bytes]:
        """The bytes of all ranks, in their order, at all of them."""
        return [data] if self.alone else self._all_gather(data)

    def meet(self) -> None:
        """Go on when all ranks have come here."""
        self.share(None)

    def gather(self, data: bytes) -> list[bytes]:
        """The bytes of all ranks at rank 0; at the others nothing."""
        if self.alone:
            return [data]
        import torch
        import torch.distributed as dist

        sizes = self.share(len(data))
        mine = _padded(data, max(sizes))
        parts = [torch.empty_like(mine) for _ in sizes] if self.first else None
        self._call(dist.gather, mine, parts)
        return [_bytes(part, size) for part, size in zip(parts or [], sizes, strict=False)]

    def broadcast(self, data: bytes) -> bytes:
        """The bytes of rank 0 at all ranks; what others pass is not looked at."""
        if self.alone:
            return data
        import torch.distributed as dist

        size = self.share(len(data))[0]
        message = _padded(data if self.first else b"", size)
        self._call(dist.broadcast, message, 0)
        return _bytes(message, size)

    def copy_from_first(self, tensors: Iterable[torch.Tensor]) -> None:
        """Give all ranks the numbers of rank 0, in place."""
        if self.alone:
            return
        import torch.distributed as dist

        for tensor in tensors:
            self._call(dist.broadcast, tensor, 0)

    def lead(self, work: Callable[[], Result]) -> Result:
        """Do at rank 0 what is to be done once, and give its plain value (as JSON has them) to all.

        Where it fails, all ranks end: rank 0 with the error, the others without a word.
        """
        if self.alone:
            return work()
        told: dict[str, Any] = {}
        failure: BaseException | None = None
        if self.first:
            try:
                told = {"value": work()}
            except BaseException as error:
                failure = error
                told = {"failed": str(error), "exit_code": error.exit_code if isinstance(error, MillpondError) else 1}
        told = json.loads(self.broadcast(json.dumps(told).encode()))
        if failure is not None:
            raise failure
        if "failed" in told:
            raise FollowedError(told["failed"], told["exit_code"])
        value: Result = told["value"]
        return value

    def _all_reduce(self, tensor: torch.Tensor) -> None:
        import torch.distributed as dist

        self._call(dist.all_reduce, tensor)

    def _all_gather(self, data: bytes) -> list[bytes]:
        import torch
        import torch.distributed as dist

        size = torch.tensor([len(data)])
        sizes = [torch.empty_like(size) for _ in range(self.count)]
        self._call(dist.all_gather, sizes, size)
        lengths = [int(length) for length in sizes]
        mine = _padded(data, max(lengths))
        parts = [torch.empty_like(mine) for _ in lengths]
        self._call(dist.all_gather, parts, mine)
        return [_bytes(part, length) for part, length in zip(parts, lengths, strict=True)]

    def _call(self, collective: Callable[..., object], *arguments: Any) -> None:
        """A collective fails when a rank has gone: its connections close, or it does not answer in time."""
        try:
            collective(*arguments)
        except RuntimeError as error:
            raise self.peers.lost(str(error)) from error


def _padded(data: bytes, size: int) -> torch.Tensor:
    import torch

    return torch.frombuffer(bytearray(data.ljust(max(size, 1), b"\0")), dtype=torch.uint8)


def _bytes(tensor: torch.Tensor, size: int) -> bytes:
    return tensor[:size].numpy().tobytes()


ALONE = Ranks()
