"""`vector.backend=auto` of a run: measured, stored with the run, reused on resume, and without effect on results."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from millpond.config import PPORecipe, load
from millpond.cpu import usable_cores
from millpond.distributed import Ranks
from millpond.planner.planned import share_of_rank
from millpond.planner.remembered import RememberedBackend, remembered_path, with_remembered
from millpond.store import RunError
from millpond.trainers.common.backend import keeping_random_state
from millpond.trainers.common.session import begin_on_all_ranks, resume_run, start_run
from millpond.trainers.mixture.trainer import MixtureTrainer
from millpond.trainers.ppo.trainer import PPOTrainer
from millpond.trainers.reward.trainer import RewardTrainer
from tests.support.mixture_runs import SMALL as MIXTURE
from tests.support.ppo_runs import SMALL, train_small
from tests.support.rank_processes import run_ranks

CARTPOLE = {"env.id": "gymnasium:CartPole-v1", "env.num_agents": 1}
# Settings of small runs of the other kinds.
OTHERS: dict[str, dict[str, Any]] = {
    "mixture": MIXTURE | {"mixture.total_frames": 256, "mixture.collections_per_round": 2},
    "reward": {
        "env.max_steps": 20,
        "reward.epochs": 1,
        "reward.cycles": 1,
        "reward.iterations": 2,
        "reward.train_batches": 3,
        "reward.hidden_size": 16,
        "reward.steps_per_episode": 8,
        "agent.num_envs": 4,
        "agent.warmup_steps": 45,
        "agent.steps_per_iteration": 7,
        "agent.batch_size": 16,
        "agent.replay_transitions": 400,
        "agent.test_episodes": 1,
        "log.tensorboard": False,
    },
}
MEASURES = ("policy_loss", "value_loss", "entropy", "grad_norm", "episode_return", "eval/episode_return")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def records(root: Path, name: str) -> list[dict[str, float]]:
    lines = (root / name / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key in MEASURES} for line in lines]


def stored(root: Path, name: str) -> dict[str, Any]:
    return dict(json.loads((root / name / "vector.json").read_text()))


def test_choice_is_stored_with_the_run_and_remembered_for_others(tmp_path: Path) -> None:
    trainer = train_small(tmp_path, "pond", **CARTPOLE)
    chosen = stored(tmp_path, "pond")
    assert (chosen["backend"], chosen["num_workers"]) == (trainer.vector.backend, trainer.vector.num_workers)
    assert trainer.vector.reason == chosen["reason"]
    assert chosen["reason"].startswith("measured: 3 envs of a group step in ")
    assert f"vector: {chosen['backend']}; measured: 3 envs" in " ".join(" ".join(trainer.opening()).split())
    content = json.loads(remembered_path().read_text())
    (remembered,) = content["choices"].values()
    remembered["reason"] = "measured: changed"
    remembered_path().write_text(json.dumps(content))
    assert train_small(tmp_path, "second", **CARTPOLE).vector.reason == "measured: changed"


def test_env_that_burns_time_gets_processes(tmp_path: Path) -> None:
    sizes = {"trainer.num_envs": 32, "trainer.batch_size": 256, "trainer.total_iterations": 1, "eval.episodes": 1}
    trainer = train_small(tmp_path, "pond", **sizes, **{"env.id": "tests.support.custom_envs:Burning"})
    several_cores = trainer.ranks.place.cores > 1
    assert trainer.vector.backend == ("processes" if several_cores else "inline")


def test_auto_gives_the_results_of_a_configured_backend(tmp_path: Path) -> None:
    train_small(tmp_path, "auto", **CARTPOLE)
    train_small(tmp_path, "inline", **CARTPOLE, **{"vector.backend": "inline"})
    assert records(tmp_path, "auto") == records(tmp_path, "inline")
    assert not (tmp_path / "inline" / "vector.json").exists()


@pytest.mark.parametrize(("backend", "workers", "own"), [("inline", 1, 0), ("threads", 2, 0), ("processes", 1, 2)])
def test_resume_reuses_the_choice(tmp_path: Path, backend: str, workers: int, own: int) -> None:
    settings = {**SMALL, "run_dir": str(tmp_path), "trainer.total_iterations": 2}
    loaded = load("grid", settings)
    run = start_run(loaded, "pond")
    chosen = {"backend": backend, "num_workers": workers, "reason": "measured: once", "trainer_envs": own}
    run.vector_path.write_text(json.dumps(chosen))
    run.resumed = True
    trainer = PPOTrainer(loaded, run)
    try:
        assert (trainer.vector.backend, trainer.vector.num_workers) == (backend, workers)
        assert trainer.vector.reason == "as chosen when the run started, measured: once"
        trainer.train()
    finally:
        trainer.close()
    assert stored(tmp_path, "pond") == chosen
    loaded, run = resume_run("pond", ["trainer.total_iterations=4"], str(tmp_path))
    trainer = PPOTrainer(loaded, run)  # the state of the envs is loaded into as many workers
    try:
        assert (trainer.vector.backend, trainer.vector.num_workers) == (backend, workers)
        last_env = trainer.vector.num_envs - 1
        assert (trainer.vector.worker_of(last_env) == "stepped by the trainer") == (own > 0)
        trainer.train()
    finally:
        trainer.close()
    straight = train_small(tmp_path, "straight", **{"vector.backend": "inline"})
    assert records(tmp_path, "pond") == records(tmp_path, "straight")
    assert straight.loop.done


def reason_on_rank(ranks: Ranks, root: Path) -> str:
    """Return the reason of a rank's vector; only the cache of rank 0 knows a choice."""
    os.environ["XDG_CACHE_HOME"] = str(root / f"cache-{ranks.rank}")
    sizes = {
        "trainer.num_workers": 2,
        "trainer.num_envs": 12,
        "trainer.batch_size": 8 * 32,
        "trainer.minibatch_size": 128,
    }
    loaded = load("grid", {**SMALL, **sizes, "run_dir": str(root)})
    if ranks.first:
        share = share_of_rank(loaded, ranks.count).recipe
        assert isinstance(share, PPORecipe)
        content = with_remembered(share, RememberedBackend("inline", 1, "measured: by rank 0"), ranks.count)
        remembered_path().parent.mkdir(parents=True)
        remembered_path().write_text(json.dumps(content))
    loaded, run = begin_on_all_ranks(ranks, lambda: (loaded, start_run(loaded, "pond", ranks=ranks.count)))
    trainer = PPOTrainer(loaded, run, ranks=ranks)
    try:
        return trainer.vector.reason
    finally:
        trainer.close()


def test_all_ranks_use_the_choice_of_rank_0(tmp_path: Path) -> None:
    assert run_ranks(2, reason_on_rank, tmp_path) == ["measured: by rank 0"] * 2


def test_damaged_choice_of_a_resumed_run_is_an_error(tmp_path: Path) -> None:
    train_small(tmp_path, "pond", **{"trainer.total_iterations": 1})
    (tmp_path / "pond" / "vector.json").write_text('{"backend": "gpu", "num_workers": 1, "reason": ""}')
    loaded, run = resume_run("pond", ["trainer.total_iterations=2"], str(tmp_path))
    try:
        with pytest.raises(RunError, match=r"vector.json does not hold .*backend='gpu' is not one of"):
            PPOTrainer(loaded, run)
    finally:
        run.close()


def test_run_without_a_stored_choice_is_resumed_as_earlier_versions_chose(tmp_path: Path) -> None:
    train_small(tmp_path, "pond", **CARTPOLE, **{"trainer.total_iterations": 1, "vector.backend": "inline"})
    config = tmp_path / "pond" / "config.yaml"
    config.write_text(config.read_text().replace("backend: inline", "backend: auto"))
    loaded, run = resume_run("pond", ["trainer.total_iterations=2"], str(tmp_path))
    trainer = PPOTrainer(loaded, run)
    try:
        assert trainer.vector.backend == "inline"
        assert "one worker was requested" in trainer.vector.reason or "there is one core" in trainer.vector.reason
    finally:
        trainer.close()
    assert not run.vector_path.exists()


def test_global_generators_are_as_before() -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.random()), float(torch.rand(()))  # noqa: NPY002

    random.seed(1)
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    with keeping_random_state():
        inside = draw()
    assert draw() == inside


def trained(kind: str, root: Path, name: str, **changes: Any) -> Any:
    """Train a small run that is not PPO's, and return its closed trainer with the vectors that it had."""
    loaded = load(
        {"mixture": "mixture", "reward": "reward-online"}[kind], {**OTHERS[kind], "run_dir": str(root), **changes}
    )
    return finished(loaded, start_run(loaded, name))


def finished(loaded: Any, run: Any) -> Any:
    trainer = (MixtureTrainer if loaded.recipe.kind == "mixture" else RewardTrainer)(loaded, run)
    try:
        trainer.train()
    finally:
        trainer.close()
    return trainer


def without_times(root: Path, name: str) -> list[dict[str, Any]]:
    lines = (root / name / "metrics.jsonl").read_text().splitlines()
    times = ("seconds", "time/", "per_second", "lake/bytes", "TimeCost")
    return [{k: v for k, v in json.loads(line).items() if not any(part in k for part in times)} for line in lines]


def vector_of(trainer: Any) -> Any:
    return next(iter(trainer.players.vectors.values())) if isinstance(trainer, MixtureTrainer) else trainer.agent.vector


@pytest.mark.parametrize("kind", ["mixture", "reward"])
def test_other_kinds_measure_too_and_reuse_their_choice(tmp_path: Path, kind: str) -> None:
    trainer = trained(kind, tmp_path, "pond")
    chosen, vector = stored(tmp_path, "pond"), vector_of(trainer)
    assert (chosen["backend"], chosen["num_workers"]) == (vector.backend, vector.num_workers)
    if usable_cores() > 1:
        assert chosen["reason"].startswith("measured: ") or "need more than" in chosen["reason"]
    assert " ".join(chosen["reason"].split()) in " ".join(" ".join(trainer.opening()).split())
    trained(kind, tmp_path, "inline", **{"vector.backend": "inline"})
    assert without_times(tmp_path, "pond") == without_times(tmp_path, "inline")
    assert not (tmp_path / "inline" / "vector.json").exists()
    longer = {"mixture": "mixture.total_frames=512", "reward": "reward.epochs=2"}[kind]
    resumed = finished(*resume_run("pond", [longer], str(tmp_path)))
    assert vector_of(resumed).reason == f"as chosen when the run started, {chosen['reason']}"
