"""Millpond's side: training by its command, with times and levels from metrics.jsonl, or by a loop of its learners."""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from environments import last_line
from trained import WARM_UP, Trained

RECIPES = {
    "forage": "forage.yaml",
    "cartpole": "cartpole_lstm.yaml",
    "cartpole-mlp": "cartpole_mlp.yaml",
    "halfcheetah": "halfcheetah.yaml",
    "pong": "pong.yaml",
}
QUIET = ("eval.interval=null", "eval.episodes=1", "checkpoint.interval=null", "log.tensorboard=false")
VERSIONS = """
import json, importlib.metadata as m
print(json.dumps({name: m.version(name) for name in ("torch", "numpy", "gymnasium")}))
"""


def train_ours(task: str, iterations: int, seed: int, overrides: list[str]) -> Trained:
    """Train for a number of iterations; the times exclude the evaluation at the end."""
    if task not in RECIPES:
        if overrides:
            raise SystemExit(f"--ours is for tasks with a recipe ({', '.join(RECIPES)}); {task} has settings.py alone")
        script = str(Path(__file__).with_name("ours_off_policy.py"))
        command = [sys.executable, script, task, str(iterations), str(seed)]
        trained = Trained(**json.loads(last_line(command)))
        return replace(trained, settings={**trained.settings, "shares": trained.shares()})
    level = "reward_per_agent_step" if task == "forage" else "episode_return"
    recipe = str(Path(__file__).with_name(RECIPES[task]))
    with tempfile.TemporaryDirectory() as folder:
        settings = [*QUIET, f"trainer.total_iterations={iterations}", f"seed={seed}", *overrides]
        run = [*settings, f"run_dir={folder}", "--run", "ours"]
        last_line([sys.executable, "-m", "millpond", "train", recipe, *run])
        lines = (Path(folder) / "ours" / "metrics.jsonl").read_text().splitlines()
        plan = json.loads((Path(folder) / "ours" / "plan.json").read_text())
    records = [json.loads(line) for line in lines]
    moments = [0.0, *(record["seconds"] for record in records)]
    whole = [after - before for before, after in pairwise(moments)]  # includes recording
    collect = [record["time/collect"] for record in records]
    evaluate = [record.get("time/evaluate", 0.0) for record in records]
    return Trained(
        party="millpond",
        versions=json.loads(last_line([sys.executable, "-c", VERSIONS])),
        settings={
            "recipe": Path(recipe).stem,
            "overrides": settings,
            "seed": seed,
            "shares": shares_of(records, whole),
        },
        steps=plan["agent_steps"],
        collect=collect,
        train=[spent - first - last for spent, first, last in zip(whole, collect, evaluate, strict=True)],
        level=[record.get(level) for record in records],
    )


def shares_of(records: list[dict[str, Any]], whole: list[float]) -> dict[str, float]:
    """Return the share of each timed phase in the iterations that count, without evaluation; the rest is `other`.

    A phase within another, such as `collect/step`, is a part of that.
    """
    counted, spent = records[WARM_UP:], sum(whole[WARM_UP:])
    names = sorted({name for record in counted for name in record if name.startswith("time/")})
    sums = {name.removeprefix("time/"): sum(record.get(name, 0.0) for record in counted) for name in names}
    spent -= sums.pop("evaluate", 0.0)
    shares = {name: seconds / spent for name, seconds in sums.items()}
    outer = sum(share for name, share in shares.items() if "/" not in name)
    return {**shares, "other": 1.0 - outer}
