"""Compare the time per frame of four agents side by side with that of one, including pouring to the lake.

    python benchmarks/mixture_cost.py [--env minatar:breakout] [--collections 6] [--repeats 3]

Both run alternately in one process. Counted is the agents' phase: collecting, waiting for the ponds, learning. The pouring
thread runs at the same time.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from statistics import median
from typing import Any

from millpond.config import load
from millpond.trainers.common.session import start_run
from millpond.trainers.mixture.trainer import MixtureTrainer

PHASES = ("time/collect", "time/pour", "time/learn")


def seconds_per_frame(root: Path, name: str, env_id: str, agents: int, collections: int) -> tuple[float, float]:
    """Return seconds per frame of the agents' phase, without its first collection (compilation), and of the pouring thread."""
    settings: dict[str, Any] = {
        "env.id": env_id,
        "mixture.mode": "rounds" if agents > 1 else "single-resets",
        "mixture.agents": agents,
        "mixture.total_frames": 10**9,
        "mixture.collections_per_round": collections,
        "mixture.big_updates": 1,
        "trainer.total_iterations": 1,
        "eval.episodes": 1,
        "log.tensorboard": False,
        "run_dir": str(root),
    }
    loaded = load("mixture-gravitar" if env_id.startswith("atari:") else "mixture", settings)
    with redirect_stdout(StringIO()):
        trainer = MixtureTrainer(loaded, start_run(loaded, name))
        try:
            trainer.train()
        finally:
            trainer.close()
    records = [json.loads(line) for line in (root / name / "metrics.jsonl").read_text().splitlines()]
    phase = [record for record in records if "reward_per_agent_step" in record]
    frames = phase[-1]["frames"] - phase[0]["frames"]
    spent = sum(record.get(key, 0.0) for record in phase[1:] for key in PHASES)
    return spent / frames, records[-1]["time/pouring"] / records[-1]["frames"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="minatar:breakout")
    parser.add_argument("--collections", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    times: dict[int, list[float]] = {1: [], 4: []}
    pouring: dict[int, list[float]] = {1: [], 4: []}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(arguments.repeats):
            for agents in times:
                time, poured = seconds_per_frame(
                    Path(folder), f"{agents}-{repeat}", arguments.env, agents, arguments.collections
                )
                times[agents].append(time)
                pouring[agents].append(poured)
    one, four = median(times[1]), median(times[4])
    print(f"{arguments.env} on {platform.machine()}, median of {arguments.repeats}, microseconds per frame")
    print(f"  one agent    {one * 1e6:8.1f}   (pouring thread {median(pouring[1]) * 1e6:.1f})")
    print(f"  four agents  {four * 1e6:8.1f}   (pouring thread {median(pouring[4]) * 1e6:.1f})")
    print(f"  four / one   {four / one:8.3f}")


if __name__ == "__main__":
    main()
