"""Training of one task, and its results as a file. A separate module, so that other processes can import it."""

from __future__ import annotations

import json
import tempfile
from typing import Any

import torch

import millpond
from benchmarks.hardware import processor
from benchmarks.learning.page import RESULTS
from benchmarks.learning.tasks import TASKS, records


def train(name: str, seed: int) -> dict[str, Any]:
    """Train one task with one seed, on one core; return its result."""
    torch.set_num_threads(1)
    task = next(task for task in TASKS if task.name == name)
    with tempfile.TemporaryDirectory() as folder:
        overrides = {**task.overrides, "seed": seed, "run_dir": folder, "log.tensorboard": False}
        run = millpond.train(task.recipe, overrides=overrides, run=f"{name}-{seed}")
        last = records(run)[-1]
        return {
            "seed": seed,
            "score": round(task.score(run), 4),
            "agent_steps": int(last["agent_steps"]),
            "seconds": round(last["seconds"]),
            "curve": [(steps, round(value, 4)) for steps, value in task.curve(run)],
        }


def save(name: str, trained: list[dict[str, Any]]) -> bool:
    """Write a task's results; return True if all its seeds reached the target."""
    task = next(task for task in TASKS if task.name == name)
    for one in trained:
        one["passes"] = task.passes(one["score"])
    results = {
        "task": name,
        "wanted": task.target,
        "hardware": processor(),
        "torch": torch.__version__,
        "seeds": sorted(trained, key=lambda one: one["seed"]),
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(results) + "\n")
    return all(one["passes"] for one in trained)
