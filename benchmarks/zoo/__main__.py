"""Train standard tasks with the packaged recipes and with references, with the same number of env steps.

    python -m benchmarks.zoo                                    whatever has no result yet; hours
    python -m benchmarks.zoo --task cartpole pendulum --party millpond sb3 --seeds 1 2 3
    python -m benchmarks.zoo --quick --task cartpole            seconds, into a temporary folder
    python -m benchmarks.zoo --page                             only write docs/zoo.md and its picture

A finished training is a file in results/ and is not run again. Millpond and SB3's defaults come first in all tasks.
References need the virtual environments of SB3 and PufferLib: python benchmarks/peers/run.py --setup sb3 puffer.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.peers.environments import interpreter
from benchmarks.zoo.page import PAGE, PICTURE, draw, page_of
from benchmarks.zoo.results import RESULTS, path_of, read_results
from benchmarks.zoo.tasks import MILLPOND, PUFFER, SB3, TASKS, TITLES
from benchmarks.zoo.training import train

Job = tuple[str, str, int]  # task, party, seed


def planned(tasks: list[str], parties: list[str], seeds: list[int] | None) -> list[Job]:
    """Return all trainings in order: Millpond and SB3's defaults in all tasks, then the other parties."""
    jobs = [
        (name, party, seed)
        for name in tasks
        for seed in seeds or sorted({seed for party in parties for seed in TASKS[name].seeds_of(party)})
        for party in TASKS[name].parties
        if party in parties and (seeds or seed in TASKS[name].seeds_of(party))
    ]
    return sorted(jobs, key=lambda job: job[1] not in (MILLPOND, SB3))


def run(job: Job, folder: Path, python: str | None, threads: int | None, quick: bool) -> str | None:
    """Train and write the result; return the reason if it fails."""
    task, party, seed = job
    start = time.monotonic()
    try:
        result = train(TASKS[task], party, seed, python=python, threads=threads, quick=quick)
    except SystemExit as failed:
        print(f"{task} {party} {seed} FAILED", flush=True)
        return str(failed)
    result.write(folder)
    final = "no episode ended" if result.final is None else f"{result.final:.5g}"
    print(f"{task} {party} {seed}: {final} after {result.steps:,} steps, {time.monotonic() - start:.0f} s", flush=True)
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--party", nargs="+", choices=list(TITLES), default=list(TITLES))
    parser.add_argument(
        "--seeds", type=int, nargs="+", help="default: three of Millpond and of SB3's defaults, one of others"
    )
    parser.add_argument(
        "--jobs", type=int, default=2, help="trainings side by side, with one thread each if more than one"
    )
    parser.add_argument(
        "--threads", type=int, help="of each training; default: one if there are several jobs, else torch's"
    )
    parser.add_argument("--python", help="interpreter of the references; default: of the environment that --setup made")
    parser.add_argument("--folder", type=Path, help="of the results; default: benchmarks/zoo/results")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--page", action="store_true", help="train nothing")
    options = parser.parse_args()
    folder = options.folder or (Path(tempfile.mkdtemp(prefix="zoo-")) if options.quick else RESULTS)
    failures = []
    if not options.page:
        jobs = planned(options.task, options.party, options.seeds)
        jobs = [job for job in jobs if not path_of(folder, *job).exists()]
        has_references = any(party not in (MILLPOND, PUFFER) for _, party, _ in jobs)
        python = options.python or (interpreter("sb3", {}) if has_references else None)
        threads = options.threads or (1 if options.jobs > 1 else None)
        with ThreadPoolExecutor(options.jobs) as pool:
            pending = [pool.submit(run, job, folder, python, threads, options.quick) for job in jobs]
            failures = [reason for reason in (one.result() for one in pending) if reason]
        print("\n".join([f"results: {folder}", *failures]), flush=True)
    if folder == RESULTS:
        results = read_results(RESULTS)
        PAGE.write_text(page_of(results), encoding="utf-8")
        draw(results, PICTURE)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
