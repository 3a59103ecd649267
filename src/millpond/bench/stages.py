"""Measurements that several kinds share: stepping envs with random actions, and appending to and sampling from a lake."""

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

SAMPLE_SIZE = 256  # transitions of a batch
MIN_APPEND_BYTES = 32 << 20  # so that more than the sync is measured
MAX_APPEND_STEPS = 512


class RandomActions:
    """Writes random actions, drawn once per shape. With an action mask it takes the first valid action of each choice."""

    def __init__(self, spec: ActionSpec) -> None:
        self.spec, self.rng = spec, np.random.default_rng(0)
        self.by_shape: dict[tuple[int, ...], npt.NDArray[Any]] = {}

    def __call__(self, out: npt.NDArray[Any], mask: npt.NDArray[np.bool_]) -> None:
        if mask.shape[-1]:
            first = np.cumsum((0, *self.spec.sizes))
            actions = [mask[..., low:high].argmax(-1) for low, high in pairwise(first)]
            out[...] = actions[0] if self.spec.kind == "discrete" else np.stack(actions, -1)
            return
        if out.shape not in self.by_shape:
            self.by_shape[out.shape] = self._draw(out.shape).astype(out.dtype)
        np.copyto(out, self.by_shape[out.shape])

    def _draw(self, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        if self.spec.kind == "continuous":
            return self.rng.uniform(self.spec.low, self.spec.high, shape)
        return self.rng.integers(0, self.spec.sizes if self.spec.kind == "multidiscrete" else self.spec.sizes[0], shape)


class RandomSteps:
    """Steps vectors with random actions."""

    def __init__(self, vectors: list[Vector]) -> None:
        self.players = [(vector, RandomActions(vector.spec.action)) for vector in vectors]

    def __call__(self, count: int) -> None:
        """Take `count` steps of every env of each vector; the last ones are sent but not yet received."""
        for _ in range(count):
            for vector, write_actions in self.players:
                for _ in range(vector.groups):
                    batch = vector.recv()
                    write_actions(batch.action, batch.action_mask)
                    vector.send()

    def end_round(self) -> None:
        """Receive the last steps, so that a run or another stage can continue."""
        for vector, _ in self.players:
            for _ in range(vector.groups):
                vector.recv()
            vector.end_round()


def measure_lake(
    spec: EnvSpec, observations: npt.NDArray[Any], limits: Limits, effort: Effort, folder: Path
) -> tuple[Stage, Stage]:
    """Measure synced appends of real observations [T, lanes, *observation], then samples from the page cache."""
    min_bytes = MIN_APPEND_BYTES if effort.copy_bytes > MIN_APPEND_BYTES else 1
    times = max(1, min(MAX_APPEND_STEPS // len(observations), -(-min_bytes // observations.nbytes)))
    observation = np.ascontiguousarray(np.tile(observations, (times, *([1] * (observations.ndim - 1)))))
    shape = observation.shape[:2]
    terminated = np.random.default_rng(0).random(shape) < 0.005
    action = np.zeros((*shape, *spec.action.shape), spec.action.dtype)
    steps = Steps(observation, action, np.zeros(shape, np.float32), terminated, np.zeros(shape, bool))
    count, schema = shape[0] * shape[1], Schema.from_spec(spec)
    with tempfile.TemporaryDirectory(dir=folder) as scratch, Lake.create(Path(scratch) / "lake", schema) as lake:
        with lake.writer("bench", shape[1]) as writer:
            append = median_seconds(lambda: writer.append(steps), effort.repeats)
        stored = sum(path.stat().st_size for path in lake.folder.rglob("*") if path.is_file()) / (effort.repeats + 1)
        lake.refresh()
        rng = np.random.default_rng(0)
        for _ in range(effort.repeats):
            lake.sample(SAMPLE_SIZE, rng)
        sample = median_seconds(lambda: lake.sample(SAMPLE_SIZE, rng), 10 * effort.repeats)
    moved = 2 * SAMPLE_SIZE * spec.observation.nbytes
    return (
        Stage("lake append", append, count, "transitions", "disk", stored / limits.disk_write, None, False),
        Stage("lake sample", sample, SAMPLE_SIZE, "transitions", "memory", moved / limits.memory, None, False),
    )
