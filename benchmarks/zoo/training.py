"""One training of one party in a separate process: Millpond's by its command line, a reference's by references.py."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.hardware import processor
from benchmarks.peers.environments import last_line, run_peer
from benchmarks.zoo.results import Result, curve_of, final_return
from benchmarks.zoo.tasks import MILLPOND, QUICK_SECONDS, QUICK_STEPS, Task

# They change no result: no evaluation but the one at the end, no checkpoint but the last, envs in the trainer's process.
QUIET = (
    "eval.interval=null",
    "eval.episodes=1",
    "checkpoint.interval=null",
    "log.tensorboard=false",
    "vector.backend=inline",
)
VERSIONS = ("millpond", "torch", "numba", "gymnasium", "numpy")


def train(task: Task, party: str, seed: int, *, python: str | None, threads: int | None, quick: bool) -> Result:
    """Train and return the result. `python` is the interpreter of the references."""
    steps = min(task.steps, QUICK_STEPS) if quick else task.steps
    seconds = QUICK_SECONDS if quick and task.seconds else task.seconds
    if party == MILLPOND:
        trained = train_millpond(task, seed, steps, seconds, threads)
    else:
        if python is None:
            raise SystemExit(
                f"{party} needs the virtual environment of SB3: python benchmarks/peers/run.py --setup sb3"
            )
        limit = () if seconds is None else (seconds,)
        script = Path(__file__).with_name("references.py")
        trained = json.loads(run_peer(python, script, task.name, party, seed, steps, *limit, threads=threads))
    iterations = trained["iterations"]
    return Result(
        task=task.name,
        party=party,
        seed=seed,
        steps=iterations[-1][0],
        curve=curve_of(iterations),
        final=final_return(iterations),
        episodes=sum(count for _, count, _ in iterations),
        seconds=round(trained["seconds"], 1),
        threads=threads,
        machine=processor(),
        versions=trained["versions"],
        settings=trained["settings"],
    )


def train_millpond(task: Task, seed: int, steps: int, seconds: int | None, threads: int | None) -> dict[str, Any]:
    """Train with the packaged recipe. A run of one iteration comes first, so that the time has no compilation in it."""
    settings = [f"trainer.total_timesteps={steps}", f"seed={seed}"]
    if seconds is not None:
        settings.append(f"trainer.max_seconds={seconds}")
    with tempfile.TemporaryDirectory() as folder:
        _run(task.recipe, [*settings, "trainer.total_iterations=1"], folder, "first", threads)
        run = _run(task.recipe, settings, folder, "whole", threads)
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        host = json.loads((run / "host.json").read_text(encoding="utf-8"))
    before = [0, *(int(record["episodes"]) for record in records[:-1])]
    iterations = [
        (int(record["env_steps"]), int(record["episodes"]) - earlier, record.get("episode_return"))
        for record, earlier in zip(records, before, strict=True)
    ]
    return {
        "iterations": iterations,
        "seconds": records[-1]["seconds"] - sum(record.get("time/evaluate", 0.0) for record in records),
        "versions": {name: host["versions"][name] for name in VERSIONS},
        "settings": {"recipe": task.recipe, "overrides": settings},
    }


def _run(recipe: str, settings: list[str], folder: str, name: str, threads: int | None) -> Path:
    environment = dict(os.environ)
    if threads is not None:
        environment["OMP_NUM_THREADS"] = environment["NUMBA_NUM_THREADS"] = str(threads)
    command = [sys.executable, "-m", "millpond", "train", recipe, *settings, *QUIET, f"run_dir={folder}", "--run", name]
    last_line(command, environment)
    return Path(folder) / name
