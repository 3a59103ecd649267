"""Custom environments and policies are trained, evaluated, loaded and used by their dotted path."""

from __future__ import annotations

import importlib
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

import millpond
from millpond.config import ConfigError, load
from millpond.config.check import flatten
from millpond.envs.check import check_env
from millpond.envs.env_batch import EnvError
from millpond.policies import build_policy
from millpond.store import RunError
from millpond.trainers.common.build import check_policy_on
from millpond.trainers.common.envs import evaluation_vector
from millpond.trainers.common.play import EndlessEpisodeError, evaluate, evaluate_run
from millpond.trainers.common.session import resume_run
from millpond.trainers.ppo.trainer import PPOTrainer
from tests.support import custom_envs
from tests.support.in_process import run_command
from tests.support.records import records

DOCS = Path(__file__).parents[3] / "docs"
OWN = custom_envs.__name__
TINY = {
    "trainer.num_envs": 4,
    "trainer.num_workers": 1,
    "trainer.bptt_horizon": 16,
    "trainer.batch_size": 128,
    "trainer.minibatch_size": 64,
    "trainer.update_epochs": 1,
    "trainer.total_iterations": 1,
    "policy.hidden_size": 16,
    "eval.episodes": 2,
    "vector.backend": "inline",
    "log.tensorboard": False,
}


def train(folder: Path, env_id: str, changes: dict[str, Any] | None = None) -> Path:
    """Train the recipe `grid` on another environment, as in the docs."""
    settings = {**TINY, "env.id": env_id, "run_dir": str(folder), **(changes or {})}
    return millpond.train("grid", overrides=settings, run="own").folder


def page_code(page: str, place: int, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a Python block of a page to a module that can be imported."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(encoding="utf-8"), re.M | re.S)
    (folder / f"{name}.py").write_text(blocks[place], encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, name, raising=False)


def test_env_of_the_docs_trains_with_the_command_of_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page_code("environments.md", 0, "corridor", tmp_path, monkeypatch)
    run = train(tmp_path, "corridor:make_env")
    policy = millpond.load(run)
    assert policy.recipe.env.num_agents == policy.spec.num_agents == 1
    assert policy.recipe.env.max_steps is None  # the 256 steps of the recipe apply to its own environment only
    action, state = policy.act(np.zeros((1, 1), np.float32))
    assert (action.shape, state.shape) == ((1,), (1, 2, 16))
    evaluation, played = evaluate_run(str(run), episodes=3)
    assert (len(evaluation.lengths), played.updates) == (3, 2)


def test_wrong_number_of_agents_is_an_error_before_a_run_folder_exists(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"env.num_agents=2, but .* has 3 agents; try env.num_agents=3$"):
        train(tmp_path, f"{OWN}:Leaving", {"env.num_agents": 2})
    assert list(tmp_path.iterdir()) == []


def test_number_of_agents_comes_from_a_pettingzoo_env(tmp_path: Path) -> None:
    run = train(tmp_path, f"{OWN}:Leaving")
    policy = millpond.load(run)
    assert policy.recipe.env.num_agents == 3
    assert len(evaluate_run(str(run), episodes=2)[0].returns_by_agent[0]) == 3


@pytest.mark.parametrize(("acting", "core"), [("choices", "lstm"), ("numbers", "none"), ("both", "lstm")])
def test_agents_with_different_spaces_train_and_are_reported_by_name(tmp_path: Path, acting: str, core: str) -> None:
    env_id, options = f"{OWN}:Teams", {"acting": acting}
    run = train(tmp_path, env_id, {"env.options": options, "policy.core": core})
    returns = {"runner": 3.0, "chaser_0": 10.0, "chaser_1": 10.0}
    (record,) = records(run)
    for name, value in returns.items():
        assert record[f"{name}/episode_return"] == record[f"eval/{name}/episode_return"] == value
    assert record["episode_return"] == pytest.approx(23 / 3)
    evaluation, _ = evaluate_run(str(run), episodes=3)
    assert evaluation.agent_returns == evaluation.to_json()["agents"] == returns
    shown = run_command(tmp_path, "eval", str(run), "--episodes", "2").stdout
    assert re.search(r"return of runner +3\.0000", shown)
    page = (run / "report.html").read_text()
    assert all(page.count(name) >= 2 for name in returns)  # the table of evaluations, and the legend of a chart
    results = check_env(env_id, {"kwargs": options}, steps=20)
    assert [result for result in results if result.status == "error"] == []
    finding = check_policy_on(env_id, {"kwargs": options})
    assert (finding.status, finding.what) == ("ok", "on a batch of one and of several")


@pytest.mark.parametrize("shown", list(custom_envs.SHOWN))
def test_every_space_trains_and_acts_on_a_batch_of_one(tmp_path: Path, shown: str) -> None:
    run = train(tmp_path, f"{OWN}:make_strange", {"env.options": {"shown": shown}, "policy.core": "gru"})
    policy = millpond.load(run)
    stored = np.zeros((1, *policy.spec.observation.shape), policy.spec.observation.dtype)
    assert policy.act(stored)[0].shape == (1,)
    finding = check_policy_on(f"{OWN}:make_strange", {"kwargs": {"shown": shown}})
    assert (finding.status, finding.what) == ("ok", "on a batch of one and of several")


@pytest.mark.parametrize(
    ("taken", "masked", "core"),
    [("choices", False, "lstm"), ("numbers", False, "none"), ("both", False, "none"), ("both", True, "lstm")],
)
def test_actions_of_every_structure_train_evaluate_and_resume(
    tmp_path: Path, taken: str, masked: bool, core: str
) -> None:
    env_id, options = f"{OWN}:Composite", {"taken": taken, "masked": masked}
    run = train(tmp_path, env_id, {"env.options": options, "policy.core": core})
    loaded, again = resume_run(str(run), ["trainer.total_iterations=2"])
    trainer = PPOTrainer(loaded, again)
    trainer.train()
    trainer.close()
    policy = millpond.load(run)
    assert (policy.spec.action.shape, policy.spec.action_masks) == ((5 if taken == "both" else 3,), masked)
    assert policy.act(np.zeros((2, 3), np.float32))[0].shape == (2, *policy.spec.action.shape)
    assert {*evaluate_run(str(run), episodes=3)[0].returns} == {6.0}
    results = check_env(env_id, {"kwargs": options}, steps=20)
    assert [result for result in results if result.status == "error"] == []
    finding = check_policy_on(env_id, {"kwargs": options})
    assert (finding.status, finding.what) == ("ok", "on a batch of one and of several")


def test_check_finds_an_env_that_no_policy_can_read() -> None:
    assert check_policy_on(f"{OWN}:Blind", {}).status == "error"
    assert check_policy_on("grid", {}).status == "ok"


def test_env_that_raises_is_reported_in_one_line_with_file_and_line(tmp_path: Path) -> None:
    says = r"cannot be made: RuntimeError: there is no display \(custom_envs.py:\d+, in reset\)$"
    with pytest.raises(EnvError, match=says):
        train(tmp_path, f"{OWN}:Unresettable")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("core", ["lstm", "none"])
def test_feedforward_policy_of_the_docs_trains_with_any_core_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, core: str
) -> None:
    page_code("policies.md", -1, "wide_policies", tmp_path, monkeypatch)
    changes = {"policy.target": "wide_policies:build_policy", "policy.core": core}
    run = train(tmp_path, "gymnasium:CartPole-v1", changes)
    action, state = millpond.load(run).act(np.zeros((1, 4), np.float32))
    assert (action.shape, state.numel()) == ((1,), 0)
    assert len(evaluate_run(str(run), episodes=2)[0].lengths) == 2


def test_a_custom_policy_runs_with_the_recipe_of_an_env_id_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page_code("policies.md", -1, "stranger", tmp_path, monkeypatch)
    settings = {"policy.target": "stranger:build_policy", "trainer.total_iterations": 1, "trainer.update_epochs": 1}
    settings |= {"vector.backend": "inline", "eval.episodes": 1, "log.tensorboard": False, "run_dir": str(tmp_path)}
    run = millpond.train("gymnasium:CartPole-v1", overrides=settings, run="own")
    stored = flatten(load(run.config_path).recipe)
    assert (stored["ppo.normalize_values"], stored["trainer.bptt_horizon"]) == (False, 64)


def test_custom_policy_gets_observation_parts_in_training_evaluation_and_when_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = len(importlib.import_module("tests.support.parts_policy").BUILT)
    target = {"policy.target": "tests.support.parts_policy:build_policy", "env.options": {"shown": "seven bytes"}}
    run = train(tmp_path, f"{OWN}:make_strange", target)
    policy = millpond.load(run)
    speed, kind = np.full((2, 1), 0.5, np.float32), np.eye(3, dtype=np.uint8)[:2]
    by_part = policy.act({"speed": speed, "kind": kind})[0]
    stored = np.zeros((2, 8), np.uint8)
    stored[:, :3], stored[:, 4:] = kind, speed.view(np.uint8)
    assert torch.equal(by_part, policy.act(stored)[0])
    evaluate_run(str(run), episodes=2)
    made = sys.modules["tests.support.parts_policy"].BUILT[count:]
    used = [
        parts for parts in made if parts.observed
    ]  # the report builds one too, before it finds that the env has no render()
    trained = used[0]
    assert len(used) >= 3  # for training, loading and evaluating
    lead = {len(shapes["kind"][1]) for shapes in trained.observed}
    assert lead == {2, 3}  # acting and valuing [B, 3], unrolling [B, T, 3]
    for parts in used:
        assert all((one["kind"][0], one["speed"][0]) == (torch.uint8, torch.float32) for one in parts.observed)


def test_loaded_policy_rejects_other_observations_and_names_those_it_takes(tmp_path: Path) -> None:
    run = train(tmp_path, f"{OWN}:make_strange", {"env.options": {"shown": "seven bytes"}})
    policy = millpond.load(run)
    with pytest.raises(RunError, match=r"a mapping of the parts.*: kind uint8 \(3,\), speed float32 \(1,\)"):
        policy.act(np.zeros((1, 4), np.float32))


class Endless(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> Any:
        return np.zeros(1, np.float32), 1.0, False, False, {}


def test_evaluation_of_endless_episodes_is_an_error_that_names_max_steps() -> None:
    recipe = load("grid", {**TINY, "env.id": f"{__name__}:Endless", "env.num_agents": 1}).recipe
    for settings, ends in (({}, False), ({"max_steps": 5}, True)):
        env = recipe.env.model_copy(update=settings)
        with evaluation_vector(env, recipe.vector, 2) as vector:
            policy = build_policy(vector.spec.observation, vector.spec.action, hidden_size=4)
            play = partial(evaluate, policy, vector, episodes=2, seed=0, device=torch.device("cpu"), max_steps=50)
            if ends:
                assert play().lengths == (5, 5)
            else:
                with pytest.raises(
                    EndlessEpisodeError, match=r"longer than 50 steps.* set env.max_steps, such as env.max_steps="
                ):
                    play()
