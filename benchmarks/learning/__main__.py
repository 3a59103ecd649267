"""Train small environments with known answers, with three seeds each.

    python -m benchmarks.learning                     all of them, an hour or so
    python -m benchmarks.learning cartpole recall-gru --seeds 1 2 3 --jobs 2
    python -m benchmarks.learning --page              only write docs/learning.md and the curves

Results are written to results/TASK.json. Exits with 1 if a seed missed its target.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from benchmarks.learning.page import write_page
from benchmarks.learning.tasks import TASKS
from benchmarks.learning.training import save, train


def main() -> int:
    names = [task.name for task in TASKS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"of {', '.join(names)}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=2, help="seeds trained at the same time, one core each")
    parser.add_argument("--page", action="store_true", help="train nothing")
    options = parser.parse_args()
    unknown = set(options.tasks) - set(names)
    if unknown:
        parser.error(f"there is no task {', '.join(sorted(unknown))}")
    reached = True
    if not options.page:
        os.environ["OMP_NUM_THREADS"] = os.environ["NUMBA_NUM_THREADS"] = "1"  # for the processes that train
        with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
            jobs = {n: [pool.submit(train, n, seed) for seed in options.seeds] for n in options.tasks or names}
            for name, pending in jobs.items():
                trained = [job.result() for job in pending]
                whole = save(name, trained)
                reached &= whole
                scores = ", ".join(f"{one['score']:.3f}" for one in trained)
                print(f"{name:<16}{scores}  {'reached' if whole else 'MISSED'}", flush=True)
    write_page(Path("docs/learning.md"))
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
