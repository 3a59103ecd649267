"""The state of all envs as a part of a checkpoint, where the environment can give it."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from millpond.vector import Vector


class VectorState:
    """Environments that can save their state go on from it; others start fresh episodes on resume, and say so."""

    def __init__(self, vector: Vector, seed: int) -> None:
        self._vector = vector
        self._seed = seed
        self._resumes = 0

    def state_dict(self) -> dict[str, Any]:
        envs = self._vector.save_state() if self._vector.spec.savable else None
        return {"resumes": self._resumes, "envs": envs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._resumes = int(state["resumes"]) + 1
        if state["envs"] is not None:
            self._vector.load_state(state["envs"])
            return
        warnings.warn(
            f"{self._vector.spec.id} cannot save its state: all episodes start afresh, so this resume is not bit for bit",
            stacklevel=2,
        )
        fresh = np.random.SeedSequence([self._seed, self._resumes]).generate_state(1)
        self._vector.reset(int(fresh[0]))
