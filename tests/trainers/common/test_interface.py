"""Training from Python: envs, policies and typed recipes as objects, resuming them, and what a later process is told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

import millpond
from millpond.config import PPORecipe
from millpond.config.ppo import PPOTrainerConfig
from millpond.config.recipe import EnvConfig, PolicyConfig
from millpond.envs.env_batch import EnvError
from millpond.errors import MillpondError
from millpond.policies import PolicyError
from tests.support.ball_env import TINY, Ball, Net, grid_maker

ROOT = Path(__file__).parents[3]


def train(folder: Path, run: str = "pond", **arguments: Any) -> millpond.Run:
    return millpond.train(run=run, overrides={**TINY, "run_dir": str(folder)}, **arguments)


def weights(run: millpond.Run) -> dict[str, Any]:
    return run.weights()["policy"]


def same(one: dict[str, Any], two: dict[str, Any]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_importable_class_becomes_a_dotted_path_and_takes_the_recipe_of_its_family(tmp_path: Path) -> None:
    run = train(tmp_path, env=Ball, policy=Net)
    config = run.config
    assert (config.env.id, config.policy.target) == ("tests.support.ball_env:Ball", "tests.support.ball_env:Net")
    assert (config.ppo.gae_lambda, config.policy.core) == (0.97, "none"), "the recipe gym"  # type: ignore[attr-defined]
    assert config.vector.backend == "auto"
    assert weights(run)["encoder.network.layer.weight"].shape == (6, 1)
    assert weights(run)["output.weight"].shape == (3, 6), "heads on the features of the network, and nothing between"


def test_metrics_are_arrays_with_nan_where_a_record_has_none(tmp_path: Path) -> None:
    run = train(tmp_path, env=Ball)
    metrics = run.metrics()
    assert metrics["agent_steps"].tolist() == [64, 128, 192]
    assert np.isnan(metrics["eval/episode_return"]).tolist() == [True, True, False]
    assert run.best is not None
    assert run.best.score == metrics["eval/episode_return"][-1]
    assert run.best.updates == metrics["updates"][-1] == run.policy().updates
    assert run.folder == tmp_path / "pond"
    assert repr(run) == f"<Run {run.folder}: finished, 6 updates>"
    assert repr(millpond.Run.open(str(tmp_path), "pond")) == repr(run)


def test_object_that_cannot_be_imported_is_stepped_here_and_the_run_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(tmp_path, env=lambda: Ball(5), policy=lambda observation: Net(observation, 4))
    printed = " ".join(capsys.readouterr().out.split())
    assert "object:env, object:policy: passed as" in printed
    assert "other processes cannot import" in printed
    assert "stepped in the trainer's process (vector.backend=inline)" in printed
    assert (run.config.env.id, run.config.vector.backend) == ("object:env", "inline")
    assert millpond.load(run).predict(np.zeros(1, np.float32))[0] in (0, 1)
    assert millpond.evaluate(str(run.folder), episodes=2).lengths == (5, 5)


def test_later_process_asks_for_the_object_by_name(tmp_path: Path) -> None:
    class Local(Ball):
        pass

    run = train(tmp_path, env=Local)
    program = "import sys, millpond\nmillpond.{call}\n"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for call in (f"load({str(run.folder)!r})", f"resume({str(run.folder)!r})", f"evaluate({str(run.folder)!r})"):
        done = subprocess.run(
            [sys.executable, "-c", program.format(call=call)],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
        assert "env.id" in done.stderr or "object:Local" in done.stderr
        assert "millpond.resume(run, env=Local)" in done.stderr, done.stderr[-500:]
    with_env = (
        f"evaluate({str(run.folder)!r}, env=__import__('tests.support.ball_env').support.ball_env.Ball, episodes=1)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program.format(call=with_env)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert "1 episode, sampled actions: return" in done.stdout


def test_run_of_objects_resumes_bit_for_bit(tmp_path: Path) -> None:
    def stop_early(event: millpond.Event) -> None:
        if event.counters["updates"] == 4:
            event.stop("halfway")

    def record(event: millpond.Event) -> None:
        event.record("own/updates", event.counters["updates"])

    class Core(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(25 + 3, 8)

        def forward(self, parts: dict[str, torch.Tensor]) -> torch.Tensor:
            return self.layer(torch.cat((parts["cells"].flatten(1).float(), parts["inventory"]), 1)).relu()

    maker = grid_maker()
    settings = {"env": maker, "policy": Core, "recipe": "grid"}
    whole = train(tmp_path, "whole", callbacks=record, **settings)
    parts = train(tmp_path, "parts", callbacks=[record, stop_early], **settings)
    assert parts.metrics()["updates"].tolist() == [2, 4]
    parts = millpond.resume(parts, env=maker, policy=Core, callbacks=record)
    assert same(weights(whole), weights(parts))
    one, two = whole.metrics(), parts.metrics()
    timed = ("seconds", "agent_steps_per_second")
    compared = [name for name in one if name not in timed and not name.startswith("time/")]
    assert "own/updates" in compared
    assert one.keys() == two.keys()
    for name in compared:
        np.testing.assert_array_equal(one[name], two[name], err_msg=name)


def test_resume_takes_lengths_and_refuses_another_env(tmp_path: Path) -> None:
    run = train(tmp_path, "short", env=Ball)
    longer = millpond.resume(run, **{"trainer.total_iterations": 4})
    assert longer.metrics()["updates"].tolist() == [2, 4, 6, 8]
    with pytest.raises(
        MillpondError, match=r"was trained with env.id=tests.support.ball_env:Ball, not with env=object:env"
    ):
        millpond.resume(longer, env=lambda: Ball())


def test_typed_recipe_is_accepted_wherever_a_name_is(tmp_path: Path) -> None:
    recipe = PPORecipe(
        env=EnvConfig(id="recall"),
        policy=PolicyConfig(core="gru", hidden_size=8),
        trainer=PPOTrainerConfig(num_envs=4, bptt_horizon=8, minibatch_size=16, total_timesteps=64),
        seed=3,
    )
    assert millpond.plan(recipe).gradient_updates == 2
    assert millpond.plan(recipe, seed=4).loaded.recipe.seed == 4
    run = millpond.train(recipe, run_dir=str(tmp_path), **{"log.tensorboard": False, "eval.episodes": 2})
    assert run.name == "ppo-1"
    assert run.config.ppo == recipe.ppo, "its defaults are not those of a packaged recipe"  # type: ignore[attr-defined]
    assert run.config.policy == recipe.policy


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"recipe": Ball}, "is not a recipe: .* is passed as env="),
        ({"env": Ball()}, r"an object of Ball, but a run has many envs: pass its class.* env=lambda: Ball\("),
        (
            {"env": gymnasium.make("CartPole-v1")},
            'object of CartPoleEnv, .*: pass its id, its class, .* such as env="gymnasium:CartPole-v1"',
        ),
        ({"env": Ball, "policy": nn.Linear(1, 2)}, "policy is a Linear: pass its class, or a function that builds it"),
        (
            {"env": lambda: Ball(), "vector": {"backend": "processes"}},
            "vector.backend=processes, but function .*lambda",
        ),
        ({"env": lambda: "no env"}, "made a str, which is neither a gymnasium.Env"),
        (
            {"env": Ball, "callbacks": [3]},
            "callback 3 is neither a function nor an object with one of the methods on_start",
        ),
    ],
)
def test_wrong_objects_are_refused_before_a_folder_is_made(tmp_path: Path, arguments: Any, says: str) -> None:
    with pytest.raises(MillpondError, match=says):
        millpond.train(run="pond", **{"run_dir": str(tmp_path / "runs"), **arguments})
    assert not (tmp_path / "runs" / "pond").exists()


def test_parallel_env_class_takes_the_recipe_of_several_agents(tmp_path: Path) -> None:
    from tests.support.custom_envs import Leaving

    settings = {**TINY, "trainer.batch_size": 96, "trainer.minibatch_size": 48, "trainer.num_envs": 4}
    run = millpond.train(env=Leaving, run="pond", overrides={**settings, "run_dir": str(tmp_path)})
    assert run.config.env.num_agents == 3
    policy, env = run.policy(), Leaving()
    observations, _ = env.reset(seed=1)
    actions, state = policy.predict(observations)
    assert set(actions) == set(observations)
    assert all(env.action_space(agent).contains(actions[agent]) for agent in actions)
    fewer = dict(list(observations.items())[:2])
    again, after = policy.predict(fewer, state)
    assert list(again) == list(fewer)
    assert (after is None) == (state is None)


SCRIPT = """
import gymnasium
import millpond
from tests.support.ball_env import TINY, Ball as Base

class Ball(Base):
    pass

{guard}millpond.train(env=Ball, run="pond", overrides={{**TINY, "vector.backend": "{backend}", "trainer.async_factor": 2}})
"""


@pytest.mark.parametrize(("guard", "backend"), [("if __name__ == '__main__':\n    ", "processes"), ("", "auto")])
def test_class_of_a_script_is_imported_by_workers_only_if_the_script_is_guarded(
    tmp_path: Path, guard: str, backend: str
) -> None:
    (tmp_path / "own_script.py").write_text(SCRIPT.format(guard=guard, backend=backend))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "own_script.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    config = (tmp_path / "runs" / "pond" / "config.yaml").read_text()
    assert ("id: own_script:Ball" in config) == bool(guard)
    assert ("id: object:Ball" in config) == (not guard)


class Pair(nn.Module):
    """Logits and value, as in CleanRL's scripts."""

    def __init__(self, observation: Any, action: Any) -> None:
        super().__init__()
        self.actor, self.critic = nn.Linear(observation.shape[0], action.sizes[0]), nn.Linear(observation.shape[0], 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.actor(x), self.critic(x)


def test_network_of_logits_and_value_is_a_whole_policy(tmp_path: Path) -> None:
    run = train(tmp_path, env=Ball, policy=Pair)
    assert set(weights(run)) == {
        f"network.{part}.{kind}" for part in ("actor", "critic") for kind in ("weight", "bias")
    }
    with pytest.raises(
        PolicyError, match=r"ppo.normalize_values=true .* computes its value itself; set ppo.normalize_values"
    ):
        train(tmp_path, "other", env=Ball, policy=Pair, **{"ppo.normalize_values": True})


def test_env_that_raises_while_it_is_made_is_named(tmp_path: Path) -> None:
    def broken() -> gymnasium.Env:
        raise ValueError("no such map")

    with pytest.raises(EnvError, match=r"'object:broken' cannot be made: ValueError: no such map"):
        train(tmp_path, env=broken)
