"""Check that two checkouts train to the same results, bit for bit.

    git worktree add /tmp/before v0.1.0
    python benchmarks/same_results.py /tmp/before .
    python benchmarks/same_results.py /tmp/before . --recipes grid reward
    python benchmarks/same_results.py . . --set trainer.fast=false --tolerance 1e-5 --recipes grid mettagrid

Trains each recipe at a small size, in float32 and with the same seed, once with each checkout, and compares every record of
`metrics.jsonl` (except times and speeds) and every tensor of the last checkpoint's weights. `--set` overrides settings of the
second checkout only. `--tolerance` allows a difference: relative for numbers above 1, absolute below. Exits with 1 if anything
differs.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

COMMON = ("log.tensorboard=false", "seed=7")
PPO = ("vector.backend=inline", "trainer.num_workers=1", "eval.episodes=2", "trainer.total_iterations=3")
SIZES: dict[str, tuple[str, ...]] = {
    "grid": (*PPO, "trainer.num_envs=64", "trainer.batch_size=4_096", "trainer.minibatch_size=1_024"),
    "mettagrid": (
        *PPO,
        "trainer.forward_pass_minibatch_target_size=null",
        "trainer.num_envs=12",
        "trainer.batch_size=1_536",
        "trainer.minibatch_size=512",
    ),
    "mixture": (
        "mixture.total_frames=16_384",
        "mixture.collections_per_round=2",
        "mixture.big_updates=32",
        "mixture.pond_transitions=2_048",
        "mixture.big_pond_transitions=4_096",
        "pqn.num_envs=32",
        "pqn.num_minibatches=8",
        "eval.episodes=2",
    ),
    "reward": ("reward.epochs=2", "reward.cycles=2", "reward.iterations=4", "reward.train_batches=20"),
    "reward-online": (
        "reward.epochs=2",
        "reward.cycles=2",
        "reward.iterations=4",
        "reward.train_batches=10",
        "agent.warmup_steps=400",
        "eval.episodes=2",
    ),
}
# Parts of the names of metrics that differ between equal runs. The lake's bytes include a lock file with a process id.
MEASURED = ("seconds", "time/", "TimeCost", "per_second", "lake/bytes")


@dataclass
class Comparison:
    """Differences between two trainings of one recipe."""

    records: int = 0
    metrics: int = 0
    tensors: int = 0
    largest: float = 0.0  # difference: relative for numbers above 1, else absolute
    differences: list[str] = field(default_factory=list)

    def compare(self, name: str, old: float, new: float, tolerance: float) -> None:
        if old == new or (math.isnan(old) and math.isnan(new)):
            return
        difference = abs(old - new) / max(abs(old), abs(new), 1.0)
        self.largest = max(self.largest, difference)
        if not difference <= tolerance:
            self.differences.append(f"{name}: {old!r} against {new!r}")


def train(checkout: Path, recipe: str, settings: list[str], folder: Path) -> Path:
    """Train with the code of `checkout`; return the run folder."""
    command = [sys.executable, "-m", "millpond", "train", recipe, *settings, f"run_dir={folder}", "--run", "run"]
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=folder)
    if done.returncode:
        raise SystemExit(f"{checkout}: {' '.join(command[2:])} failed:\n{done.stderr[-4000:]}")
    return folder / "run"


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Return the records of a run without what differs between equal runs."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in one.items() if not any(part in k for part in MEASURED)} for one in records]


def read_weights(run: Path) -> dict[str, torch.Tensor]:
    """Return every tensor of the newest checkpoint's weights, named FILE/TENSOR."""
    newest = max((run / "checkpoints").iterdir(), key=lambda path: int(path.name) if path.name.isdigit() else -1)
    files = sorted(newest.rglob("*.safetensors"))
    return {f"{path.stem}/{name}": tensor for path in files for name, tensor in load_file(path).items()}


def compare_runs(old: Path, new: Path, tolerance: float) -> Comparison:
    comparison = Comparison()
    before, after = read_metrics(old), read_metrics(new)
    if len(before) != len(after):
        comparison.differences.append(f"{len(before)} records against {len(after)}")
    for index, (first, second) in enumerate(zip(before, after, strict=False)):
        comparison.records += 1
        for name in sorted(first.keys() | second.keys()):
            comparison.metrics += 1
            if name not in first or name not in second:
                comparison.differences.append(f"record {index}: {name} is only in one of the two")
            elif isinstance(first[name], int | float) and isinstance(second[name], int | float):
                comparison.compare(f"record {index}: {name}", first[name], second[name], tolerance)
            elif first[name] != second[name]:
                comparison.differences.append(f"record {index}: {name}: {first[name]!r} against {second[name]!r}")
    comparison.differences.extend(compare_weights(read_weights(old), read_weights(new), comparison, tolerance))
    return comparison


def compare_weights(
    old: dict[str, torch.Tensor], new: dict[str, torch.Tensor], comparison: Comparison, tolerance: float
) -> Iterator[str]:
    if old.keys() != new.keys():
        yield f"weights differ in names: {sorted(old.keys() ^ new.keys())}"
    for name in old.keys() & new.keys():
        comparison.tensors += 1
        if old[name].shape != new[name].shape:
            yield f"weights {name}: {tuple(old[name].shape)} against {tuple(new[name].shape)}"
        elif not torch.equal(old[name], new[name]):
            scale = torch.maximum(old[name].double().abs(), new[name].double().abs()).clamp(min=1.0)
            largest = ((old[name].double() - new[name].double()).abs() / scale).max().item()
            comparison.compare(f"weights {name}, largest difference", 0.0, largest, tolerance)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="a checkout of the project")
    parser.add_argument("new", type=Path, help="another one, or the same")
    parser.add_argument("--recipes", nargs="*", default=list(SIZES), choices=list(SIZES), metavar="RECIPE")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="overrides for the second checkout")
    parser.add_argument(
        "--tolerance", type=float, default=0.0, help="allowed difference: relative above 1, absolute below"
    )
    arguments = parser.parse_args()
    checkouts = [folder.resolve() for folder in (arguments.old, arguments.new)]
    for checkout in checkouts:
        if not (checkout / "src" / "millpond").is_dir():
            parser.error(f"{checkout} has no src/millpond; give the folder of a checkout")
    differ = False
    for recipe in arguments.recipes:
        settings = [*COMMON, *SIZES[recipe]]
        with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
            old = train(checkouts[0], recipe, settings, Path(first))
            new = train(checkouts[1], recipe, [*settings, *arguments.set], Path(second))
            result = compare_runs(old, new, arguments.tolerance)
        verdict = (
            "DIFFERENT" if result.differences else f"within {arguments.tolerance:g}" if result.largest else "identical"
        )
        counts = f"{result.records} records, {result.metrics} metrics, {result.tensors} tensors"
        print(f"{recipe:<14}{verdict:<14}{counts}; largest difference {result.largest:.3g}", flush=True)
        for line in result.differences[:8]:
            print(f"    {line}")
        differ |= bool(result.differences)
    raise SystemExit(differ)


if __name__ == "__main__":
    main()
