"""Warnings about runs that cannot learn or that diverge, and their absence in healthy ones."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from millpond.config import MixtureRecipe, PPORecipe, RewardRecipe, load
from millpond.config.env_options import env_spec
from millpond.envs.spec import ActionSpec, EnvSpec, ObservationSpec
from millpond.report.page import write_report
from millpond.trainers.common.health import HealthMonitor, mixture_checks, ppo_checks, reward_checks
from millpond.trainers.common.health.checks import Check, entropy_floor
from millpond.trainers.common.session import resume_run, start_run
from millpond.trainers.ppo.trainer import PPOTrainer
from millpond.trainers.reward.trainer import RewardTrainer
from tests.support.mixture_runs import finish, start
from tests.support.ppo_runs import PLAIN, RECIPES, SMALL, train_small

FOUR = ActionSpec.discrete(4)
NUM_ENVS = 8
HEALTHY = {
    "entropy": 1.2, "approx_kl": 0.01, "grad_norm": 0.7, "explained_variance": 0.6, "value_gradient_share": 0.4,
    "reward_per_agent_step": 0.1, "reward_std": 0.3, "termination_rate": 0.02, "observation_range": 4.0,
    "observation_range_ratio": 30.0, "episode_return": 30.0, "updates": 8, "agent_steps": 8_000, "env_steps": 8_000,
    "episodes": 5,
}  # fmt: skip


def checks_of(recipe: str | Path = "grid", *, limit: int | None = 256, **settings: Any) -> dict[str, Check]:
    """Return the checks of a PPO recipe on an environment with a limit of steps of an episode."""
    assumed = {**(PLAIN if recipe == "grid" else {}), "ppo.ent_coef": 0.002, "ppo.learning_rate": 3e-3}
    loaded = load(recipe, {**assumed, "ppo.max_grad_norm": 0.5, **settings}).recipe
    assert isinstance(loaded, PPORecipe)
    spec = EnvSpec(loaded.env.id, ObservationSpec.single((4,), "float32", "vector"), FOUR, max_steps=limit)
    return ppo_checks(loaded, spec, NUM_ENVS)


def after(
    changes: list[dict[str, float]], checks: dict[str, Check] | None = None, healthy: int = 5
) -> dict[str, tuple[int, str]]:
    """Return the place among `changes`, after some healthy records, and the text of each cause that is warned about."""
    monitor = HealthMonitor(checks_of() if checks is None else checks)
    assert [monitor.add(HEALTHY) for _ in range(healthy)] == [[]] * healthy
    found: dict[str, tuple[int, str]] = {}
    for place, change in enumerate(changes):
        for warning in monitor.add({**HEALTHY, **change}):
            found.setdefault(warning.cause, (place, warning.text))
    return found


def warnings_of(folder: Path) -> list[dict[str, Any]]:
    path = folder / "warnings.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


OVERRIDE = re.compile(r"(?<![\w.])((?:ppo|env|policy|pqn|dqn|agent)\.[a-z_.]+=[\w+-]+(?:\.\d[\w+-]*)?)")


def overrides_of(text: str) -> list[str]:
    """Return the settings that a warning says to try."""
    return OVERRIDE.findall(re.split(r"\b[Tt]ry ", text, maxsplit=1)[1])


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
        ({"observation_range": 0.0}, "observations", ["all observations are equal", "millpond envs check grid"]),
        ({"observation_range_ratio": 2e5}, "observation scale", ["2e+05 times", "policy.normalize_observations=true"]),
    ],
)
def test_each_cause_warns_once_per_stretch(change: dict[str, float], cause: str, words: list[str]) -> None:
    monitor = HealthMonitor(checks_of())
    assert [monitor.add(HEALTHY) for _ in range(5)] == [[]] * 5
    (warning,) = monitor.add({**HEALTHY, **change})
    assert (warning.cause, warning.updates, warning.agent_steps) == (cause, 8, 8_000)
    for text in words:
        assert text in warning.text
    assert monitor.add({**HEALTHY, **change, "updates": 12}) == []
    assert monitor.add({**HEALTHY, "updates": 16}) == []
    assert (monitor.warnings[0].last_updates, monitor.warnings[0].records) == (12, 2)
    assert [again.cause for again in monitor.add({**HEALTHY, **change})] == [cause]


def test_kl_above_what_is_healthy_warns_after_several_records() -> None:
    assert after([{"approx_kl": 0.2}] * 2 + [{}] * 5) == {}
    place, text = after([{"approx_kl": 0.2}] * 5)["ratios"]
    assert place == 2  # the median of 5 records
    assert overrides_of(text) == ["ppo.target_kl=0.03", "ppo.learning_rate=0.001"]


def test_kl_is_compared_with_the_target_if_there_is_one() -> None:
    checks = checks_of(**{"ppo.target_kl": 0.02})
    assert after([{"approx_kl": 0.035}] * 6, checks) == {}
    _, text = after([{"approx_kl": 0.06}] * 6, checks)["ratios"]
    assert "3 times ppo.target_kl=0.02" in text
    assert overrides_of(text) == ["ppo.learning_rate=0.001"]


def test_value_that_dominates_the_gradient_warns_after_two_measures() -> None:
    high, unmeasured = {**HEALTHY, "value_gradient_share": 0.99}, dict(HEALTHY)
    del unmeasured["value_gradient_share"]
    monitor = HealthMonitor(checks_of())
    assert [monitor.add(one) for one in (unmeasured, high, unmeasured)] == [[]] * 3
    (warning,) = monitor.add(high)
    assert warning.cause == "value gradient"
    assert "99.0% of the gradient" in warning.text
    assert overrides_of(warning.text) == [
        "ppo.normalize_values=true",
        "ppo.value_trains_core=false",
        "ppo.vf_coef=0.044",
    ]
    assert monitor.add(unmeasured) == []
    assert monitor.warnings[0].records == 2  # a record without a measure does not end it


def test_explained_variance_near_zero_warns_after_fifty_records() -> None:
    def records(value: float, count: int) -> list[dict[str, float]]:
        return [{"explained_variance": value, "episode_return": 15.0 + 15.0 * (k % 2)} for k in range(count)]

    assert after(records(0.05, 49)) == {}
    assert after([*records(0.05, 30), {}, *records(0.05, 30)]) == {}
    place, text = after(records(-0.3, 60))["explained variance"]
    assert place == 49
    assert overrides_of(text)[0] == "ppo.vf_clip_coef=null"
    unclipped = checks_of(RECIPES / "cartpole.yaml", **{"ppo.value_trains_core": False, "env.reward_scale": 1.0})
    _, text = after(records(0.0, 60), unclipped)["explained variance"]
    assert overrides_of(text) == ["ppo.normalize_values=true", "ppo.value_trains_core=true", "policy.core=lstm"]


def test_explained_variance_near_zero_is_healthy_while_returns_rise_or_are_all_alike() -> None:
    rising = [{"explained_variance": 0.0, "episode_return": 3.0 * k} for k in range(60)]
    alike = [{"explained_variance": 0.0, "episode_return": 490.0 + k % 11} for k in range(60)]
    assert after(rising) == after(alike) == {}
    falling = [{**record, "episode_return": -record["episode_return"]} for record in rising]
    assert "explained variance" in after(falling)


def test_rewards_that_are_all_zero_warn() -> None:
    zero = {"reward_per_agent_step": 0.0, "reward_std": 0.0}
    assert after([zero] * 4) == {}
    assert after([{**zero, "agent_steps": 900}] * 9) == {}
    place, text = after([zero] * 60)["reward"]
    assert place == 4
    assert "If rewards are rare" in text
    assert overrides_of(text) == ["ppo.ent_coef=0.02"]
    assert list(after([{**zero, "explained_variance": 0.0}] * 60)) == ["reward"]  # there is nothing to explain
    _, text = after([zero] * 5, checks_of(**{"env.episodic": True}))["reward"]
    assert overrides_of(text)[0] == "env.episodic=false"


def test_constant_reward_warns_only_if_no_episode_has_terminated() -> None:
    constant = {"reward_per_agent_step": 0.05, "reward_std": 7e-9}  # rounding in float32
    assert after([constant] * 9) == {}  # CartPole: a longer episode has a larger return
    assert after([{**constant, "termination_rate": 0.0}] * 300) == {}  # that was solved: nothing ends before the limit
    assert (
        after([{**constant, "termination_rate": 0.0}] * 24, healthy=0) == {}
    )  # a goal that is not yet reached: Acrobot
    _, text = after([{**constant, "termination_rate": 0.0}] * 25, healthy=0)["reward"]
    assert overrides_of(text) == ["ppo.ent_coef=0.02", "env.max_steps=512"]
    varying = [{**constant, "reward_per_agent_step": 0.05 + place, "termination_rate": 0.0} for place in range(9)]
    assert after(varying, healthy=0) == {}
    clipped = checks_of(**{"env.reward_clip": 0.5, "env.reward_scale": 0.1})
    _, text = after([{**constant, "termination_rate": 0.0}] * 25, clipped, healthy=0)["reward"]
    assert overrides_of(text) == ["env.reward_clip=null"]


def test_episodes_that_never_end_warn_after_the_limit_of_the_environment() -> None:
    def steps(count: int) -> list[dict[str, float]]:
        return [{"env_steps": 8_000 + NUM_ENVS * count}]

    assert after(steps(256)) == {}
    _, text = after(steps(257))["episodes"]
    assert "no episode has ended in the last 257 steps of each env, and the limit is 256 steps" in text
    assert overrides_of(text) == ["env.max_steps=256"]
    assert after([{**steps(257)[0], "episodes": 6}]) == {}
    endless = checks_of(limit=None)
    assert after(steps(5_000), endless) == {}
    assert overrides_of(after(steps(5_001), endless)["episodes"][1]) == ["env.max_steps=1000"]


def test_steps_before_the_first_record_count_if_no_episode_ever_ended() -> None:
    monitor = HealthMonitor(checks_of())
    (warning,) = monitor.add({"episodes": 0, "env_steps": NUM_ENVS * 300})
    assert warning.cause == "episodes"


BAD = {
    "entropy": -100.0, "approx_kl": 9.0, "grad_norm": 1e7, "explained_variance": 0.0, "value_gradient_share": 1.0,
    "reward_per_agent_step": 0.1, "reward_std": 0.5, "termination_rate": 0.0, "observation_range": 0.0,
    "observation_range_ratio": 1e9, "episode_return": 400.0, "agent_steps": 10**7, "env_steps": 10**9, "episodes": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    "recipe",
    [
        "grid",
        "metta",
        *(RECIPES / f"{name}.yaml" for name in ("cartpole", "pendulum", "recall")),
        "mixture",
        "reward-online",
    ],
)
def test_settings_that_warnings_name_are_valid_and_change_the_recipe(recipe: str | Path) -> None:
    loaded = load(recipe)
    config, spec = loaded.recipe, env_spec(loaded.recipe.env)
    assert spec is not None
    if isinstance(config, PPORecipe):
        checks = ppo_checks(config, spec, NUM_ENVS)
    elif isinstance(config, MixtureRecipe):
        checks = mixture_checks(config, spec, 2, NUM_ENVS)
    else:
        assert isinstance(config, RewardRecipe)
        checks = reward_checks(config, spec)
    found: dict[str, str] = {}
    for change in ({}, {"reward_std": 0.0}, {"reward_std": 0.0, "reward_per_agent_step": 0.0}):
        monitor = HealthMonitor(checks)
        record = {**BAD, **change, "agent0/grad_norm": 1e7, "agent1/grad_norm": 1e7, "big/grad_norm": 1e7}
        for k in range(60):
            varied = {**record, "episode_return": record["episode_return"] / (1 + k % 2)}
            found |= {f"{warning.cause} {change}": warning.text for warning in monitor.add(varied)}
    assert {cause.split(" {")[0] for cause in found} == set(checks)
    for cause, text in found.items():
        tried = overrides_of(text)
        assert tried or cause.startswith("observations")
        for override in tried:
            if override != f"env.max_steps={spec.max_steps}":  # for an environment that ignores its limit
                assert load(recipe, [override]).recipe != config, override


def test_recipe_that_normalises_observations_is_not_told_to() -> None:
    assert "observation scale" in checks_of()
    assert "observation scale" not in checks_of(**{"policy.normalize_observations": True})


def test_entropy_floor_is_relative_to_the_largest_entropy() -> None:
    assert entropy_floor(FOUR) == pytest.approx(0.01 * math.log(4))
    assert entropy_floor(ActionSpec.multidiscrete((3, 2))) == pytest.approx(0.01 * math.log(6))
    normal = 0.5 * math.log(2 * math.pi * math.e)  # of deviation 1
    assert entropy_floor(ActionSpec.continuous((-1.0,), (1.0,))) == pytest.approx(normal - 5)
    wide, endless = ActionSpec.continuous((0.0,), (200.0,)), ActionSpec.continuous((-math.inf,), (math.inf,))
    assert entropy_floor(wide) == pytest.approx(normal - 5 + math.log(100))
    assert entropy_floor(endless) == pytest.approx(normal - 5)


def test_mixture_names_the_agent_whose_gradient_explodes() -> None:
    recipe = load("mixture").recipe
    assert isinstance(recipe, MixtureRecipe)
    spec = EnvSpec("minatar:breakout", ObservationSpec.single((4, 10, 10), "uint8", "pixels"), FOUR, max_steps=1_000)
    monitor = HealthMonitor(mixture_checks(recipe, spec, 2, NUM_ENVS))
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
    assert all(warning["last_updates"] >= warning["updates"] for warning in found)
    html = write_report(tmp_path / "wild").read_text()
    assert html.index(">Summary</h2>") < html.index(">Warnings</h2>") < html.index(">Curves</h2>")
    assert "ppo.target_kl=0.03" in html
    assert html.count("<td>ratios</td>") == 1  # one row per cause, however often it appeared


def test_healthy_runs_do_not_warn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_small(tmp_path, "ppo", **{"trainer.total_iterations": 8})
    finish(start(tmp_path, "mixture", {}))
    assert warnings_of(tmp_path / "ppo") == warnings_of(tmp_path / "mixture") == []
    assert "warning" not in capsys.readouterr().out
    assert ">Warnings</h2>" not in write_report(tmp_path / "ppo").read_text()


NO_REWARD = {"env.grid.reward_ore": 0.0, "env.grid.reward_battery": 0.0, "env.grid.reward_heart": 0.0}


def test_real_run_without_rewards_warns_also_after_a_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_small(tmp_path, "dry", **NO_REWARD, **{"trainer.total_iterations": 10})
    (warning,) = warnings_of(tmp_path / "dry")
    assert warning["cause"] == "reward"
    assert warning["last_updates"] > warning["updates"]
    assert "all rewards of the last 5 records are 0" in capsys.readouterr().out
    loaded, run = resume_run("dry", ["trainer.total_iterations=14"], str(tmp_path))
    trainer = PPOTrainer(loaded, run)
    try:
        trainer.train()
    finally:
        trainer.close()
    (again,) = warnings_of(tmp_path / "dry")
    assert again == {**warning, "last_updates": trainer.counters.updates, "records": warning["records"] + 4}
    assert "warning:" not in capsys.readouterr().out  # it has been logged


def test_real_mixture_without_rewards_warns(tmp_path: Path) -> None:
    changes = {
        "env.id": "tests.trainers.common.test_health:make_endless",
        "env.max_steps": 30,
        "mixture.total_frames": 16 * 64,
    }
    finish(start(tmp_path, "dry", {**changes, "env.options": {"reward": 0.0}}))
    assert "reward" in {warning["cause"] for warning in warnings_of(tmp_path / "dry")}


def test_real_online_reward_run_without_rewards_warns(tmp_path: Path) -> None:
    settings = {
        "env.id": "tests.trainers.common.test_health:make_endless", "env.options": {"reward": 0.0}, "env.max_steps": 20,
        "agent.algorithm": "dqn", "agent.warmup_steps": 1_000, "reward.epochs": 1, "reward.cycles": 6, "reward.iterations": 1,
        "reward.train_batches": 1, "agent.test_episodes": 1, "log.tensorboard": False, "run_dir": str(tmp_path),
    }  # fmt: skip
    loaded = load("reward-online", settings)
    trainer = RewardTrainer(loaded, start_run(loaded, "dry"))
    try:
        trainer.train()
    finally:
        trainer.close()
    assert [warning["cause"] for warning in warnings_of(tmp_path / "dry")] == ["reward"]


class Endless(gymnasium.Env[Any, Any]):
    """Shows random numbers; its episodes never end."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, reward: float | None = None) -> None:
        self.reward = reward

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observation_space.sample() * 0, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        shown = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return shown, float(shown[0]) if self.reward is None else self.reward, False, False, {}


def make_endless(reward: float | None = None) -> gymnasium.Env[Any, Any]:
    return Endless(reward)


def test_real_run_whose_episodes_never_end_warns(tmp_path: Path) -> None:
    changes = {
        **SMALL, "env.id": "tests.trainers.common.test_health:make_endless", "env.max_steps": None, "policy.core": "none",
        "trainer.num_envs": 2, "trainer.bptt_horizon": 128, "trainer.batch_size": 1_024, "trainer.minibatch_size": 1_024,
        "trainer.update_epochs": 1, "trainer.total_iterations": 20, "eval.interval": None, "vector.backend": "inline",
        "run_dir": str(tmp_path),
    }  # fmt: skip
    loaded = load("grid", {key: value for key, value in changes.items() if not key.startswith("env.grid.")})
    trainer = PPOTrainer(loaded, start_run(loaded, "endless"))
    # Before the end of the run, whose evaluation would not end.
    trainer.loop.at_end("iteration", lambda ended: trainer.loop.stop("it has warned"), every=11)
    try:
        trainer.train()
    finally:
        trainer.close()
    (warning,) = warnings_of(tmp_path / "endless")
    assert warning["cause"] == "episodes"
    assert warning["agent_steps"] == 10_240  # 5,120 steps of each env: the first record with more than 5,000
    assert "env.max_steps=1000" in warning["text"]
