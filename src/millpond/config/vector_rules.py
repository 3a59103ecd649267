"""Rules of the vector, for every kind of recipe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from millpond.config.violations import Violation

BACKEND, TRAINER_SHARE = "vector.backend", "vector.trainer_share"


def _share_beside_workers(values: Mapping[str, Any]) -> Iterator[Violation]:
    share, backend = values[TRAINER_SHARE], values[BACKEND]
    if share and backend not in ("auto", "processes"):
        yield Violation(
            (TRAINER_SHARE, BACKEND),
            f"{TRAINER_SHARE}={share:g} is what the trainer steps beside worker processes, and {BACKEND}={backend} has none",
            ({TRAINER_SHARE: 0.0}, {BACKEND: "processes"}),
        )


RULES = [_share_beside_workers]
