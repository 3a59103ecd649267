"""Runs that end by a number that is not finite: the cause, the dump, the last good checkpoint and the command to go on."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from millpond.config import load
from millpond.errors import MillpondError
from millpond.loop import NonFiniteError
from millpond.store import Checkpoints, read_checkpoint, read_status
from millpond.store.non_finite import save_batch
from millpond.trainers.common.envs import rank_seeds
from millpond.trainers.common.failures import largest_factor
from millpond.trainers.common.session import make_trainer, require_trainer, start_run
from millpond.trainers.mixture.agents import ENVS, seed_for
from millpond.vector import NonFiniteEnvError, env_seed
from tests.support.ppo_runs import PLAIN

ROOT = Path(__file__).parents[3]
BROKEN = "tests.support.broken_envs"
PPO: dict[str, Any] = {
    "trainer.num_envs": 8, "trainer.batch_size": 256, "trainer.minibatch_size": 128, "trainer.bptt_horizon": 16,
    "trainer.total_iterations": 4, "checkpoint.interval": 1, "policy.hidden_size": 16, "eval.episodes": 2,
    "trainer.num_workers": 2, "log.tensorboard": False, "env.id": f"{BROKEN}:Broken", **PLAIN,
}  # fmt: skip
MIXTURE: dict[str, Any] = {
    "mixture.agents": 2, "mixture.total_frames": 8 * 64, "mixture.collections_per_round": 3, "mixture.big_updates": 5,
    "mixture.pond_transitions": 128, "mixture.big_pond_transitions": 100, "pqn.num_envs": 4, "pqn.num_steps": 8,
    "pqn.num_minibatches": 2, "pqn.update_epochs": 2, "lake.acknowledge_every": 20, "dqn.batch_size": 8,
    "policy.hidden_size": 16, "eval.episodes": 2, "log.tensorboard": False, "checkpoint.interval": 1,
    "pqn.lr_schedule": "constant", "env.id": f"{BROKEN}:Broken",
}  # fmt: skip
ONLINE: dict[str, Any] = {
    "reward.epochs": 2, "reward.cycles": 1, "reward.iterations": 2, "reward.train_batches": 2, "reward.hidden_size": 16,
    "reward.episodes_per_batch": 2, "reward.steps_per_episode": 4, "reward.save_freq": 1, "agent.num_envs": 2,
    "agent.batch_size": 8, "agent.replay_transitions": 500, "agent.steps_per_iteration": 10, "agent.warmup_steps": 30,
    "agent.test_episodes": 2, "log.tensorboard": False, "env.id": f"{BROKEN}:Broken", "env.options.continuous": True,
}  # fmt: skip
REWARD: dict[str, Any] = {
    "reward.epochs": 2, "reward.cycles": 1, "reward.iterations": 2, "reward.train_batches": 2, "reward.hidden_size": 16,
    "reward.episodes_per_batch": 2, "reward.steps_per_episode": 4, "reward.save_freq": 1, "log.tensorboard": False,
}  # fmt: skip
RECIPES = {"grid": PPO, "mixture": MIXTURE, "reward-online": ONLINE, "reward": REWARD}


def train(recipe: str, name: str, **changes: Any) -> Any:
    """Train in the working directory, as the command does."""
    loaded = load(recipe, {**RECIPES[recipe], **changes})
    recorded = require_trainer(loaded)
    trainer = make_trainer(loaded, start_run(loaded, name), recorded=recorded)
    try:
        trainer.train()
    finally:
        trainer.close()
    return trainer


def seed_of(recipe: str, env: int, agent: int = 0) -> str:
    """Return the seed of a training env of a run with seed 0."""
    seed = load(recipe, RECIPES[recipe]).recipe.seed
    if recipe == "grid":
        return str(env_seed(rank_seeds(seed, 0)[4], env))
    if recipe == "mixture":
        return str(env_seed(seed_for(seed, ENVS, agent), env))
    own = int(np.random.SeedSequence(seed).generate_state(7)[5])
    return str(env_seed(int(np.random.SeedSequence(own).generate_state(4)[0]), env))


def run_command(message: str, *more: str) -> subprocess.CompletedProcess[str]:
    """Run the command at the end of a message."""
    command = shlex.split(re.findall(r": (millpond train .*)$", message)[-1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    words = [sys.executable, "-m", *command, *more]
    return subprocess.run(words, capture_output=True, text=True, check=False, env=environment)


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# -- what envs return


@pytest.mark.parametrize("backend", ["inline", "threads", "processes"])
@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("field", ["observation", "reward", "final"])
def test_ppo_names_the_env_step_seed_and_worker_of_a_nan(field: str, fast: bool, backend: str) -> None:
    seed = seed_of("grid", 6)
    at = {"observation": 7, "reward": 20, "final": 20}[field]  # in its third episode, and in the second iteration
    options = {"field": field, "at": at, "episode": 2, "culprit": seed}
    with pytest.raises(NonFiniteEnvError) as found:
        train("grid", "nan", **{f"env.options.{name}": value for name, value in options.items()},
              **{"trainer.fast": fast, "vector.backend": backend})  # fmt: skip
    message = str(found.value)
    what = {"observation": "observation (index [2])", "final": "final observation (index [2])"}.get(field, "reward")
    assert message.startswith(
        f"env.id={BROKEN}:Broken: the {what} of env 6 is nan at step {at} of its episode "
        f"(seed {seed}, {40 + at} env steps after it was seeded"
    )
    worker = {"inline": None}.get(backend, "worker 1")
    assert found.value.worker == worker
    assert (worker is None) == ("worker" not in message)
    assert "last good checkpoint: runs/nan/checkpoints/000000000004, after 4 updates" in message
    assert message.endswith("fix the environment, then go on with: millpond train --resume nan")
    assert found.value.exit_code == 1
    status = read_status(Path("runs/nan"))
    assert status.state == "failed"
    assert "env 6" in status.note
    dump = Path("runs/nan/non_finite")
    facts = json.loads((dump / "facts.json").read_text())
    assert facts["cause"] == "env"
    assert (facts["env"], facts["episode_step"], facts["seed"], facts["value"]) == (6, at, int(seed), "nan")
    assert facts["records"]
    batch = load_file(dump / "batch.safetensors")
    bad = {name for name, values in batch.items() if values.is_floating_point() and not values.isfinite().all()}
    assert bad == {"observation": {"observation"}, "reward": {"reward"}}.get(field, bad)
    assert (dump / "config.yaml").read_text() == Path("runs/nan/config.yaml").read_text()


def test_the_command_after_a_nan_of_an_env_resumes_the_run() -> None:
    with pytest.raises(NonFiniteEnvError) as found:
        train("grid", "nan", **{"env.options.field": "reward", "env.options.culprit": seed_of("grid", 6),
                                "env.options.episode": 2})  # fmt: skip
    # The env is random again after a resume, since it cannot save its state: another seed, so no culprit.
    again = run_command(str(found.value))
    assert again.returncode == 0, again.stderr
    assert read_status(Path("runs/nan")).state == "finished"


def test_nan_of_a_part_of_a_dict_names_the_part_and_its_index() -> None:
    options = {"env.id": f"{BROKEN}:BrokenDict", "env.options.culprit": seed_of("grid", 2),
               "env.options.field": "observation"}  # fmt: skip
    with pytest.raises(
        NonFiniteEnvError, match=r"observation \(part 'speed', index \[1, 0\]\) of env 2 is nan at step 7"
    ):
        train("grid", "nan", **options)


def test_nan_at_the_reset_is_named_so() -> None:
    options = {"env.options.at": 0, "env.options.culprit": seed_of("grid", 2), "env.options.field": "observation"}
    with pytest.raises(NonFiniteEnvError, match=r"observation \(index \[2\]\) of env 2 is nan at the reset \(seed"):
        train("grid", "nan", **options)


@pytest.mark.parametrize("field", ["observation", "reward"])
def test_nan_of_one_agent_of_several_names_the_agent(field: str) -> None:
    pytest.importorskip("pettingzoo")
    options = {"env.id": f"{BROKEN}:BrokenPair", "env.num_agents": 2, "env.options.culprit": seed_of("grid", 5)}
    with pytest.raises(NonFiniteEnvError, match=rf"the {field}.* of env 5 for agent 1 is nan at step 7 of its episode"):
        train("grid", "nan", **options, **{"env.options.field": field})


def test_none_in_the_buffers_of_an_own_batch_is_a_nan_of_its_env() -> None:
    options = {"env.id": f"{BROKEN}:make_broken_batch", "env.options.culprit": seed_of("grid", 3)}
    with pytest.raises(
        NonFiniteEnvError, match=r"observation \(index \[0\]\) of env 3 is nan at step 7 of its episode"
    ):
        train("grid", "nan", **options)


@pytest.mark.parametrize("fast", [True, False])
def test_an_error_that_follows_from_a_nan_does_not_hide_it(fast: bool) -> None:
    """With continuous actions the policy sends NaN to the env, which raises."""
    options = {"env.options.continuous": True, "env.options.culprit": seed_of("grid", 2), "trainer.fast": fast}
    with pytest.raises(NonFiniteEnvError, match=r"observation .* of env 2 is nan at step 7 of its episode"):
        train("grid", "nan", **options, **{"env.options.field": "observation"})


def test_infinite_info_of_an_env_is_no_divergence_of_learning() -> None:
    options = {"env.options.culprit": seed_of("grid", 2), "env.options.field": "info"}
    with pytest.raises(NonFiniteError, match=r"env/score = inf\n  an env reported this number in its infos") as found:
        train("grid", "nan", **options)
    assert "learning rate" not in str(found.value)
    assert json.loads(Path("runs/nan/non_finite/facts.json").read_text())["cause"] == "env info"


@pytest.mark.parametrize("field", ["observation", "reward", "final"])
def test_mixture_names_the_env_and_the_agent_it_belongs_to(field: str) -> None:
    at = 20 if field == "final" else 13
    options = {"field": field, "at": at, "culprit": seed_of("mixture", 2, agent=1)}
    with pytest.raises(NonFiniteEnvError) as found:
        train("mixture", "nan", **{f"env.options.{name}": value for name, value in options.items()})
    assert re.match(
        rf".*the .*{field}.* of env 2 of agent1 is nan at step {at} of its episode \(seed", str(found.value)
    )
    assert set(load_file("runs/nan/non_finite/batch.safetensors")) >= {"observation", "reward", "action"}


@pytest.mark.parametrize("field", ["observation", "reward", "final"])
def test_reward_online_names_the_env(field: str) -> None:
    at = 20 if field == "final" else 13
    options = {"field": field, "at": at, "culprit": seed_of("reward-online", 1)}
    with pytest.raises(NonFiniteEnvError) as found:
        train("reward-online", "nan", **{f"env.options.{name}": value for name, value in options.items()})
    assert re.match(rf".*the .*{field}.* of env 1 is nan at step {at} of its episode \(seed", str(found.value))
    assert Path("runs/nan/non_finite/facts.json").is_file()


@pytest.mark.parametrize("backend", ["inline", "threads", "processes"])
@pytest.mark.parametrize(
    ("env", "field", "value", "words"),
    [
        (
            "Broken",
            "observation",
            "none",
            "returned [None, None, None, None] (list) as an observation, which is not in its",
        ),
        ("Broken", "observation", "text", "returned ['0.5', '0.5', '0.5', '0.5'] (list) as an observation"),
        ("Broken", "object", "nan", "(object (4,)) as an observation, which is not in its space Box(-1.0, 1.0, (4,)"),
        ("Broken", "shape", "nan", "(float32 (1,)) as an observation, which is not in its space Box(-1.0, 1.0, (4,)"),
        ("Broken", "reward", "none", "returned the reward None (NoneType), which is not a number"),
        ("Broken", "reward", "text", "returned the reward '0.5' (str), which is not a number"),
        (
            "BrokenDict",
            "observation",
            "none",
            "returned [None, None, None, None] (list) as part 'speed' of an observation",
        ),
        ("BrokenPair", "observation", "none", "returned [None, None, None, None] (list) as an observation"),
        ("BrokenPair", "reward", "none", "returned the reward of agent 'right' None (NoneType), which is not a number"),
    ],
)
def test_what_is_not_a_number_is_refused_with_env_space_and_value(
    env: str, field: str, value: str, words: str, backend: str
) -> None:
    pytest.importorskip("pettingzoo")
    seed = seed_of("grid", 6)
    settings = {"env.id": f"{BROKEN}:{env}", "vector.backend": backend, "env.num_agents": 1 + (env == "BrokenPair")}
    options = {"field": field, "value": value, "culprit": seed}
    with pytest.raises(MillpondError) as found:
        train("grid", "none", **settings, **{f"env.options.{name}": option for name, option in options.items()})
    assert str(found.value).startswith(f"env '{BROKEN}:{env}' ")
    assert words in str(found.value)
    assert str(found.value).endswith(f"(step of env 6: seed {seed}, after 6 env steps)")
    assert found.value.exit_code == 2


def test_delayed_rewards_do_not_delay_a_nan() -> None:
    options = {"env.options.field": "reward", "env.options.culprit": seed_of("grid", 2), "env.episodic": True}
    with pytest.raises(NonFiniteEnvError, match=r"the reward of env 2 is nan at step 7 of its episode"):
        train("grid", "nan", **options)


# -- learning


def assert_explained(error: NonFiniteError, key: str) -> None:
    message = str(error)
    section = key.split(".")[0]
    assert re.search(r"learning diverged in .*update", message)
    assert f"learning rate 1e+18 ({section}.learning_rate=1e+18); gradient norm" in message
    facts = json.loads(Path("runs/nan/non_finite/facts.json").read_text())
    assert facts["cause"] == "learning"
    assert facts["learning_rate"] == 1e18
    assert "updates" in facts["counters"]
    assert "metrics" in facts
    assert Path("runs/nan/non_finite/config.yaml").is_file()
    for updates in Checkpoints(Path("runs/nan/checkpoints")).updates():  # whatever was written can be used
        saved = read_checkpoint(Path(f"runs/nan/checkpoints/{updates:012d}"))
        assert all(
            t.isfinite().all() for part in saved.weights.values() for t in part.values() if t.is_floating_point()
        )
    again = run_command(message)
    assert again.returncode == 0, again.stderr
    assert read_status(Path("runs/nan-2")).state == "finished"


@pytest.mark.parametrize(("minibatch", "fast"), [(128, True), (256, False)])
def test_ppo_that_diverges_names_update_rate_norm_and_ratio_and_its_command_works(minibatch: int, fast: bool) -> None:
    settings = {"ppo.learning_rate": 1e18, "trainer.minibatch_size": minibatch, "trainer.fast": fast}
    with pytest.raises(NonFiniteError, match=r"^iteration 0 .*minibatch \d: (\w+) = (nan|inf)") as found:
        train("grid", "nan", **settings)
    assert "gradient norm of the last finite update (update 1): " in str(found.value)
    assert "clipped to ppo.max_grad_norm=0.5" in str(found.value)
    assert "the largest probability ratio was at least " in str(found.value)
    assert "last good checkpoint: none was written yet" in str(found.value)
    rows = load_file("runs/nan/non_finite/batch.safetensors")
    assert len(rows["rows"]) == len(rows["observation"]) == minibatch // 16
    assert_explained(found.value, "ppo.learning_rate")


@pytest.mark.parametrize("fast", [True, False])
def test_ppo_goes_on_with_the_weights_of_its_last_good_checkpoint(fast: bool) -> None:
    """A reward of 1e30 in the third iteration is finite, but its squared error is not."""
    options = {"field": "reward", "value": "huge", "episode": 4, "culprit": seed_of("grid", 2)}
    settings = {f"env.options.{name}": value for name, value in options.items()}
    with pytest.raises(
        NonFiniteError, match=r"^iteration 2 .*: value_loss = inf\n  learning diverged in update 5"
    ) as found:
        train("grid", "nan", **settings, **{"trainer.fast": fast, "trainer.minibatch_size": 256})
    assert "gradient norm of the last finite update (update 4): " in str(found.value)
    assert "last good checkpoint: runs/nan/checkpoints/000000000004, after 4 updates" in str(found.value)
    assert "millpond train runs/nan/config.yaml --from nan --run nan-2 ppo.learning_rate=0.0001" in str(found.value)
    again = run_command(str(found.value), "trainer.total_iterations=2")  # its envs have the same seeds
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize(
    ("recipe", "key", "who"),
    [
        ("mixture", "pqn.learning_rate", "agent0"),
        ("mixture", "dqn.learning_rate", "the BigAgent"),
        ("reward", "reward.learning_rate", ""),
        ("reward-online", "reward.learning_rate", ""),
        ("reward-online", "agent.learning_rate", "the agent"),
    ],
)
def test_other_kinds_that_diverge_name_their_learner_and_their_command_works(recipe: str, key: str, who: str) -> None:
    with pytest.raises(NonFiniteError) as found:
        train(recipe, "nan", **{key: 1e18})
    assert who in str(found.value)
    assert Path("runs/nan/non_finite/batch.safetensors").is_file() == ("the batch, metrics" in str(found.value))
    assert_explained(found.value, key)


def test_weights_that_no_run_can_go_on_from_are_not_saved() -> None:
    """One update per iteration: the loss is finite, but the weights after it are useless."""
    settings = {"ppo.learning_rate": 1e18, "trainer.update_epochs": 1, "trainer.minibatch_size": 256}
    with pytest.raises(NonFiniteError, match=r"after 1 update, no checkpoint is written: weight policy/") as found:
        train("grid", "nan", **settings)
    assert Checkpoints(Path("runs/nan/checkpoints")).updates() == []
    assert "gradient norm of the last finite update (update 1): " in str(found.value)


def test_dump_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millpond.store.non_finite.MAX_BYTES", 4_000)
    path = save_batch(
        tmp_path, {"observation": torch.zeros(100, 25), "count": torch.arange(100), "one": torch.tensor(3)}
    )
    assert path.stat().st_size < 5_000
    with safe_open(path, "pt") as file:
        cut = json.loads(file.metadata()["cut"])
    assert set(cut) == {"observation", "count"}
    assert cut["observation"][1] == 100
    assert 1 <= cut["observation"][0] < 100


def test_largest_factor_solves_its_equation() -> None:
    for factor in (1.0, 1.5, 20.0, 5_000.0):
        assert largest_factor(factor - 1 - float(np.log(factor))) == pytest.approx(factor, rel=1e-6, abs=1e-6)
