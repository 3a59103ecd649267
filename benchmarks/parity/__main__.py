"""Learning curves of Millpond in PufferLib's style and of PufferLib's own trainer, from the same network and initial weights.

    python benchmarks/peers/run.py --setup puffer                        once: PufferLib's virtual environment
    python -m benchmarks.parity                                          whatever has no result yet
    python -m benchmarks.parity --world cartpole --side puffer pufferlib --seeds 1 2 3 4 5
    python -m benchmarks.parity --page                                   only write docs/parity.md and its picture

A finished training is a file in results/ and is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

from benchmarks.parity.page import PAGE, PICTURE, RESULTS, draw, page_of, read_results
from benchmarks.parity.worlds import PUFFER, VARIANTS, WORLDS

SIDES = ("puffer", PUFFER, *(name for name in VARIANTS if name != "puffer"))


def run(world: str, side: str, seed: int) -> None:
    """Train in a process of its own, and store the result."""
    path = RESULTS / f"{world}-{side}-{seed}.json"
    if path.exists():
        return
    began = time.monotonic()
    command = [sys.executable, "-m", "benchmarks.parity.training", world, side, str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{world} {side} {seed} failed:\n{done.stderr[-3000:]}")
    result = json.loads(done.stdout.strip().splitlines()[-1])
    RESULTS.mkdir(exist_ok=True)
    draft = path.with_suffix(".part")
    draft.write_text(json.dumps(result) + "\n", encoding="utf-8")
    os.replace(draft, path)
    print(f"{world} {side} {seed}: {time.monotonic() - began:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", nargs="+", choices=list(WORLDS), default=list(WORLDS))
    parser.add_argument("--side", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--page", action="store_true", help="train nothing")
    options = parser.parse_args()
    if not options.page:
        for side in options.side:
            for world in options.world:
                for seed in options.seeds:
                    run(world, side, seed)
    results = read_results(RESULTS)
    PAGE.write_text(page_of(results), encoding="utf-8")
    draw(results, PICTURE)


if __name__ == "__main__":
    main()
