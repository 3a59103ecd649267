"""One training of one party in a separate process: Millpond's by its command line, a reference's by references.py."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import millpond
from benchmarks.hardware import processor
from benchmarks.peers.environments import interpreter, last_line_and_cpu, peer_command, write_scenario
from benchmarks.zoo.results import Iteration, Result, curve_of, final_return
from benchmarks.zoo.tasks import MILLPOND, PUFFER, QUICK_SECONDS, QUICK_STEPS, Task
from millpond.store.status import read_status

# They change no result: no evaluation but the one at the end, no checkpoint but the last, envs in the trainer's process.
QUIET = (
    "eval.interval=null",
    "checkpoint.interval=null",
    "log.tensorboard=false",
    "vector.backend=inline",
    "vector.trainer_share=0.0",
)
PUFFER_BATCH = 12_288  # agent steps of an iteration, as in benchmarks/peers/forage.yaml
VERSIONS = ("millpond", "torch", "numba", "gymnasium", "numpy")
_COMPILED: set[str] = set()  # recipes whose code has been compiled by this process


def train(task: Task, party: str, seed: int, *, python: str | None, threads: int | None, quick: bool) -> Result:
    """Train and return the result. `python` is the interpreter of the references."""
    steps = min(task.steps, QUICK_STEPS if task.reward_steps is None else PUFFER_BATCH) if quick else task.steps
    seconds = QUICK_SECONDS if quick and task.seconds else task.seconds
    if party == MILLPOND:
        trained = train_millpond(task, seed, steps, seconds, threads)
    elif party == PUFFER:
        trained = train_puffer(task, seed, steps, threads)
    else:
        if python is None:
            raise SystemExit(
                f"{party} needs the virtual environment of SB3: python benchmarks/peers/run.py --setup sb3"
            )
        limit = () if seconds is None else (seconds,)
        script = Path(__file__).with_name("references.py")
        command = peer_command(python, script, task.name, party, seed, steps, *limit, threads=threads)
        line, cpu_seconds = last_line_and_cpu(*command)
        trained = {**json.loads(line), "cpu_seconds": cpu_seconds}
    return result_of(trained, task.name, party, seed, threads)


def result_of(trained: dict[str, Any], task: str, party: str, seed: int, threads: int | None) -> Result:
    """Return the result of a training from what it printed or recorded."""
    iterations = trained["iterations"]
    return Result(
        task=task,
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
        cpu_seconds=round(trained["cpu_seconds"], 1),
        evaluation=trained.get("evaluation"),
        warnings=trained.get("warnings"),
    )


def train_millpond(
    task: Task,
    seed: int,
    steps: int,
    seconds: int | None,
    threads: int | None,
    overrides: Sequence[str] = (),
) -> dict[str, Any]:
    """Train with the packaged recipe. Before its first training here is a run of one iteration, so that none compiles code."""
    settings = [f"trainer.total_timesteps={steps}", f"seed={seed}", *overrides]
    options = [f"eval.episodes={task.eval_episodes}"]
    with tempfile.TemporaryDirectory() as folder:
        if task.recipe not in _COMPILED:
            _run(task.recipe, [*settings, *options, "trainer.total_iterations=1"], folder, "first", threads)
            _COMPILED.add(task.recipe)
        run, cpu_seconds = _run(task.recipe, [*settings, *options], folder, "whole", threads, seconds)
        return recorded(run, task, settings, cpu_seconds)


def train_here(task: Task, seed: int, steps: int, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Train with the packaged recipe in this process: nothing is imported or compiled again for a series of short runs."""
    settings = [f"trainer.total_timesteps={steps}", f"seed={seed}", *overrides]
    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        quiet = [*QUIET, "eval.episodes=1", "log.console_seconds=1e6", f"run_dir={folder}"]
        run = millpond.train(task.recipe, overrides=[*settings, *quiet], run="whole")
        run.close()
        if read_status(run.folder).state != "finished":  # by a signal
            raise SystemExit(f"{task.name} was stopped")
        return recorded(run.folder, task, settings, time.process_time() - start)


def recorded(run: Path, task: Task, settings: Sequence[str], cpu_seconds: float) -> dict[str, Any]:
    """Return what a run's folder says of a training."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    host = json.loads((run / "host.json").read_text(encoding="utf-8"))
    return {
        "iterations": iterations_of(records, task.reward_steps),
        "seconds": records[-1]["seconds"] - sum(record.get("time/evaluate", 0.0) for record in records),
        "versions": {name: host["versions"][name] for name in VERSIONS},
        "settings": {"recipe": task.recipe, "overrides": list(settings)},
        "cpu_seconds": cpu_seconds,
        "evaluation": records[-1].get("eval/episode_return"),
        "warnings": warnings_of(run),
    }


def iterations_of(records: Sequence[Mapping[str, Any]], reward_steps: int | None) -> list[Iteration]:
    """Return env steps, episodes and their mean return of each record; or agent steps, one, and the reward of some steps."""
    if reward_steps is not None:
        return [(int(one["agent_steps"]), 1, reward_steps * one["reward_per_agent_step"]) for one in records]
    before = [0, *(int(record["episodes"]) for record in records[:-1])]
    return [
        (int(record["env_steps"]), int(record["episodes"]) - earlier, record.get("episode_return"))
        for record, earlier in zip(records, before, strict=True)
    ]


def train_puffer(task: Task, seed: int, steps: int, threads: int | None) -> dict[str, Any]:
    """Train with PufferLib's own trainer in its virtual environment, with the envs in the trainer's process."""
    assert task.reward_steps is not None
    script = Path(__file__).parents[1] / "peers" / "puffer_forage.py"
    with tempfile.TemporaryDirectory() as folder:
        scenario = Path(folder) / "forage.json"
        write_scenario(scenario)
        iterations = max(1, steps // PUFFER_BATCH)
        command = peer_command(interpreter("puffer", {}), script, scenario, iterations, seed, 0, threads=threads)
        line, cpu_seconds = last_line_and_cpu(*command)
    trained = json.loads(line)
    assert trained["steps"] == PUFFER_BATCH
    ends = range(PUFFER_BATCH, PUFFER_BATCH * (iterations + 1), PUFFER_BATCH)
    return {
        "iterations": [(end, 1, task.reward_steps * level) for end, level in zip(ends, trained["level"], strict=True)],
        "seconds": sum(trained["collect"]) + sum(trained["train"]),
        "versions": trained["versions"],
        "settings": trained["settings"],
        "cpu_seconds": cpu_seconds,
    }


def warnings_of(run: Path) -> dict[str, int]:
    """Return the number of warnings of a run, by cause."""
    path = run / "warnings.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return dict(Counter(json.loads(line)["cause"] for line in lines))


def _run(
    recipe: str, settings: list[str], folder: str, name: str, threads: int | None, cpu_limit: int | None = None
) -> tuple[Path, float]:
    """Train, until the process has spent `cpu_limit` seconds if set; return the run's folder and the CPU seconds."""
    environment = dict(os.environ)
    if threads is not None:
        environment["OMP_NUM_THREADS"] = environment["NUMBA_NUM_THREADS"] = str(threads)
    command = [sys.executable, "-m", "millpond", "train", recipe, *settings, *QUIET, f"run_dir={folder}", "--run", name]
    _, cpu_seconds = last_line_and_cpu(command, environment, cpu_limit=cpu_limit)
    return Path(folder) / name, cpu_seconds
