"""Plans of PPO: reference numbers, and any plan is consistent."""

from __future__ import annotations

from math import isclose
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.config import ConfigError, load
from millpond.planner import Host, PPOPlan, plan, plan_loaded
from millpond.planner.planned import show

CONTRACT = {
    "num_envs": 2720, "envs_per_group": 1360, "groups": 2, "num_workers": 16, "envs_per_worker": 170, "num_agents": 3,
    "total_agents": 8160, "batch_unit": "env_steps", "batch_size": 524288, "segments": 8192, "bptt_horizon": 64,
    "minibatch_size": 16384, "minibatch_segments": 256, "num_minibatches": 32, "update_epochs": 1, "gradient_updates": 32,
    "env_steps": 524288, "agent_steps": 1572864, "agent_steps_per_gradient": 49152, "whole_rounds": 3, "top_up_rows": 32,
    "iterations": 19073,
}  # fmt: skip


def ppo(recipe: str, overrides: dict[str, Any] | None = None) -> PPOPlan:
    numbers = plan(recipe, overrides or {}).plan
    assert isinstance(numbers, PPOPlan)
    return numbers


def test_the_numbers_of_metta() -> None:
    numbers = plan("metta").to_json()
    assert {key: numbers[key] for key in CONTRACT} == CONTRACT
    assert isclose(numbers["steps_per_env"], 192.75, abs_tol=0.01)
    # 8,192 rows x 64 steps x 3 agents: 11 x 11 cells and 3 of inventory, one byte each
    assert numbers["observation_bytes"] == 8192 * 64 * 3 * (11 * 11 + 3)
    assert numbers["buffer_bytes"] == numbers["observation_bytes"] + 8192 * 3 * (64 * (4 * 6 + 3) + 4 + 2 * 128 * 4)


def test_json_is_flat() -> None:
    for value in plan("metta", host=Host(2, 10**9)).to_json().values():
        assert not isinstance(value, dict)
        assert all(isinstance(item, str) for item in value) if isinstance(value, list) else True


@pytest.mark.parametrize(
    ("agents", "envs", "agent_steps", "per_gradient"),
    [
        (3, 2720, 1_572_864, 49_152),
        (4, 2048, 2_097_152, 65_536),
        (8, 1024, 4_194_304, 131_072),
        (24, 320, 12_582_912, 393_216),
    ],
)
def test_envs_and_steps_by_number_of_agents(agents: int, envs: int, agent_steps: int, per_gradient: int) -> None:
    numbers = ppo("metta", {"env.num_agents": agents})
    assert (numbers.num_envs, numbers.agent_steps, numbers.agent_steps_per_gradient) == (
        envs,
        agent_steps,
        per_gradient,
    )


@pytest.mark.parametrize(("minibatches", "rows", "steps"), [(16, 512, 32_768), (32, 256, 16_384), (64, 128, 8_192)])
def test_minibatch_size_decides_rows_and_steps_per_gradient(minibatches: int, rows: int, steps: int) -> None:
    numbers = ppo("metta", {"trainer.minibatch_size": steps})
    assert (numbers.num_minibatches, numbers.minibatch_segments, numbers.minibatch_size) == (minibatches, rows, steps)


def test_the_size_of_observations_as_float32_is_shown() -> None:
    assert "253,755,392 bytes" in show(plan("metta"))


def test_the_numbers_of_pufferlib_for_metta() -> None:
    numbers = ppo("puffer-metta")
    assert numbers.total_agents == 4_096
    assert numbers.batch_size == 262_144
    assert numbers.segments == 4_096
    assert numbers.minibatch_segments == 512
    assert numbers.gradient_updates == 8
    assert numbers.agent_steps_per_gradient == 32_768  # not 262,144
    assert numbers.steps_per_env == 64  # not 4,096
    assert numbers.iterations == 1_144  # rounded down
    assert (numbers.whole_rounds, numbers.top_up_rows) == (1, 0)


def test_iterations_are_rounded_down_and_limited() -> None:
    assert ppo("metta", {"trainer.total_timesteps": 524_288 * 3 - 1}).iterations == 2
    assert ppo("metta", {"trainer.total_iterations": 1}).iterations == 1
    assert ppo("metta", {"trainer.total_iterations": 10**9}).iterations == 19_073


def test_whole_envs_leave_surplus_rows() -> None:
    """Whole envs step in the top-up round; at most num_agents - 1 rows are left for the next iteration."""
    numbers = ppo(
        "metta", {"trainer.batch_unit": "agent_steps", "trainer.batch_size": 64 * 8_192, "trainer.total_iterations": 3}
    )
    # 8,192 rows = 1 round of 8,160 agents + 32 rows, which 11 envs of 3 agents fill, with one row to spare
    assert (numbers.whole_rounds, numbers.top_up_rows, numbers.top_up_envs, numbers.surplus_rows) == (1, 32, 11, 1)
    assert numbers.env_steps == (2_720 + 11) * 64
    # 3 x 8,192 = 24,576 rows = 8,192 envs' rows: over the run nothing is left
    assert numbers.total_env_steps == 8_192 * 64


def test_large_minibatches_are_split_into_micro_batches() -> None:
    numbers = ppo("metta", {"trainer.max_minibatch_size": 4_096})
    assert (numbers.accumulated_parts, numbers.gradient_updates) == (4, 32)
    whole = ppo("metta")
    assert numbers.training is not None
    assert whole.training is not None
    assert numbers.training.minibatch * 4 == whole.training.minibatch


def test_a_core_adds_its_state_to_the_rows() -> None:
    none, gru, lstm = (ppo("metta", {"policy.core": core}).buffer_bytes for core in ("none", "gru", "lstm"))
    assert gru - none == lstm - gru == 8_192 * 3 * 128 * 4


def test_a_gymnasium_env_is_described() -> None:
    numbers = ppo("metta", {"env.id": "gymnasium:CartPole-v1", "env.num_agents": 1})
    assert numbers.observation_bytes == 8_192 * 64 * 4 * 4  # four float32


def test_an_env_that_cannot_be_described_has_no_observation_bytes() -> None:
    numbers = plan("metta", {"env.id": "pufferlib.ocean:puffer_breakout"})
    assert isinstance(numbers.plan, PPOPlan)
    assert numbers.plan.observation_bytes is None
    assert "known only to the environment itself" in " ".join(show(numbers).split())


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """Sizes that mostly fit together."""
    horizon, rows = draw(st.integers(1, 64)), draw(st.integers(1, 40))
    return {
        "env.num_agents": draw(st.sampled_from([1, 2, 3, 7, 24])),
        "env.grid.width": 60,
        "env.grid.height": 60,
        "trainer.num_workers": draw(st.integers(1, 5)),
        "trainer.async_factor": draw(st.integers(1, 3)),
        "trainer.forward_pass_minibatch_target_size": draw(st.integers(24 * 5, 3_000)),
        "trainer.batch_unit": draw(st.sampled_from(["env_steps", "agent_steps"])),
        "trainer.bptt_horizon": horizon,
        "trainer.minibatch_size": horizon * rows,
        "trainer.batch_size": horizon * rows * draw(st.integers(1, 50)),
        "trainer.update_epochs": draw(st.integers(1, 3)),
        "trainer.total_timesteps": draw(st.integers(10**6, 10**9)),
        "policy.core": draw(st.sampled_from(["lstm", "gru", "none"])),
    }


@given(configs())
def test_any_plan_is_consistent(settings: dict[str, Any]) -> None:
    loaded = load("metta", settings)
    planned = plan_loaded(loaded, host=Host(2, 10**9))
    p = planned.plan
    assert isinstance(p, PPOPlan)
    assert p.num_workers * p.envs_per_worker == p.num_envs == p.groups * p.envs_per_group
    assert p.num_envs * p.num_agents == p.total_agents
    assert p.segments * p.bptt_horizon == p.batch_size
    assert p.num_minibatches * p.minibatch_segments == p.segments
    assert p.minibatch_segments * p.bptt_horizon == p.minibatch_size
    assert p.gradient_updates == p.num_minibatches * p.update_epochs
    assert p.agent_steps_per_gradient * p.num_minibatches == p.agent_steps
    assert p.whole_rounds * p.rows_per_round + p.top_up_rows == p.segments
    assert 0 <= p.top_up_rows < p.rows_per_round
    agents_per_row = p.num_agents if p.batch_unit == "env_steps" else 1
    assert p.env_steps * p.num_agents == (p.segments + p.surplus_rows) * agents_per_row * p.bptt_horizon
    assert 0 <= p.surplus_rows < p.num_agents
    assert p.iterations * p.batch_size + p.unused_timesteps == settings["trainer.total_timesteps"]
    assert p.unused_timesteps < p.batch_size
    assert 0 <= p.total_env_steps * p.num_agents - p.total_agent_steps < p.num_agents * p.bptt_horizon
    assert sum(count for _, _, count in p.field_bytes) == p.buffer_bytes
    for advice in planned.advice:  # all advice is valid
        load("metta", {**settings, **dict(advice.overrides)})
    assert all(len(line) <= 80 for line in show(planned).splitlines() if "=" not in line)


@given(configs())
def test_advice_against_a_top_up_round_removes_it(settings: dict[str, Any]) -> None:
    planned = plan("metta", settings)
    for advice in planned.advice:
        if advice.topic == "top-up round":
            better = plan("metta", {**settings, **dict(advice.overrides)}).plan
            assert isinstance(better, PPOPlan)
            assert better.top_up_rows == 0


def test_a_config_that_cannot_be_planned_is_refused() -> None:
    with pytest.raises(ConfigError):
        plan("metta", ["trainer.minibatch_size=10000"])


def test_the_envs_of_the_trainer_are_shown() -> None:
    sizes = {"trainer.num_workers": 2, "trainer.num_envs": 64, "vector.trainer_share": 0.1}
    planned = plan("grid", sizes)
    assert isinstance(planned.plan, PPOPlan)
    assert (planned.plan.envs_per_worker, planned.plan.trainer_envs) == (29, 6)  # 3 of each group of 32
    assert "29 in each of 2 workers, 6 in the trainer itself" in show(planned)


def test_a_plan_notes_what_is_unknown_about_an_env_that_was_not_built() -> None:
    numbers = plan("grid", {"env.id": "nowhere:make_env"})
    assert (numbers.plan.num_agents, numbers.plan.observation_bytes) == (1, None)  # type: ignore[union-attr]
    assert "1 agent per env is assumed; a run asks nowhere:make_env when it is built" in numbers.to_json()["notes"][-1]
    said = plan("grid", {"env.id": "nowhere:make_env", "env.num_agents": 4})
    assert said.plan.num_agents == 4  # type: ignore[union-attr]
    assert "assumed" not in said.to_json()["notes"][-1]


def test_a_plan_notes_what_is_unknown_about_a_custom_policy() -> None:
    numbers = plan("grid", {"policy.target": "nowhere:build_policy"})
    assert numbers.plan.training is None  # type: ignore[union-attr]
    assert "its recurrent state is estimated as that of policy.core=lstm" in numbers.to_json()["notes"][-1]
