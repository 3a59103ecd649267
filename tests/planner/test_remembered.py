"""Choices of `vector.backend=auto`, remembered per recipe and machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from millpond.config import PPORecipe, load
from millpond.planner import Host, plan
from millpond.planner.planned import show
from millpond.planner.remembered import (
    FORMAT,
    MAX_CHOICES,
    RememberedBackend,
    recall_backend,
    remembered_path,
    with_remembered,
)

ONE_PROCESS = RememberedBackend("processes", 1, "measured: a reason")
HERE = Host.here()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def recipe(**changes: Any) -> PPORecipe:
    loaded = load("grid", {"env.id": "gymnasium:CartPole-v1", **changes}).recipe
    assert isinstance(loaded, PPORecipe)
    return loaded


def remember(of: PPORecipe, chosen: RememberedBackend = ONE_PROCESS, ranks: int = 1) -> None:
    remembered_path().parent.mkdir(exist_ok=True)
    remembered_path().write_text(json.dumps(with_remembered(of, chosen, ranks)), encoding="utf-8")


def test_nothing_is_known_at_first() -> None:
    assert recall_backend(recipe()) is None


def test_a_choice_is_recalled_for_the_same_recipe_and_kept_next_to_others() -> None:
    inline = RememberedBackend("inline", 1, "measured: another")
    remember(recipe())
    remember(recipe(**{"trainer.num_envs": 8}), inline)
    assert recall_backend(recipe()) == ONE_PROCESS
    assert recall_backend(recipe(**{"trainer.num_envs": 8})) == inline


@pytest.mark.parametrize(
    "changes",
    [
        {"trainer.num_envs": 8},
        {"trainer.num_workers": 1},
        {"trainer.async_factor": 1},
        {"trainer.fast": False},
        {"policy.hidden_size": 64},
        {"policy.core": "gru"},
        {"env.id": "gymnasium:Acrobot-v1"},
        {"env.max_steps": 7},
        {"vector.trainer_share": 0.1},
    ],
)
def test_what_changes_the_speed_is_measured_again(changes: dict[str, Any]) -> None:
    remember(recipe())
    assert recall_backend(recipe(**changes)) is None


def test_lengths_and_learning_rates_do_not_change_the_choice() -> None:
    remember(recipe())
    other = recipe(**{"trainer.total_timesteps": 1_000_000, "ppo.learning_rate": 0.1, "seed": 5, "eval.episodes": 3})
    assert recall_backend(other) == ONE_PROCESS


def test_each_number_of_ranks_has_its_own_choice() -> None:
    remember(recipe(), ranks=2)
    assert recall_backend(recipe()) is None
    assert recall_backend(recipe(), ranks=2) == ONE_PROCESS


def test_code_of_the_user_is_measured_at_each_start() -> None:
    custom = recipe(**{"env.id": "tests.support.custom_envs:Counter"})
    remember(custom)
    assert recall_backend(custom) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        f'{{"format": {FORMAT}}}',
        f'{{"format": {FORMAT}, "choices": []}}',
        f'{{"format": {FORMAT + 1}, "choices": {{}}}}',
    ],
)
def test_damaged_file_is_ignored(text: str) -> None:
    remember(recipe())
    remembered_path().write_text(text, encoding="utf-8")
    assert recall_backend(recipe()) is None


@pytest.mark.parametrize(
    "damage",
    [{"backend": "gpu"}, {"num_workers": 0}, {"num_workers": "2"}, {"num_workers": True}, {"trainer_envs": -1}],
)
def test_damaged_choice_is_ignored(damage: dict[str, Any]) -> None:
    content = with_remembered(recipe(), ONE_PROCESS)
    for entry in content["choices"].values():
        entry.update(damage)
    remembered_path().parent.mkdir(exist_ok=True)
    remembered_path().write_text(json.dumps(content), encoding="utf-8")
    assert recall_backend(recipe()) is None


def test_the_oldest_choices_are_dropped() -> None:
    entry = {"backend": "inline", "num_workers": 1, "reason": "", "env": "x"}
    old = {str(number): {**entry, "date": f"2026-01-01T00:{number:05}"} for number in range(MAX_CHOICES)}
    remembered_path().parent.mkdir(exist_ok=True)
    remembered_path().write_text(json.dumps({"format": FORMAT, "choices": old}), encoding="utf-8")
    choices = with_remembered(recipe(), ONE_PROCESS)["choices"]
    assert len(choices) == MAX_CHOICES
    assert "0" not in choices
    assert "1" in choices


def test_plan_prints_the_choice_or_that_it_is_measured_at_the_start() -> None:
    settings = {"env.id": "gymnasium:CartPole-v1"}
    assert plan("grid", settings, host=HERE).to_json()["vector"] == "measured at the start"
    remember(recipe())
    planned = plan("grid", settings, host=HERE)
    assert planned.to_json()["vector"] == "1 worker process, as measured before on this machine"
    assert "1 worker process, as measured before on this machine" in " ".join(show(planned).split())
    assert plan("grid", settings).to_json()["vector"] == "measured at the start"  # for another machine
    assert plan("grid", {**settings, "vector.backend": "inline"}, host=HERE).to_json()["vector"] == "inline"
