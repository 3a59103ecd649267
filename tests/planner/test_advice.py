"""Advice is given if and only if it applies, and its overrides solve the problem."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.config import load
from millpond.planner import Host, MixturePlan, PPOPlan, plan
from millpond.planner.estimate import Measured, settings_of, this_machine

BIG = Host(cores=64, memory=10**12)


def topics(recipe: str, overrides: dict[str, Any] | None = None, host: Host = BIG) -> set[str]:
    return {advice.topic for advice in plan(recipe, overrides or {}, host=host).advice}


def overrides_of(recipe: str, topic: str, settings: dict[str, Any] | None = None, host: Host = BIG) -> dict[str, Any]:
    for advice in plan(recipe, settings or {}, host=host).advice:
        if advice.topic == topic:
            return dict(advice.overrides)
    raise AssertionError(f"nothing on {topic}")


def test_a_top_up_round_is_advised_against() -> None:
    assert overrides_of("metta", "top-up round") == {"trainer.batch_size": 522_240, "trainer.minibatch_size": 16_320}
    numbers = plan("metta", overrides_of("metta", "top-up round")).plan
    assert isinstance(numbers, PPOPlan)
    assert (numbers.top_up_rows, numbers.whole_rounds, numbers.num_minibatches) == (0, 3, 32)
    assert "top-up round" not in topics("metta", {"env.num_agents": 4})


def test_truncation_without_bootstrap_is_advised_against() -> None:
    off = {"ppo.bootstrap_truncation": False}
    assert overrides_of("grid", "for experiments", off) == {"ppo.bootstrap_truncation": True}
    assert "for experiments" not in topics("grid")


def test_a_batch_smaller_than_one_round_is_advised_against() -> None:
    settings = {"trainer.batch_size": 65_536}
    assert "idle envs" in topics("metta", settings)
    better = plan("metta", {**settings, **overrides_of("metta", "idle envs", settings)}).plan
    assert isinstance(better, PPOPlan)
    assert better.whole_rounds == 1


def test_more_workers_than_cores_are_advised_against() -> None:
    assert "workers" in topics("metta", host=Host(cores=2, memory=10**12))
    assert "workers" not in topics("metta")


def test_plans_beyond_the_memory_get_advice_that_fits() -> None:
    small = Host(cores=64, memory=450_000_000)
    assert "memory" in topics("metta", host=small)
    parts = overrides_of("metta", "memory", host=small)
    assert set(parts) == {"trainer.max_minibatch_size"}  # micro-batches do not change what is learned
    assert "memory" not in topics("metta", parts, host=small)
    assert overrides_of("metta", "memory", host=Host(cores=64, memory=100_000_000)) == {}  # nothing fits
    assert "memory" not in topics("metta")


@pytest.mark.parametrize("memory", [10**8, 3 * 10**8, 10**9, 10**10])
@pytest.mark.parametrize("agents", [1, 3, 24, 64])
def test_advice_solves_its_problem_and_causes_no_other(memory: int, agents: int) -> None:
    host, troubles = Host(cores=2, memory=memory), {"top-up round", "idle envs", "memory", "workers"}
    settings = {"env.num_agents": agents, "env.grid.width": 40, "env.grid.height": 40}
    before = plan("metta", settings, host=host).advice
    had = {advice.topic for advice in before} & troubles
    for advice in before:
        if advice.overrides:
            after = topics("metta", {**settings, **dict(advice.overrides)}, host=host) & troubles
            assert advice.topic not in after
            assert after <= had


def test_many_and_few_agents_get_their_own_advice() -> None:
    assert "many agents" in topics("metta", {"env.num_agents": 24})
    keys = {
        key for a in plan("metta", {"env.num_agents": 24}).advice if a.topic == "many agents" for key, _ in a.overrides
    }
    assert keys >= {"trainer.batch_size", "trainer.minibatch_size", "trainer.num_workers"}
    assert "few agents" in topics("metta", {"env.num_agents": 1})
    keys = {
        key for a in plan("metta", {"env.num_agents": 1}).advice if a.topic == "few agents" for key, _ in a.overrides
    }
    assert keys >= {"trainer.batch_size", "trainer.forward_pass_minibatch_target_size", "trainer.num_workers"}
    assert not topics("metta") & {"many agents", "few agents"}


def test_groups_and_compilation_are_advised_for_speed() -> None:
    speed = [dict(a.overrides) for a in plan("metta", {"trainer.async_factor": 1}).advice if a.topic == "speed"]
    assert {"trainer.async_factor": 2} in speed
    assert {"trainer.compile": True} in speed
    assert not any("trainer.precision" in numbers for numbers in speed)


@pytest.mark.parametrize(
    ("seconds", "advised"),
    [({"float32": 20.0, "bfloat16": 10.0}, "bfloat16"), ({"float32": 20.0, "bfloat16": 19.0}, None),
     ({"float32": 10.0, "bfloat16": 20.0}, None), ({"float32": 20.0}, None)],
)  # fmt: skip
def test_another_precision_is_advised_only_if_benches_show_that_it_is_faster(
    seconds: dict[str, float], advised: str | None
) -> None:
    benches = []
    for precision, whole in seconds.items():
        overrides = {"trainer.precision": precision}
        sizes = {"num_envs": 2_720, "minibatch_size": 16_384, "agent_steps": 1_572_864, "update_epochs": 1}
        times = {"collect": whole / 2, "train": whole / 2, "other": 0.0}
        settings = settings_of(load("metta", overrides).recipe)
        benches.append(Measured(this_machine(), "2026-01-02T03:04:05+0000", "metta", settings, sizes, times))
    advice = {
        dict(a.overrides)["trainer.precision"]: a.reason
        for a in plan("metta", measured=benches).advice
        if "trainer.precision" in dict(a.overrides)
    }
    assert list(advice) == ([advised] if advised else [])
    assert not advised or "takes 0.50 of the time" in advice[advised]
    slow = plan("metta", {"trainer.precision": "bfloat16"}, measured=benches).advice
    faster_in_float32 = seconds["float32"] < seconds.get("bfloat16", 0) / 1.1
    assert ({"trainer.precision": "float32"} in [dict(a.overrides) for a in slow]) is faster_in_float32


def test_extreme_replay_ratios_are_advised_against() -> None:
    fix = overrides_of("mixture-seed", "replay ratio")
    numbers = plan("mixture-seed", fix).plan
    assert isinstance(numbers, MixturePlan)
    assert numbers.big_replay_ratio == 1.0
    assert "replay ratio" not in topics("mixture-gravitar")
    assert "replay ratio" in topics("mixture", {"mixture.big_updates": 10_000_000})


def test_small_batches_of_agents_are_advised_against() -> None:
    settings = {"pqn.num_envs": 32}
    assert overrides_of("mixture", "agents' batch", settings) == {"pqn.num_envs": 128}
    assert "agents' batch" not in topics("mixture")


def test_a_large_epsilon_after_a_reset_is_advised_against() -> None:
    assert "exploration" in topics("mixture-seed")
    assert "exploration" not in topics("mixture-gravitar")


def test_ponds_beyond_the_memory_get_advice() -> None:
    assert "memory" in topics("mixture-gravitar", host=Host(2, 4 * 10**9))
    assert "memory" not in topics("mixture-gravitar")


def test_reward_plans_get_advice() -> None:
    assert "passes" in topics("reward-libero")
    assert "sampled steps" in topics("reward", {"reward.steps_per_episode": 500})
    assert "log" in topics("reward", {"reward.iterations": 1})
    assert topics("reward") == set()
