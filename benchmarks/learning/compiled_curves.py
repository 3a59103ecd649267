"""Learning curves of the recipe `mixture` with compiled updates and with plain ones: returns of agents and BigAgent, by seed.

    python benchmarks/learning/compiled_curves.py [--seeds 1 2 3] [--folder FOLDER]

Four short rounds on MinAtar Breakout. Runs that are finished in FOLDER are read, not trained again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import mean

import millpond
from millpond.store.status import read_status

SETTINGS = ("mixture.total_frames=524_288", "mixture.collections_per_round=8", "mixture.big_updates=1_024")
COLLECTIONS = 2  # at the end of a round, whose returns count for the agents


def trained(folder: Path, seed: int, *, fast: bool) -> Path:
    """Return the folder of a finished run."""
    run = folder / f"curve-{str(fast).lower()}-{seed}"
    if not (run.exists() and read_status(run).state == "finished"):
        settings = [*SETTINGS, f"trainer.fast={str(fast).lower()}", f"seed={seed}", "log.tensorboard=false"]
        millpond.train("mixture", overrides=[*settings, f"run_dir={folder}"], run=run.name, overwrite=True).close()
    return run


def rounds(run: Path) -> list[tuple[int, float, float]]:
    """Return env steps, return of the agents in the last collections, and return of the BigAgent, of each round."""
    result, collected = [], []
    for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if "eval/episode_return" in record:
            result.append((record["env_steps"], mean(collected[-COLLECTIONS:]), record["eval/episode_return"]))
        elif "episode_return" in record:
            collected.append(record["episode_return"])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--folder", type=Path, help="of the runs; default: a temporary one")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="compiled-curves-"))
    curves = {fast: [rounds(trained(folder, seed, fast=fast)) for seed in options.seeds] for fast in (True, False)}
    steps = [step for step, _, _ in curves[True][0]]
    print("| updates | return of | " + " | ".join(f"{step:,}" for step in steps) + " |")
    print("|---" * (2 + len(steps)) + "|")
    for fast, name in ((True, "compiled"), (False, "plain")):
        for column, who in ((1, "the agents"), (2, "the BigAgent")):
            cells = [
                f"{mean(seeds):.2f} ({', '.join(f'{value:.2f}' for value in seeds)})"
                for seeds in ([curve[place][column] for curve in curves[fast]] for place in range(len(steps)))
            ]
            print(f"| {name} | {who} | " + " | ".join(cells) + " |")
    print(f"runs: {folder}")


if __name__ == "__main__":
    main()
