"""Millpond's side: training by its command, and times and levels from metrics.jsonl."""

from __future__ import annotations

import json
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

from environments import last_line
from trained import Trained

RECIPES = {"forage": "forage.yaml", "cartpole": "cartpole_lstm.yaml"}
QUIET = ("eval.interval=null", "eval.episodes=1", "checkpoint.interval=null", "log.tensorboard=false")
LEVELS = {"forage": "reward_per_agent_step", "cartpole": "episode_return"}
VERSIONS = """
import json, importlib.metadata as m
print(json.dumps({name: m.version(name) for name in ("torch", "numpy", "gymnasium")}))
"""
SCENARIO = """
from millpond.envs.mettagrid import forage_config
from millpond.envs.mettagrid import Forage
print(forage_config(Forage()).model_dump_json())
"""


def train_ours(task: str, iterations: int, seed: int, overrides: list[str]) -> Trained:
    """Train for a number of iterations; the times exclude the evaluation at the end."""
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
        settings={"recipe": Path(recipe).stem, "overrides": settings, "seed": seed},
        steps=plan["agent_steps"],
        collect=collect,
        train=[spent - first - last for spent, first, last in zip(whole, collect, evaluate, strict=True)],
        level=[record.get(LEVELS[task]) for record in records],
    )


def write_scenario(path: Path) -> None:
    """Write the forage scenario as a MettaGridConfig, so that all sides use the same one."""
    path.write_text(last_line([sys.executable, "-c", SCENARIO]))
