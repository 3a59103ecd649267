"""Actions at random, to step envs without a policy."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.bench.limits import Limits
from millpond.bench.result import Stage
from millpond.bench.timing import Effort, median_seconds
from millpond.envs.spec import ActionSpec, EnvSpec
from millpond.replay import Lake, Schema, Steps
from millpond.vector import Vector


class Chooser:
    """Actions at random, drawn beforehand; in environments with masks, the first that is allowed of each choice."""

    def __init__(self, spec: ActionSpec) -> None:
        self.spec, self.rng = spec, np.random.default_rng(0)
        self.drawn: dict[tuple[int, ...], npt.NDArray[Any]] = {}

    def __call__(self, into: npt.NDArray[Any], mask: npt.NDArray[np.bool_]) -> None:
        if mask.shape[-1]:
            first = np.cumsum((0, *self.spec.sizes))
            picked = [mask[..., low:high].argmax(-1) for low, high in pairwise(first)]
            into[...] = picked[0] if self.spec.kind == "discrete" else np.stack(picked, -1)
            return
        if into.shape not in self.drawn:
            self.drawn[into.shape] = self._draw(into.shape).astype(into.dtype)
        np.copyto(into, self.drawn[into.shape])

    def _draw(self, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        if self.spec.kind == "continuous":
            return self.rng.uniform(self.spec.low, self.spec.high, shape)
        return self.rng.integers(0, self.spec.sizes if self.spec.kind == "multidiscrete" else self.spec.sizes[0], shape)


class RandomSteps:
    """Steps vectors with actions at random, which are drawn when a shape of them is first needed."""

    def __init__(self, vectors: list[Vector]) -> None:
        self.players = [(vector, Chooser(vector.spec.action)) for vector in vectors]

    def __call__(self, times: int) -> None:
        """So many steps of every env of each vector; sent and not yet received at the end."""
        for _ in range(times):
            for vector, choose in self.players:
                for _ in range(vector.groups):
                    batch = vector.recv()
                    choose(batch.action, batch.action_mask)
                    vector.send()

    def rest(self) -> None:
        """Receive what was sent, so that a run or another stage can go on."""
        for vector, _ in self.players:
            for _ in range(vector.groups):
                vector.recv()
            vector.rest()


# -- A lake at a recipe's observations: what appending and sampling take.

SAMPLED = 256  # transitions of a batch
LEAST_BYTES = 32 << 20  # an append of this size at least, so that its sync is not all that is measured
MOST_STEPS = 512


def measure_lake(
    spec: EnvSpec, seen: npt.NDArray[Any], limits: Limits, effort: Effort, folder: Path
) -> tuple[Stage, Stage]:
    """Appends of real observations [T, lanes, *observation], each on the disk when it returns; then batches from what is
    in the page cache."""
    wanted = LEAST_BYTES if effort.copied > LEAST_BYTES else 1
    times = max(1, min(MOST_STEPS // len(seen), -(-wanted // seen.nbytes)))
    observation = np.ascontiguousarray(np.tile(seen, (times, *([1] * (seen.ndim - 1)))))
    shape = observation.shape[:2]
    ended = np.random.default_rng(0).random(shape) < 0.005
    action = np.zeros((*shape, *spec.action.shape), spec.action.dtype)
    steps = Steps(observation, action, np.zeros(shape, np.float32), ended, np.zeros(shape, bool))
    count, schema = shape[0] * shape[1], Schema.from_spec(spec)
    with tempfile.TemporaryDirectory(dir=folder) as place, Lake.create(Path(place) / "lake", schema) as lake:
        with lake.writer("bench", shape[1]) as writer:
            append = median_seconds(lambda: writer.append(steps), effort.repeats)
        stored = sum(path.stat().st_size for path in lake.folder.rglob("*") if path.is_file()) / (effort.repeats + 1)
        lake.refresh()
        rng = np.random.default_rng(0)
        for _ in range(effort.repeats):
            lake.sample(SAMPLED, rng)
        sample = median_seconds(lambda: lake.sample(SAMPLED, rng), 10 * effort.repeats)
    moved = 2 * SAMPLED * spec.observation.nbytes
    return (
        Stage("lake append", append, count, "transitions", "disk", stored / limits.disk_write, None, False),
        Stage("lake sample", sample, SAMPLED, "transitions", "memory", moved / limits.memory, None, False),
    )
