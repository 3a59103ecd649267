"""What can go wrong in a loop."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from millpond.errors import MillpondError

if TYPE_CHECKING:
    from millpond.loop.address import Address


class LoopError(MillpondError):
    """A loop that is declared or used wrongly."""


class NonFiniteError(MillpondError):
    """A recorded value is nan or infinite. Training stops; the last checkpoint is from before it."""

    exit_code = 1  # the input was fine: the training failed

    def __init__(self, address: Address, name: str, value: float, batch_path: Path | None = None) -> None:
        self.address, self.name, self.value, self.batch_path = address, name, value, batch_path
        saved = f"; the batch is in {batch_path}" if batch_path is not None else ""
        super().__init__(f"{address}: {name} = {value}{saved}")
