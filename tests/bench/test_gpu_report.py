"""The report of a GPU, at tiny sizes on the CPU; on the emulated device: tests/devices/emulated_report.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from millpond.bench.gpu.compare import relative_difference
from millpond.bench.gpu.hardware import ReportEffort, matmul_precision, measure_hardware
from millpond.bench.gpu.recipes import Moment, between, variants_of
from millpond.bench.gpu.report import PRIVATE, attempt, gpu_report, show_report
from millpond.bench.run import Unit
from millpond.cli.app import app
from millpond.errors import MillpondError


def test_report_of_the_cpu_has_limits_times_and_a_comparison(tmp_path: Path) -> None:
    out = tmp_path / "reports" / "one.json"
    command = ["bench", "--gpu-report", "gymnasium:CartPole-v1", "--device", "cpu", "--quick", "--out", str(out)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    report = json.loads(out.read_text())
    assert report["quick"] is True
    assert not set(PRIVATE) & set(report["machine"])
    assert set(report["machine"]["versions"]) >= {"torch", "millpond"}
    assert report["hardware"]["microseconds_per_launch"]["in place"] > 0
    found = report["recipes"]["gymnasium:CartPole-v1"]
    assert found["against the CPU"]["equal"] is True
    times = found["variants"]["as it is"]
    assert times["iterations"] == 1
    assert times["agent_steps_per_second"] > 0
    assert set(times["units"]) == {"group step", "update"}
    assert "equals the CPU" in done.output
    assert f"written: {out}" in done.output.replace("\n", "")


def test_overrides_and_missing_devices_are_refused() -> None:
    done = CliRunner().invoke(app, ["bench", "--gpu-report", "grid", "policy.core=gru"])
    assert isinstance(done.exception, MillpondError)
    assert "reports must be comparable" in str(done.exception)
    with pytest.raises(MillpondError, match="device=cuda"):
        gpu_report(["grid"], device="cuda", effort=ReportEffort.small())


def test_a_part_that_fails_is_reported_and_the_rest_is_measured() -> None:
    report = gpu_report(["no-such-recipe"], device="cpu", effort=ReportEffort.small())
    assert "no-such-recipe" in report["recipes"]["no-such-recipe"]["error"]
    assert "operations_per_second" in report["hardware"]
    found = attempt(lambda: {"share": 1 / 0})
    assert found["error"] == "ZeroDivisionError: division by zero"
    assert any("no-such-recipe" in line for line in show_report(report))


def test_times_are_those_between_the_first_and_the_last_iteration() -> None:
    moments = [
        Moment(10.0, {"collect": 4.0, "train": 5.0}, {"update": 2}, 100, 2),
        Moment(13.0, {"collect": 5.0, "train": 6.0, "evaluate": 0.5}, {"update": 4}, 200, 4),
        Moment(17.0, {"collect": 6.0, "train": 8.0, "evaluate": 1.0}, {"update": 8}, 300, 8),
    ]
    found = between(moments, {"update": Unit("train", 8)})
    assert found["iterations"] == 2
    assert found["seconds_per_iteration"] == 3.0  # 7 seconds, of which one was an evaluation
    assert found["agent_steps_per_second"] == 200 / 6
    assert found["units"] == {"update": {"count": 6, "milliseconds": 500.0}}
    assert found["phases"]["collect"] == 1.0


def test_variants_are_those_that_a_recipe_has_keys_for() -> None:
    assert "bfloat16" in variants_of("grid", "cpu", None)
    assert variants_of("reward-online", "cpu", None).keys() & {"bfloat16"} == set()


def test_precision_of_products_is_restored() -> None:
    before = torch.get_float32_matmul_precision()
    with matmul_precision("high"):
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_float32_matmul_precision() == before


def test_difference_is_a_share_of_the_largest_number() -> None:
    assert relative_difference(torch.tensor([4.0, -8.0]), torch.tensor([4.0, -6.0])) == 0.25


def test_hardware_of_the_cpu_is_measured() -> None:
    found = measure_hardware(torch.device("cpu"), ReportEffort.small())
    assert found["bytes_per_second"][0]["upload, pinned"] > 0
    assert found["operations_per_second"][0]["bfloat16"] > 0
    assert found["emulated"] is False
