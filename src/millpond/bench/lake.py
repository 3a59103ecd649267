"""A lake at a recipe's observations: what appending and sampling take."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from millpond.bench.limits import Limits
from millpond.bench.result import Stage
from millpond.bench.timing import Effort, median_seconds
from millpond.envs.spec import EnvSpec
from millpond.replay import Lake, Schema, Steps
from millpond.trainers.ppo.trainer import PPOTrainer

SAMPLED = 256  # transitions of a batch
MOST_LANES = 128
LEAST_BYTES = 32 << 20  # an append of this size at least, so that its sync is not all that is measured
MOST_STEPS = 512


def observations_of(trainer: PPOTrainer) -> npt.NDArray[Any]:
    """Real ones, from rows that a run has filled: [T, lanes, *observation]."""
    plan, rows = trainer.share, trainer.rows
    flat = rows["observation"][: plan.segments].transpose(1, 2).flatten(0, 1)[:MOST_LANES]
    return flat.transpose(0, 1).cpu().numpy()


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
