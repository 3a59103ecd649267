"""Times of a plan come only from measurements of this machine with the same settings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from millpond.config import load
from millpond.errors import MillpondError
from millpond.planner import plan
from millpond.planner.estimate import (
    Measured,
    duration,
    measured_path,
    read_measured,
    settings_of,
    this_machine,
    with_measured,
)
from millpond.planner.planned import show

SIZES = {
    "metta": {"num_envs": 2_720, "minibatch_size": 16_384, "agent_steps": 1_572_864, "update_epochs": 1},
    "mixture": {"collections_per_round": 4, "big_updates": 256, "drawn": 64_000},
    "reward": {"batches": 500, "env_steps": 0},
    "reward-online": {"batches": 1_000, "env_steps": 1_000},
}
SECONDS = {
    "metta": {"collect": 6.0, "train": 8.0, "other": 0.5},
    "mixture": {"collect": 2.0, "pour": 0.4, "learn": 4.0, "other": 0.8, "fill": 0.64, "train_big": 5.12},
    "reward": {"act": 0.0, "train": 0.5, "other": 0.1},
    "reward-online": {"act": 2.0, "train": 5.0, "other": 1.0},
}


def measured(recipe: str = "metta") -> Measured:
    return Measured(
        machine=this_machine(),
        date="2026-01-02T03:04:05+0000",
        recipe=recipe,
        settings=settings_of(load(recipe).recipe),
        sizes=dict(SIZES[recipe]),
        seconds=SECONDS[recipe],
    )


def test_the_time_of_a_run_is_that_of_its_iterations() -> None:
    planned = plan("metta", measured=[measured()])
    assert planned.to_json()["estimated_iteration_seconds"] == 14.5
    assert planned.to_json()["estimated_seconds"] == 14.5 * 19_073
    text = show(planned)
    assert "From the bench of 2026-01-02 on this machine.\n" in text
    assert "14.5 s" in text
    assert "3.2 days" in text


def test_collecting_scales_with_steps_and_training_also_with_epochs() -> None:
    changed = ["trainer.batch_size=262_144", "trainer.update_epochs=3", "trainer.total_iterations=2"]
    planned = plan("metta", changed, measured=[measured()])
    assert planned.to_json()["estimated_seconds"] == pytest.approx(2 * (3.0 + 12.0 + 0.5))
    assert "scaled by agent steps" in show(planned)


def test_the_time_of_a_mixture_is_that_of_its_rounds() -> None:
    """Four rounds of 16 collections; the lake has 262,144 transitions after one and fills the BigPond from then on."""
    planned = plan("mixture", measured=[measured("mixture")])
    a_round = 16 * (2.0 + 0.4 + 4.0 + 0.8) / 4 + 131_072 * 1e-5 + 4_096 * 0.02
    assert planned.to_json()["estimated_round_seconds"] == pytest.approx(a_round)
    assert planned.to_json()["estimated_seconds"] == pytest.approx(4 * a_round)
    assert "a round" in show(planned)
    assert "BigAgent 81.9 s" in " ".join(show(planned).split())


def test_a_short_last_round_and_a_small_lake_take_less_time() -> None:
    """One round of 4 collections and one of 2: 65,536 transitions in the lake, then 98,304."""
    changes = ["mixture.collections_per_round=4", "mixture.total_frames=98_304", "mixture.big_updates=10"]
    planned = plan("mixture", changes, measured=[measured("mixture")])
    expected = 6 * 7.2 / 4 + (65_536 + 98_304) * 1e-5 + 2 * 10 * 0.02
    assert planned.to_json()["estimated_seconds"] == pytest.approx(expected)


def test_the_time_of_reward_learning_is_that_of_its_cycles() -> None:
    planned = plan("reward", ["reward.iterations=20"], measured=[measured("reward")])
    assert planned.to_json()["estimated_cycle_seconds"] == pytest.approx(1.2)
    assert planned.to_json()["estimated_seconds"] == pytest.approx(3 * 4 * 1.2)
    online = plan("reward-online", ["agent.steps_per_iteration=100"], measured=[measured("reward-online")])
    assert online.to_json()["estimated_cycle_seconds"] == pytest.approx(2 * 2.0 + 5.0 + 1.0)


@pytest.mark.parametrize(
    ("recipe", "override"),
    [
        ("metta", "policy.hidden_size=256"),
        ("metta", "env.obs_size=13"),
        ("metta", "trainer.precision=bfloat16"),
        ("metta", "vector.backend=inline"),
        ("mixture", "pqn.num_envs=64"),
        ("mixture", "mixture.mode=no-resets"),
        ("mixture", "dqn.batch_size=32"),
        ("reward", "reward.hidden_size=128"),
        ("reward", "reward.objective=rrd"),
        ("reward-online", "agent.batch_size=64"),
    ],
)
def test_other_settings_are_not_estimated(recipe: str, override: str) -> None:
    planned = plan(recipe, [override], measured=[measured(recipe)])
    assert planned.estimate is None
    assert not any(key.startswith("estimated") for key in planned.to_json())
    assert "Time, estimated" not in show(planned)


def test_measurements_are_stored_per_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert read_measured() == ()
    mine, other = measured(), replace(measured(), machine="another one")
    measured_path().parent.mkdir()
    measured_path().write_text(json.dumps(with_measured(mine, (other, replace(mine, seconds={})))))
    assert read_measured() == (mine,)
    assert "another one" in measured_path().read_text()


def test_a_damaged_file_is_named_in_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    measured_path().parent.mkdir()
    measured_path().write_text('{"format": 2, "measured": [{}]}')
    with pytest.raises(MillpondError, match=r"bench\.json is damaged"):
        read_measured()


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0123, "12.3 ms"), (12.34, "12.3 s"), (119.0, "119.0 s"), (600, "10.0 min"), (2e5, "2.3 days")],
)
def test_durations_have_about_three_digits(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown
