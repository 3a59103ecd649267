"""Seconds per iteration on forage: Millpond in PufferLib's style, without recomputation, in its own style, and PufferLib."""

from __future__ import annotations

import json
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.hardware import processor
from benchmarks.parity.training import QUIET
from benchmarks.peers.environments import interpreter, last_line, run_peer, write_scenario

SPEED = Path(__file__).parent / "results" / "speed.json"
PEERS = Path(__file__).parents[1] / "peers"
WARM_UP, OURS, THEIRS = 2, 15, 8  # iterations
# Adam's rows without priorities, as PufferLib's script has them.
STYLE = ("ppo.style=puffer", "ppo.optimizer=adam", "ppo.learning_rate=4.57e-4")
SIDES = {
    "Millpond, `ppo.style=puffer`": STYLE,
    "the same, `ppo.recompute_advantage=false`": (*STYLE, "ppo.recompute_advantage=false"),
    "Millpond, `ppo.style=millpond`": (),
}


def measure(rounds: int) -> None:
    """Run all sides in turns, and store the median iteration of each as it is measured, after those of earlier rounds."""
    stored: dict[str, Any] = json.loads(SPEED.read_text()) if SPEED.exists() else {}
    if stored.get("machine") != processor():  # rounds of one machine only
        stored = {"machine": processor(), "sides": {name: [] for name in (*SIDES, "PufferLib")}}
    for number in range(1, rounds + 1):
        for name, measured in stored["sides"].items():
            one = _ours(SIDES[name]) if name in SIDES else _theirs()
            measured.append(one)
            SPEED.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
            print(f"round {number}: {name}: {one['per_second']:,.0f} agent steps/s", flush=True)


def _ours(overrides: tuple[str, ...]) -> dict[str, float]:
    quiet = [f"{key}={json.dumps(value)}" for key, value in QUIET.items()]
    with tempfile.TemporaryDirectory() as folder:
        run = [*quiet, f"trainer.total_iterations={OURS}", *overrides, f"run_dir={folder}", "--run", "ours"]
        last_line([sys.executable, "-m", "millpond", "train", str(PEERS / "forage.yaml"), *run])
        lines = (Path(folder) / "ours" / "metrics.jsonl").read_text().splitlines()
        steps = json.loads((Path(folder) / "ours" / "plan.json").read_text())["agent_steps"]
    records = [json.loads(line) for line in lines]
    collect = [record["time/collect"] for record in records]
    whole = [after["seconds"] - before["seconds"] for before, after in pairwise(records)]
    evaluated = [record.get("time/evaluate", 0.0) for record in records[1:]]
    return _medians(
        collect[1:], [w - c - e for w, c, e in zip(whole, collect[1:], evaluated, strict=True)], steps, WARM_UP - 1
    )


def _theirs() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        scenario = Path(folder) / "forage.json"
        write_scenario(scenario)
        script = PEERS / "puffer_forage.py"
        result = json.loads(run_peer(interpreter("puffer", {}), script, scenario, THEIRS, 1, 0))
    return _medians(result["collect"], result["train"], result["steps"], WARM_UP)


def _medians(collect: list[float], train: list[float], steps: int, skip: int) -> dict[str, float]:
    """Return the medians of the iterations after the first ones, and the speed of the median iteration."""
    whole = [first + last for first, last in zip(collect, train, strict=True)]
    return {
        "collect": median(collect[skip:]),
        "train": median(train[skip:]),
        "per_second": steps / median(whole[skip:]),
    }
