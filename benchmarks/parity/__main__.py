"""Learning curves of Millpond in PufferLib's style and of PufferLib's own trainer, from the same network and initial weights.

    python benchmarks/peers/run.py --setup puffer                        once: PufferLib's virtual environment
    python -m benchmarks.parity                                          whatever has no result yet
    python -m benchmarks.parity --world cartpole --side puffer pufferlib --seeds 1 2 3 4 5
    python -m benchmarks.parity --speed                                  seconds per iteration, on a machine without other work
    python -m benchmarks.parity --page                                   only write docs/parity.md and its picture

A finished training is a file in results/ and is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.parity.page import PAGE, PICTURE, RESULTS, draw, page_of, read_results
from benchmarks.parity.speed import SPEED, measure
from benchmarks.parity.worlds import PUFFER, VARIANTS, WORLDS

SIDES = ("puffer", PUFFER, *(name for name in VARIANTS if name != "puffer"))


def path_of(job: str) -> Path:
    return RESULTS / f"{job.replace('/', '-')}.json"


def run(jobs: Sequence[str]) -> None:
    """Train `WORLD/SIDE/SEED` one after the other, in one process of their own, and store each result when it is there."""
    RESULTS.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.parity.training", *jobs]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            if not line.startswith('{"world"'):
                continue
            result = json.loads(line)
            path = path_of(f"{result['world']}/{result['side']}/{result['seed']}")
            draft = path.with_suffix(".part")
            draft.write_text(line, encoding="utf-8")
            os.replace(draft, path)
            print(f"{path.stem}: {result['seconds']:.0f} s", flush=True)
        if process.wait():
            errors.seek(0)
            raise SystemExit(f"{' '.join(command)} failed:\n{errors.read()[-3000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", nargs="+", choices=list(WORLDS), default=list(WORLDS))
    parser.add_argument("--side", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--page", action="store_true", help="train nothing")
    parser.add_argument("--speed", action="store_true", help="measure seconds per iteration, and train nothing")
    parser.add_argument("--rounds", type=int, default=2, help="of --speed")
    options = parser.parse_args()
    if options.speed:
        measure(options.rounds)
    jobs = [
        f"{world}/{side}/{seed}"
        for side in options.side
        for world in options.world
        if side in (PUFFER, *WORLDS[world].variants)
        for seed in options.seeds
    ]
    missing = [job for job in jobs if not path_of(job).exists()]
    if missing and not options.page and not options.speed:
        run(missing)
    results = read_results(RESULTS)
    PAGE.write_text(page_of(results, json.loads(SPEED.read_text()) if SPEED.exists() else None), encoding="utf-8")
    draw(results, PICTURE)


if __name__ == "__main__":
    main()
