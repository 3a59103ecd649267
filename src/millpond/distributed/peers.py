"""The processes of the other ranks, and which of them live."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from millpond.distributed.errors import RankLostError
from millpond.store.process import Process

PATIENCE = 5.0  # seconds: a process's connections close a little before it is gone
HEAD_START = 1.0  # seconds that quiet ranks leave to the one that speaks, before they are gone too


class Peers:
    """All ranks' processes, in the order of ranks. Those on other machines cannot be seen, and count as living."""

    def __init__(self, rank: int, processes: Sequence[dict[str, Any]]) -> None:
        self.rank = rank
        self.processes = [Process(**process) for process in processes]
        self.losing = False  # whether the loss of a rank is being told already

    @staticmethod
    def this() -> dict[str, Any]:
        return Process.this().as_dict()

    def gone(self) -> list[int]:
        """Ranks whose processes have died."""
        return [rank for rank, process in enumerate(self.processes) if not process.is_alive()]

    def lost(self, symptom: str) -> RankLostError:
        """The error that says which rank has died, as far as that can be seen; `symptom` is how it was noticed.

        On each machine the lowest rank that lives is the one to speak.
        """
        self.losing = True
        deadline = time.monotonic() + PATIENCE
        gone = self.gone()
        while not gone and time.monotonic() < deadline:
            time.sleep(0.02)
            gone = self.gone()
        speaker = min(rank for rank, process in enumerate(self.processes) if process.here and rank not in gone)
        if self.rank != speaker:
            time.sleep(HEAD_START)
        reason = symptom.strip().splitlines()[0] if symptom.strip() else "no answer"
        if gone:
            who = " and ".join(f"rank {rank} (process {self.processes[rank].pid})" for rank in gone)
            text = f"{who} died, and training cannot go on without it"
        else:
            text = f"a rank is not there any more, or does not answer ({reason})"
        return RankLostError(text, quiet=self.rank != speaker)
