"""Compare the memory that a plan predicts with the memory that a run takes, each in a separate process.

    python benchmarks/memory.py                                    grid, metta and puffer-metta, a few minutes
    python benchmarks/memory.py grid --iterations 4 --json memory.json

The memory of the interpreter, its libraries and compiled kernels is measured first, in the same process, by training the same
recipe at its preset `debug`, and is subtracted. Then the real one collects (rows and envs) and trains; the peak counts.

"in use" is measured with an allocator that returns freed memory at once (MALLOC_MMAP_THRESHOLD_); this is what the plan
predicts. "resident" is measured with the default allocator, which holds on to some freed memory.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import io
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hardware import processor
from millpond.config import load
from millpond.loop import LevelEnd
from millpond.planner import Host, PPOPlan, plan

RECIPES = ("grid", "metta", "puffer-metta")
RETURN_FREED_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "65536"}
QUIET = {"eval.interval": None, "eval.episodes": 1, "checkpoint.interval": None, "log.tensorboard": False}
LIMIT = 0.05


class Measured(Exception):
    """Raised in the run when everything has been measured."""


def status(name: str, process: str = "self") -> int:
    """Return a figure of /proc/PID/status in bytes."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1]) * 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def clean() -> None:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def workers() -> int:
    """Return the bytes of worker processes' private memory, including their children's."""
    waiting, total = [str(os.getpid())], 0
    while waiting:
        process = waiting.pop()
        for task in Path(f"/proc/{process}/task").iterdir():
            children = (task / "children").read_text().split()
            total += sum(status("RssAnon", child) for child in children)
            waiting += children
    return total


def measure_run(recipe: str, iterations: int) -> dict[str, float]:
    """Measure the memory of a run of the recipe, in this process."""
    from millpond.trainers.common.session import start_run
    from millpond.trainers.ppo.trainer import PPOTrainer

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):

        def make(name: str, preset: str | None) -> PPOTrainer:
            settings = {**QUIET, "run_dir": folder, "trainer.total_iterations": iterations + 1}
            settings["policy.hidden_size"] = load(recipe).recipe.policy.hidden_size  # for the small run too
            loaded = load(recipe, settings, preset)
            return PPOTrainer(loaded, start_run(loaded, name))

        make("first", "debug").train()
        small = make("small", "debug")  # stays open: the memory of a run of any size is not in the plan
        small.train()
        clean()
        baseline = status("VmRSS")
        forget_peak()
        trainer, figures = make("real", None), {"baseline": float(baseline)}
        figures["rows"] = trainer.rows.nbytes

        def record(ended: LevelEnd) -> None:
            figures["peak"] = status("VmHWM") - baseline
            figures["workers"] = workers()
            if ended.number + 1 == iterations:  # before the evaluation at the end
                raise Measured

        trainer.loop.at_end("iteration", record)
        with contextlib.suppress(Measured):
            trainer.train()
        trainer.close()
        small.close()
    return figures


def measured(recipe: str, iterations: int, environment: dict[str, str]) -> dict[str, float]:
    """Measure the memory of a run in a separate process."""
    command = [sys.executable, __file__, recipe, "--iterations", str(iterations), "--child"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    if done.returncode:
        raise SystemExit(f"{recipe} failed:\n{done.stderr[-4000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def compare(recipe: str, iterations: int) -> dict[str, Any]:
    planned = plan(recipe, host=Host.here()).plan
    assert isinstance(planned, PPOPlan)
    assert planned.training is not None
    used = measured(recipe, iterations, RETURN_FREED_MEMORY)
    resident = measured(recipe, iterations, {})
    return {
        "recipe": recipe,
        "rows": {"plan": planned.buffer_bytes, "run": used["rows"]},
        "collecting": {"plan": planned.collecting_bytes},
        "training step": {"plan": planned.training.total},
        "total, in use": {"plan": planned.memory_bytes, "run": used["peak"]},
        "total, resident": {"plan": planned.memory_bytes, "run": resident["peak"]},
        "worker processes": {"run": used["workers"]},
        "interpreter, libraries": {"run": used["baseline"]},
    }


def show(figures: dict[str, Any]) -> None:
    print(f"\n{figures.pop('recipe'):<26}{'plan, MB':>10}{'run, MB':>10}{'plan / run':>12}")
    for name, pair in figures.items():
        planned, used = pair.get("plan"), pair.get("run")
        ratio = "" if not planned or not used else f"{planned / used:.3f}"
        mark = ""
        if name in ("rows", "total, in use"):
            mark = "  ok" if abs(planned / used - 1) <= LIMIT else f"  off by more than {LIMIT:.0%}"
        cells = ["" if value is None else f"{value / 1e6:,.1f}" for value in (planned, used)]
        print(f"  {name:<24}{cells[0]:>10}{cells[1]:>10}{ratio:>12}{mark}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", metavar="RECIPE", help=f"of kind ppo; without any, {', '.join(RECIPES)}")
    parser.add_argument("--iterations", type=int, default=2)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(measure_run(arguments.recipes[0], arguments.iterations)))
        return
    print(f"{processor()}; the peak of {arguments.iterations} iterations")
    results = []
    for recipe in arguments.recipes or RECIPES:
        print(f"{recipe}: training it twice", file=sys.stderr, flush=True)
        results.append(compare(recipe, arguments.iterations))
        show(dict(results[-1]))
        if arguments.json:
            arguments.json.write_text(json.dumps({"hardware": processor(), "found": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
