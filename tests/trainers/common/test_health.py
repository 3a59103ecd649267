"""Warnings about runs that diverge, and their absence in healthy ones."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from millpond.config import load
from millpond.config.mixture import DQNConfig, PQNConfig
from millpond.config.ppo import PPOConfig
from millpond.envs.spec import ActionSpec
from millpond.report.page import write_report
from millpond.trainers.common.health import HealthMonitor, entropy_floor, mixture_checks, ppo_checks
from tests.support.mixture_runs import finish, start
from tests.support.ppo_runs import train_small

FOUR = ActionSpec.discrete(4)
CHECKS = ppo_checks(PPOConfig(ent_coef=0.002, learning_rate=3e-3, max_grad_norm=0.5), FOUR)
HEALTHY = {"entropy": 1.2, "approx_kl": 0.01, "grad_norm": 0.7, "updates": 8, "agent_steps": 100}


def warnings_of(folder: Path) -> list[dict[str, Any]]:
    path = folder / "warnings.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize(
    ("change", "cause", "words"),
    [
        ({"entropy": 0.001}, "entropy", ["entropy collapsed to 0.001", "no longer explores", "Try ppo.ent_coef=0.02"]),
        (
            {"approx_kl": 5_000.0},
            "ratios",
            ["factor of at least 5.01e+03", "ppo.target_kl=0.03", "learning_rate=0.001"],
        ),
        ({"grad_norm": 90.0}, "gradient", ["grad_norm is 90", "ppo.max_grad_norm=0.5", "129 times its median before"]),
    ],
)
def test_each_cause_warns_once_per_stretch(change: dict[str, float], cause: str, words: list[str]) -> None:
    monitor = HealthMonitor(CHECKS)
    assert [monitor.add(HEALTHY) for _ in range(5)] == [[]] * 5
    (warning,) = monitor.add({**HEALTHY, **change})
    assert (warning.cause, warning.updates, warning.agent_steps) == (cause, 8, 100)
    for text in words:
        assert text in warning.text
    assert monitor.add({**HEALTHY, **change}) == []
    assert monitor.add(HEALTHY) == []
    assert [again.cause for again in monitor.add({**HEALTHY, **change})] == [cause]


def test_settings_that_warnings_name_are_valid() -> None:
    monitor = HealthMonitor(CHECKS)
    found = monitor.add({"entropy": 0.0, "approx_kl": 9.0, "grad_norm": 1e7})
    assert len(found) == 3
    tried = [word.strip(",.") for warning in found for word in warning.text.split("Try ")[1].split() if "=" in word]
    assert {word.split("=")[0] for word in tried} == {"ppo.ent_coef", "ppo.target_kl", "ppo.learning_rate"}
    for override in tried:
        load("grid", [override])


def test_entropy_floor_is_relative_to_the_largest_entropy() -> None:
    assert entropy_floor(FOUR) == pytest.approx(0.01 * math.log(4))
    assert entropy_floor(ActionSpec.multidiscrete((3, 2))) == pytest.approx(0.01 * math.log(6))
    normal = 0.5 * math.log(2 * math.pi * math.e)  # of deviation 1
    assert entropy_floor(ActionSpec.continuous((-1.0,), (1.0,))) == pytest.approx(normal - 5)
    wide, endless = ActionSpec.continuous((0.0,), (200.0,)), ActionSpec.continuous((-math.inf,), (math.inf,))
    assert entropy_floor(wide) == pytest.approx(normal - 5 + math.log(100))
    assert entropy_floor(endless) == pytest.approx(normal - 5)


def test_mixture_names_the_agent_whose_gradient_explodes() -> None:
    monitor = HealthMonitor(mixture_checks(2, PQNConfig(), DQNConfig()))
    usual = {"agent0/grad_norm": 1.0, "agent1/grad_norm": 1.0, "big/grad_norm": 2.0}
    assert [monitor.add(usual) for _ in range(4)] == [[]] * 4
    (warning,) = monitor.add({**usual, "agent1/grad_norm": 5_000.0})
    assert warning.cause == "gradient of agent1"
    assert "pqn.learning_rate=" in warning.text
    (warning,) = monitor.add({**usual, "big/grad_norm": 5_000.0})
    assert "dqn.learning_rate=" in warning.text


def test_run_that_diverges_warns_on_the_console_in_its_folder_and_in_its_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_small(tmp_path, "wild", **{"ppo.learning_rate": 3.0})
    found = warnings_of(tmp_path / "wild")
    causes = [warning["cause"] for warning in found]
    assert "ratios" in causes
    assert len(found) == capsys.readouterr().out.count("warning: after ")
    html = write_report(tmp_path / "wild").read_text()
    assert ">Warnings</h2>" in html
    assert "ppo.target_kl=0.03" in html


def test_healthy_runs_do_not_warn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_small(tmp_path, "ppo", **{"trainer.total_iterations": 8})
    finish(start(tmp_path, "mixture", {}))
    assert warnings_of(tmp_path / "ppo") == warnings_of(tmp_path / "mixture") == []
    assert "warning" not in capsys.readouterr().out
    assert ">Warnings</h2>" not in write_report(tmp_path / "ppo").read_text()
