"""Tests of the emulated device, in a process of their own: torch cannot forget a device, and then neither forks nor traces."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MODULES = [
    "emulated_device.py",
    "emulated_run.py",
    "emulated_budgets.py",
    "emulated_transfers.py",
    "emulated_learners.py",
    "emulated_recipes.py",
    "emulated_report.py",
    "emulated_memory.py",
    "emulated_cores.py",
    "emulated_graphs.py",
    "triton_kernels.py",
]
HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.parametrize("module", ["emulated_recipes.py", "emulated_memory.py"])
def test_slow_tests_of_modules_pass_in_a_separate_process(module: str) -> None:
    run_in_separate_process(module, "-m", "slow")


@pytest.mark.parametrize("module", MODULES)
def test_module_passes_in_a_separate_process(module: str) -> None:
    if module == "triton_kernels.py":
        pytest.importorskip("triton")
    run_in_separate_process(module)


def run_in_separate_process(module: str, *options: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / module), *options]
    done = subprocess.run(command, cwd=HERE.parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout or "100%" in done.stdout, done.stdout
