"""Train `metta` and `metta-2026` at a sixteenth of their size, with equal agent steps.

    python -m benchmarks.metta                                 whatever has no result yet; an hour or two on one core
    python -m benchmarks.metta --task grid --setting metta metta-2026 --seeds 1
    python -m benchmarks.metta --quick --task grid             seconds, into a temporary folder
    python -m benchmarks.metta --page                          only write docs/metta-2026.md and its picture

A finished training is a file in results/ and is not run again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.metta.page import write_page
from benchmarks.metta.tasks import BATCH, SETTINGS, TASKS
from benchmarks.zoo.results import path_of, read_results
from benchmarks.zoo.training import result_of, train_here

RESULTS = Path(__file__).parent / "results"


def run(name: str, setting: str, seed: int, folder: Path, quick: bool) -> None:
    """Train and write the result."""
    task, chosen = TASKS[name], SETTINGS[setting]
    steps = BATCH if quick else task.steps
    # `train_here` takes the task's recipe; here the setting names it
    trained = train_here(replace(task, recipe=chosen.recipe), seed, steps, chosen.overrides(name))
    result_of(trained, name, setting, seed, 1).write(folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--setting", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--quick", action="store_true", help="one iteration each, to see that everything runs")
    parser.add_argument("--page", action="store_true", help="train nothing")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="metta-")) if options.quick else RESULTS
    if not options.page:
        for seed in options.seeds:
            for setting in options.setting:
                for task in options.task:
                    if task in SETTINGS[setting].tasks and not path_of(folder, task, setting, seed).exists():
                        run(task, setting, seed, folder, options.quick)
                        print(f"{task} {setting} {seed}", flush=True)
    if not options.quick:
        write_page(read_results(RESULTS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
