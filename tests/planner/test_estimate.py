"""Times in a plan: from figures of this machine and the same settings, and from nothing else."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from millpond.config import PPORecipe, load
from millpond.errors import MillpondError
from millpond.planner import plan
from millpond.planner.estimate import duration
from millpond.planner.measured import Measured, kept_path, read_measured, settings_of, this_machine, with_measured
from millpond.planner.show import show


def measured(recipe: str = "metta") -> Measured:
    typed = load(recipe).recipe
    assert isinstance(typed, PPORecipe)
    return Measured(
        machine=this_machine(),
        date="2026-01-02T03:04:05+0000",
        recipe=recipe,
        settings=settings_of(typed),
        num_envs=2_720,
        minibatch_size=16_384,
        agent_steps=1_572_864,
        update_epochs=1,
        collect_seconds=6.0,
        train_seconds=8.0,
        other_seconds=0.5,
    )


def test_the_run_is_iterations_times_the_iteration() -> None:
    planned = plan("metta", measured=[measured()])
    assert planned.to_json()["estimated_iteration_seconds"] == 14.5
    assert planned.to_json()["estimated_seconds"] == 14.5 * 19_073
    text = show(planned)
    assert "From the bench of 2026-01-02 on this machine.\n" in text
    assert "14.5 s" in text
    assert "3.2 days" in text


def test_collecting_grows_with_steps_and_training_with_epochs_too() -> None:
    changed = ["trainer.batch_size=262_144", "trainer.update_epochs=3", "trainer.total_iterations=2"]
    planned = plan("metta", changed, measured=[measured()])
    assert planned.to_json()["estimated_seconds"] == pytest.approx(2 * (3.0 + 12.0 + 0.5))
    assert "scaled by agent steps" in show(planned)


@pytest.mark.parametrize(
    "override", ["policy.hidden_size=256", "env.obs_size=13", "trainer.precision=bfloat16", "vector.backend=inline"]
)
def test_other_settings_are_not_estimated(override: str) -> None:
    planned = plan("metta", [override], measured=[measured()])
    assert planned.estimate is None
    assert not any(key.startswith("estimated") for key in planned.to_json())
    assert "Time, estimated" not in show(planned)


def test_figures_are_kept_by_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert read_measured() == ()
    mine, other = measured(), replace(measured(), machine="another one")
    kept_path().parent.mkdir()
    kept_path().write_text(json.dumps(with_measured(mine, (other, replace(mine, collect_seconds=1.0)))))
    assert read_measured() == (mine,)
    assert "another one" in kept_path().read_text()


def test_a_damaged_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kept_path().parent.mkdir()
    kept_path().write_text('{"format": 1, "measured": [{}]}')
    with pytest.raises(MillpondError, match=r"bench\.json is damaged"):
        read_measured()


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0123, "12.3 ms"), (12.34, "12.3 s"), (119.0, "119.0 s"), (600, "10.0 min"), (2e5, "2.3 days")],
)
def test_durations(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown
