"""The planned memory of a GPU against the bytes in use at the peak on the emulated device. Run by test_emulated.py.

Stated tolerance: the plan is between 10 % below and 45 % above the peak.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millpond.devices.emulated import register
from millpond.devices.live_memory import measuring_memory
from millpond.planner import plan_loaded
from millpond.trainers.common.session import load_to_run, make_trainer, require_trainer, start_run

register()
LOW, HIGH = 0.9, 1.45
CASES: dict[str, tuple[str, ...]] = {
    "grid": ("grid", "policy.hidden_size=48"),
    "grid, without memory": ("grid", "policy.hidden_size=48", "policy.core=none"),
    "metta": ("metta", "policy.hidden_size=48"),
    "mettagrid": ("mettagrid", "policy.hidden_size=48"),
    "mixture": ("mixture", "policy.hidden_size=64"),
    "reward-online": ("reward-online", "agent.replay_transitions=60000"),
}
SLOW: dict[str, tuple[str, ...]] = {
    "grid, gru": ("grid", "policy.hidden_size=48", "policy.core=gru"),
    "grid, mingru": ("grid", "policy.hidden_size=48", "policy.core=mingru"),
    "grid, two layers": ("grid", "policy.hidden_size=48", "policy.core=mingru", "policy.num_layers=2"),
    "grid, separate critic": ("grid", "policy.hidden_size=48", "policy.separate_critic=true"),
    "images": ("atari:pong",),
    "vectors, lstm": ("gymnasium:Pendulum-v1", "policy.hidden_size=64", "policy.core=lstm"),
}


def peak_and_plan(folder: Path, recipe: str, *overrides: str) -> tuple[int, Any]:
    """Train a recipe's preset `debug`; return the bytes in use at the peak, and the plan."""
    ours = ["device=emulated", f"run_dir={folder}", "log.tensorboard=false", "eval.episodes=1"]
    loaded = load_to_run(recipe, [*overrides, *ours], "debug", trust=True)
    recorded = require_trainer(loaded)
    with measuring_memory() as memory:
        trainer = make_trainer(loaded, start_run(loaded, None, recorded=recorded), recorded=recorded)
        try:
            trainer.train()
        finally:
            trainer.close()
    return memory.peak, plan_loaded(loaded).plan


@pytest.mark.parametrize("case", [*CASES, *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW)])
def test_planned_memory_is_that_in_use_at_the_peak(case: str, tmp_path: Path) -> None:
    recipe, *overrides = {**CASES, **SLOW}[case]
    for module, names in {"mettagrid": ("mettagrid",), "minatar": ("mixture",), "ale_py": ("atari:pong",)}.items():
        if recipe in names:
            pytest.importorskip(module)
    peak, plan = peak_and_plan(tmp_path, recipe, *overrides)
    assert plan.device_bytes is not None
    share = plan.device_bytes / peak
    print(f"{case}: planned {plan.device_bytes:,}, peak {peak:,}, {share:.2f}")
    assert LOW <= share <= HIGH, f"planned {plan.device_bytes:,}, at the peak {peak:,}: {share:.2f}"
