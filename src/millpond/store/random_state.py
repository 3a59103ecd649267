"""Seeds and state of all random generators of a run."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from millpond.store.checkpoint import CheckpointError


def seed_global_generators(*, python: int, numpy: int, torch: int) -> None:
    """Seed the global generators, which environments and libraries may draw from."""
    from torch import manual_seed

    random.seed(python)
    np.random.seed(numpy)  # noqa: NPY002 (the global generator is seeded on purpose)
    manual_seed(torch)


class RandomState:
    """The global generators of Python, NumPy and torch, and all generators that are passed by name.

        RandomState(sampler=np.random.default_rng(3), noise=torch.Generator(device))

    The global generators of CUDA devices are included; those of devices that a machine lacks are skipped when it resumes.
    """

    def __init__(self, **generators: Any) -> None:
        for name, generator in generators.items():
            if _kind(generator) is None:
                raise CheckpointError(
                    f"{name} is a {type(generator).__name__}; a generator must be a numpy.random.Generator, a "
                    f"numpy.random.RandomState, a random.Random or a torch.Generator"
                )
        self._generators = generators

    def state_dict(self) -> dict[str, Any]:
        import torch

        return {
            "python": random.getstate(),
            "numpy": np.random.get_state(legacy=False),  # noqa: NPY002 (the global generator is saved on purpose)
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
            "named": {name: _get(generator) for name, generator in self._generators.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        import torch

        if set(state["named"]) != set(self._generators):
            raise CheckpointError(
                f"the checkpoint has the generators {sorted(state['named'])}, this run has {sorted(self._generators)}"
            )
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])  # noqa: NPY002
        torch.set_rng_state(state["torch"])
        devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
        for device, saved in enumerate(state["cuda"][:devices]):  # runs draw from named generators, not from these
            torch.cuda.set_rng_state(saved, device)
        for name, generator in self._generators.items():
            _set(generator, state["named"][name])


def _kind(generator: Any) -> str | None:
    if isinstance(generator, np.random.Generator):
        return "generator"
    if isinstance(generator, np.random.RandomState):
        return "legacy"
    if isinstance(generator, random.Random):
        return "python"
    return "torch" if hasattr(generator, "get_state") and hasattr(generator, "manual_seed") else None


def _get(generator: Any) -> Any:
    kind = _kind(generator)
    if kind == "generator":
        return generator.bit_generator.state
    if kind == "legacy":
        return generator.get_state(legacy=False)
    return generator.getstate() if kind == "python" else generator.get_state()


def _set(generator: Any, state: Any) -> None:
    kind = _kind(generator)
    if kind == "generator":
        generator.bit_generator.state = state
    elif kind == "python":
        generator.setstate(state)
    else:
        generator.set_state(state)
