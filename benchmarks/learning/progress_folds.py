"""Learn progress on human demonstrations, leave-one-out: each episode is evaluated by a network that never saw it.

    python benchmarks/learning/progress_folds.py [--seeds 1,2,3] [--updates 500]

For lift (3 demonstrations) and handover (7), from the package: the value-order correlation (VOC) of every fold, on the whole
episode, cut at half and reversed, and how much lower progress is at the cut than at the end. The clock column is dropped. A
clock is shown for comparison: it wins VOC and gives itself away on reversed episodes.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile

import numpy as np

from millpond.config import load
from millpond.data import open_episodes
from millpond.formatting import table
from millpond.trainers.common.session import start_run
from millpond.trainers.reward.evaluation import HeldOutEvaluation
from millpond.trainers.reward.trainer import RewardTrainer

COLUMNS = ("voc", "voc_truncated", "voc_reversed", "end_value", "cut_value")
MIN_VOC, MIN_GAP = 0.85, 0.2


def fold(folder: str, path: str, episode: int, seed: int, updates: int) -> HeldOutEvaluation:
    """Train without one episode, and evaluate it."""
    settings = {
        "seed": seed,
        "run_dir": folder,
        "data.path": path,
        "data.drop_columns": ["states:0"],
        "data.held_out": [episode],
        "data.expected_episodes": None,
        "data.expected_steps": None,
        "reward.objective": "progress",
        "reward.learning_rate": 1e-3,
        "reward.epochs": 1,
        "reward.cycles": 1,
        "reward.iterations": 1,
        "reward.train_batches": updates,
        "log.tensorboard": False,
    }
    loaded = load("reward", settings)
    trainer = RewardTrainer(loaded, start_run(loaded, f"{path}-{episode}-{seed}"))
    with contextlib.redirect_stdout(io.StringIO()):
        trainer.train()
    assert trainer.held_out is not None
    return trainer.held_out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--updates", type=int, default=500)
    arguments = parser.parse_args()
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    good = True
    with tempfile.TemporaryDirectory() as folder:
        for path in ("lift", "handover"):
            rows, scores, clocks = [], [], []
            for episode in range(len(open_episodes(path))):
                for seed in seeds:
                    held_out = fold(folder, path, episode, seed, arguments.updates)
                    scores.append([held_out.learned[name] for name in COLUMNS])
                    clocks.append([held_out.baselines["time"][name] for name in COLUMNS])
                    gap = scores[-1][3] - scores[-1][4]
                    rows.append([f"without {episode}, seed {seed}", *(f"{v:.3f}" for v in scores[-1]), f"{gap:.3f}"])
            for name, values in (("mean", scores), ("a clock, mean", clocks)):
                mean = np.mean(values, axis=0)
                rows.append([name, *(f"{value:.3f}" for value in mean), f"{mean[3] - mean[4]:.3f}"])
            header = [path, "VOC", "cut at half", "reversed", "end", "cut", "gap"]
            print("\n".join([*table(header, rows), ""]), flush=True)
            mean = np.mean(scores, axis=0)
            good &= bool(mean[0] >= MIN_VOC and mean[3] - mean[4] >= MIN_GAP)
    print(f"VOC at least {MIN_VOC} and gap at least {MIN_GAP} on average: {'ok' if good else 'MISSED'}")


if __name__ == "__main__":
    main()
