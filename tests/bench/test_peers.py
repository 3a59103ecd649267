"""Comparisons with other trainers: their arithmetic by hand, the same settings on all sides, and that they run."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from millpond.config import PPORecipe, load

PEERS = Path(__file__).parents[2] / "benchmarks" / "peers"
sys.path.append(str(PEERS))

from environments import OtherWork, interpreter  # noqa: E402
from ours import RECIPES, shares_of  # noqa: E402
from settings import DQN, PPO, SAC  # noqa: E402
from table import table, table_rows  # noqa: E402
from trained import Ratio, Trained, against  # noqa: E402
from trainings import TRAININGS  # noqa: E402


def training(collect: float, train: float, level: list[float | None]) -> Trained:
    """Its first two iterations take a hundred times as long."""
    times = [100 if k < 2 else 1 for k in range(len(level))]
    return Trained("x", {}, {}, 1_000, [collect * k for k in times], [train * k for k in times], level)


def test_the_first_two_iterations_do_not_count() -> None:
    assert training(1.0, 3.0, [0.0] * 6).steps_per_second == 250
    assert training(1.0, 3.0, [0.0] * 6).to_json()["train_steps_per_second"] == pytest.approx(1_000 / 3)
    assert training(1.0, 3.0, [0.0] * 6).shares() == {"collect": 0.25, "train": 0.75}


def test_ratio_is_the_median_of_paired_rounds() -> None:
    assert Ratio.of([2.0, 6.0, 3.0], [1.0, 2.0, 3.0]) == Ratio(2.0, 1.0, 3.0)
    assert str(Ratio(2.0, 1.0, 3.0)) == "2.00 (1.00 to 3.00)"


def test_levels_at_equal_steps_and_at_equal_time() -> None:
    quick = training(0.5, 0.5, [None, *(float(k) for k in range(1, 40))])  # 200 s, then 1 s each: 238 s
    slow = training(0.6, 0.6, [2.0 * k for k in range(20)])  # 240 s, then 1.2 s each: 261.6 s
    level = against([quick], [slow])["levels"][0]
    assert level["steps"] == 20_000
    assert level["ours_after_steps"] == sum(range(10, 20)) / 10
    assert level["theirs_after_steps"] == sum(range(20, 40, 2)) / 10
    assert level["seconds"] == pytest.approx(238)
    assert level["ours_after_seconds"] == sum(range(30, 40)) / 10
    assert level["theirs_after_seconds"] == 0.0  # one iteration, of 120 s


def test_all_tasks_are_in_one_table() -> None:
    quick, slow = training(0.5, 0.5, [1.0] * 6), training(1.0, 1.0, [1.0] * 6)
    results = {
        "forage": {"peers": {"puffer": against([quick, quick], [slow, quick])}},
        "lake": {"warm": {"beside": "torchrl", "ours": [300.0, 100.0, 200.0], "theirs": [100.0, 100.0, 100.0]}},
        "reward": {"ours": [900.0, 950.0], "bare": [1_000.0, 1_000.0], "ratios": [0.9, 0.95]},
    }
    forage, lake, reward = table_rows(results)
    assert (forage[:2], forage[2:4], forage[-1]) == (("forage", "puffer"), (1_000.0, 750.0), Ratio(1.5, 1.0, 2.0))
    assert (lake[0], lake[2:5], lake[-1]) == ("lake, warm", (200.0, 100.0, "transitions/s"), Ratio(2.0, 1.0, 3.0))
    assert (reward[2:4], reward[-1]) == ((925.0, 1_000.0), Ratio(pytest.approx(0.925), 0.9, 0.95))
    lines = table(results)
    assert len(lines) == 2 + 3
    assert lines[3].split("  ")[0] == "lake, warm"
    assert lines[3].endswith("2.00 (1.00 to 3.00)")


def test_shares_are_of_iterations_that_count_without_evaluation() -> None:
    """The first two do not count. The last one took 6 s, of which 2 s evaluation."""
    record = {"time/collect": 1.0, "time/collect/step": 0.5, "time/train": 2.0}
    records = [{**record, "time/train": 90.0}] * 2 + [record, {**record, "time/evaluate": 2.0}]
    shares = shares_of(records, [100.0, 100.0, 4.0, 6.0])
    assert shares == {"collect": 0.25, "collect/step": 0.125, "train": 0.5, "other": 0.25}


def test_busy_cores_of_others_are_those_of_the_system_without_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """10 s, in which all cores worked for 15 s together, we for 9 s of them."""
    moments = iter([(100.0, 40.0, 1.0), (110.0, 55.0, 10.0), None])
    monkeypatch.setattr(OtherWork, "_now", staticmethod(lambda: next(moments)))
    others = OtherWork()
    assert others.cores() == pytest.approx(0.6)
    assert others.cores() is None


@pytest.mark.parametrize("task", list(PPO))
def test_recipe_has_the_settings_of_the_peers(task: str) -> None:
    shared, recipe = PPO[task], load(str(PEERS / RECIPES[task])).recipe
    assert isinstance(recipe, PPORecipe)
    trainer, ppo, policy = recipe.trainer, recipe.ppo, recipe.policy
    assert recipe.env.id == (f"atari:{shared.env}" if task == "pong" else f"gymnasium:{shared.env}")
    assert (trainer.num_envs, trainer.bptt_horizon) == (shared.envs, shared.steps)
    assert (trainer.batch_size, trainer.minibatch_size) == (shared.batch, shared.minibatch)
    assert (trainer.batch_unit, trainer.update_epochs) == ("agent_steps", shared.epochs)
    assert (policy.core, {policy.hidden_size}) == ("none", {*shared.layers, *([shared.features] * (task == "pong"))})
    assert policy.normalize_observations is False
    assert len(shared.layers) == (1 if task == "pong" else 2)  # Millpond: the encoder's layer, and one more
    assert shared.activation == ("relu" if task == "pong" else "tanh")
    assert (ppo.learning_rate, ppo.adam_eps, ppo.optimizer) == (shared.learning_rate, shared.adam_eps, "adam")
    assert (ppo.gamma, ppo.gae_lambda, ppo.advantage) == (shared.gamma, shared.gae_lambda, "gae")
    assert (ppo.clip_coef, ppo.vf_clip_coef, ppo.max_grad_norm) == (shared.clip, None, shared.max_norm)
    assert (ppo.vf_coef, ppo.ent_coef) == (shared.value, shared.entropy)
    assert ppo.value_trains_core == shared.value_trains_layers
    assert (ppo.lr_schedule, ppo.ent_schedule, ppo.clip_schedule) == ("constant", "constant", "constant")
    assert ppo.target_kl is None


def test_phases_divide_iterations() -> None:
    assert SAC.iteration % SAC.collect == 0
    assert DQN.iteration % DQN.phase == 0
    assert DQN.target_updates * DQN.phase % (DQN.updates * DQN.envs) == 0  # SB3 counts steps of the vector
    assert [DQN.epsilon(steps) for steps in (0, DQN.epsilon_over, 10**6)] == pytest.approx([1.0, 0.05, 0.05])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "task"),
    [
        (["ours_off_policy.py", "sac-pendulum"], "sac-pendulum"),
        (["single_file_sac.py"], "sac-pendulum"),
        (["ours_off_policy.py", "dqn-minatar"], "dqn-minatar"),
        (["single_file_dqn.py"], "dqn-minatar"),
    ],
)
def test_loops_of_learners_run(script: list[str], task: str) -> None:
    """There is no update in the first iteration, while actions are random; episodes end in each of three."""
    if task == "dqn-minatar":
        pytest.importorskip("minatar")
    command = [sys.executable, str(PEERS / script[0]), *script[1:], "3", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    trained = Trained(**json.loads(done.stdout.splitlines()[-1]))
    assert trained.steps == (SAC if task == "sac-pendulum" else DQN).iteration
    assert len(trained.collect) == len(trained.train) == len(trained.level) == 3
    assert trained.train[0] < trained.train[1]
    assert all(level is not None and math.isfinite(level) for level in trained.level)


@pytest.mark.slow
@pytest.mark.parametrize("task", [*PPO, "sac-pendulum", "dqn-minatar"])
def test_quick_comparison_with_stable_baselines_runs(task: str, tmp_path: Path) -> None:
    try:
        interpreter("sb3", {})
    except SystemExit as missing:
        pytest.skip(str(missing))
    pytest.importorskip({"halfcheetah": "mujoco", "pong": "ale_py", "dqn-minatar": "minatar"}.get(task, "gymnasium"))
    results = tmp_path / "results.json"
    command = [sys.executable, str(PEERS / "run.py"), task, "--quick", "--rounds", "1", "--json", str(results)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(results.read_text(encoding="utf-8"))[task]
    assert len(found["peers"]) == len(TRAININGS[task].scripts)
    assert [len(one["collect"]) for one in found["trained"]] == [3] * (1 + len(found["peers"]))
    assert {one["steps"] for one in found["trained"]} == {found["trained"][0]["steps"]}
    rows = [line for line in done.stdout.splitlines() if line.startswith(f"{task}  ")]
    assert len(rows) == len(found["peers"])
