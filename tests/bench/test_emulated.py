"""Counts of whole runs on the emulated device."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from millpond.bench.emulated import count_run
from millpond.errors import MillpondError


def test_device_and_folder_cannot_be_set() -> None:
    with pytest.raises(MillpondError, match="leave out device= and run_dir="):
        count_run("grid", ["device=cpu"])


def test_doctor_counts_a_recipe(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "millpond", "doctor", "--emulate-gpu", "gymnasium:CartPole-v1", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["phases"]["train"]["launch"] > 100
    assert "nanobind" not in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
    done = subprocess.run([*command[:4], "a=b"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "overrides such as a=b belong to a recipe" in done.stderr
