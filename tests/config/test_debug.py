"""The preset `debug` is valid and tiny for every recipe and any user's file: one of every level."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.config import ConfigError, load
from millpond.config.check import flatten
from millpond.planner import plan

ENVS_AT_MOST = 5  # per group
USERS: dict[str, dict[str, Any]] = {
    "more agents than the sizes were made for": {"extends": "metta", "env": {"num_agents": 24}},
    "envs counted the other way": {
        "extends": "metta",
        "trainer": {"forward_pass_minibatch_target_size": None, "num_envs": 4_096},
    },
    "a horizon that 512 is no multiple of": {
        "extends": "grid",
        "trainer": {"bptt_horizon": 48, "batch_size": 12_288, "minibatch_size": 1_536},
    },
    "a long horizon": {"extends": "grid", "trainer": {"bptt_horizon": 1_024, "minibatch_size": 4_096}},
    "agent steps": {"extends": "grid", "trainer": {"batch_unit": "agent_steps"}},
    "many groups and epochs": {"extends": "grid", "trainer": {"async_factor": 8, "update_epochs": 10}},
    "split minibatches": {"extends": "grid", "trainer": {"max_minibatch_size": 192, "minibatch_size": 384}},
    "a compiled policy": {"extends": "metta", "trainer": {"compile": True}},
    "a share of the trainer": {"extends": "grid", "vector": {"backend": "processes", "trainer_share": 0.75}},
    "a short run": {"extends": "grid", "trainer": {"total_timesteps": 16_384}},
    "an environment that cuts its own episodes": {
        "extends": "grid",
        "env": {"id": "pettingzoo:butterfly.pistonball_v6", "max_steps": None, "num_agents": 20},
    },
    "an environment with one agent": {"extends": "grid", "env": {"id": "recall", "max_steps": None, "num_agents": 1}},
    "an environment whose envs step together": {
        "extends": "grid",
        "env": {"id": "atari:pong", "num_agents": 1, "frame_stack": 4},
        "trainer": {"num_envs": 8, "batch_size": 8 * 64 * 4},
    },
    "nothing but a kind": {"kind": "ppo", "trainer": {"num_envs": 512}},
    "its own additions": {"extends": "grid", "presets": {"debug": {"trainer.bptt_horizon": 16}}},
    "a mixture of eight": {"extends": "mixture", "mixture": {"agents": 8, "epsilon_ladder": [0.1] * 8}},
    "a live mixture": {"extends": "mixture", "mixture": {"mode": "live", "own_fraction": 0.2}},
    "a single agent": {"extends": "mixture", "mixture": {"mode": "single", "agents": 1}},
    "long returns and stacks": {"extends": "mixture-gravitar", "env": {"frame_stack": 12}, "dqn": {"n_step": 50}},
    "frames that are skipped": {"extends": "mixture-gravitar", "env": {"atari": {"frame_skip": 7}}},
    "an agent in many envs": {"extends": "reward-online", "agent": {"num_envs": 16, "replay_transitions": 300}},
}


@pytest.mark.parametrize("name", USERS)
def test_debug_fits_the_settings_of_a_users_file(name: str) -> None:
    numbers = plan(USERS[name], preset="debug").to_json()
    if numbers["kind"] == "ppo":
        assert (numbers["iterations"], numbers["gradient_updates"]) == (1, 1)
        assert numbers["agent_steps"] <= 32_768
    elif numbers["kind"] == "mixture":
        assert (numbers["rounds"], numbers["collections"]) == (1, 1)
        assert numbers["agents"] <= 2
    else:
        assert numbers["batches"] == 1


@settings(deadline=None, max_examples=150)
@given(
    agents=st.integers(1, 100),
    horizon=st.integers(1, 300),
    workers=st.integers(1, 7),
    groups=st.integers(1, 5),
    unit=st.sampled_from(["env_steps", "agent_steps"]),
    rows=st.integers(1, 50),
    by_target=st.booleans(),
    auto=st.booleans(),
)
def test_debug_is_valid_and_has_one_update_for_any_sizes(
    agents: int, horizon: int, workers: int, groups: int, unit: str, rows: int, by_target: bool, auto: bool
) -> None:
    envs = {"forward_pass_minibatch_target_size": agents * workers} if by_target else {"num_envs": workers * groups}
    user = {
        "kind": "ppo",
        "env": {"id": "mettagrid", "num_agents": agents},
        "trainer": {
            **envs,
            "num_workers": workers,
            "async_factor": groups,
            "batch_unit": unit,
            "bptt_horizon": horizon,
            "batch_size": "auto" if auto else rows * horizon,
            "minibatch_size": horizon,
        },
    }
    numbers = plan(user, preset="debug").to_json()
    assert (numbers["iterations"], numbers["gradient_updates"]) == (1, 1)
    assert numbers["num_workers"] == 1
    assert numbers["num_envs"] < ENVS_AT_MOST * groups


@pytest.mark.parametrize(
    "override",
    ["trainer.num_workers=2", "trainer.bptt_horizon=16", "trainer.minibatch_size=128", "env.num_agents=24",
     "trainer.async_factor=3", "trainer.num_envs=64", "trainer.batch_unit=agent_steps"],
)  # fmt: skip
def test_an_override_is_kept_and_other_sizes_fit_it(override: str) -> None:
    key, _, value = override.partition("=")
    numbers = flatten(load("grid", [override], preset="debug").recipe)
    assert str(numbers[key]) == value
    assert numbers["trainer.total_iterations"] == 1


def test_debug_does_not_hide_errors_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extends: grid\nppo: {prio_alpha: 0.5}\ntrainer: {batchsize: 5}\n")
    with pytest.raises(ConfigError, match=r"did you mean trainer\.batch_size\?"):
        load(tmp_path / "mine.yaml", preset="debug")
    with pytest.raises(ConfigError, match="prio_alpha"):
        load("grid", ["ppo.prio_alpha=0.5"], preset="debug")


def test_a_puffer_file_has_the_preset_debug() -> None:
    ini = Path(__file__).parents[1] / "data" / "puffer_metta.ini"
    numbers = plan(ini, preset="debug", agents_source=str(ini.with_name("metta.yaml"))).to_json()
    assert numbers["gradient_updates"] == 1
