"""The paper estimate of a GPU: arithmetic on counts, and a real recipe in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from millpond.bench.emulated import EmulatedRun
from millpond.bench.gpu.estimate import CARDS, COPY, RETURN, SHARE, Card, estimate, overrides_of, planned_work
from millpond.bench.run import Unit
from millpond.devices.counts import Counts
from millpond.errors import MillpondError
from millpond.planner import PPOPlan, plan


def run_of(launches: int, downloads: int, operations: int, moved: int) -> EmulatedRun:
    counts = Counts()
    counts.places["launch", "train", "x.py:1 f"] = launches
    counts.places["download", "train", "x.py:1 f"] = downloads
    counts.operations_of_products["train"], counts.moved["train"] = operations, moved
    return EmulatedRun("x", counts, {"train": 2}, {"update": Unit("train", 2)})


def test_a_unit_takes_what_the_host_or_the_device_takes_longer() -> None:
    card = Card("x", products=1e12, memory=1e11)
    # 2 updates of 10 items: 100 launches and 5e9 operations each; the recipe has 40 items
    found = estimate(card, run_of(200, 0, int(1e10), int(2e8)), {"update": (10.0, 40.0, 3.0)}, launch=4.0)
    unit = found["units"]["update"]
    assert unit["launches"] == 100
    assert unit["host"] == pytest.approx(0.4)
    assert unit["device"] == pytest.approx(1e3 * 4 * (5e9 / (SHARE * 1e12) + 1e8 / (SHARE * 1e11)))
    assert unit["total"] == unit["device"]
    assert found["seconds"] == pytest.approx(3 * unit["total"] / 1e3)
    bound_by_host = estimate(card, run_of(200_000, 2, 0, 0), {"update": (10.0, 40.0, 1.0)}, launch=4.0)
    assert bound_by_host["units"]["update"]["total"] == pytest.approx((1e5 * 4 + COPY + RETURN) / 1e3)


def test_counts_are_made_with_the_network_and_horizon_of_the_recipe() -> None:
    overrides = overrides_of("metta")
    own, small = plan("metta").plan, plan("metta", overrides, preset="debug").plan
    assert isinstance(own, PPOPlan)
    assert isinstance(small, PPOPlan)
    assert small.bptt_horizon == own.bptt_horizon
    assert small.training is not None
    assert own.training is not None
    assert small.training.parameters == own.training.parameters
    assert small.batch_size < own.batch_size
    work = planned_work(plan("metta")).units
    assert work["group step"][0] == own.envs_per_group * own.num_agents
    assert work["update"] == (
        own.agent_steps_per_gradient / own.accumulated_parts,
        own.gradient_updates * own.accumulated_parts,
    )


def test_doctor_prints_an_estimate_for_all_cards(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "millpond",
        "doctor",
        "--emulate-gpu",
        "gymnasium:CartPole-v1",
        "--estimate",
        "--json",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert [one["card"]["name"] for one in found["cards"]] == [card.name for card in CARDS]
    assert all(one["agent_steps_per_second"] > 0 for one in found["cards"])
    assert found["assumptions"]["share_of_peak"] == SHARE


def test_an_estimate_needs_a_recipe() -> None:
    from typer.testing import CliRunner

    from millpond.cli.app import app

    done = CliRunner().invoke(app, ["doctor", "--estimate"])
    assert isinstance(done.exception, MillpondError)
