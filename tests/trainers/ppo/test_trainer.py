"""PPO end to end: a run matches its plan, learns, and resumes bit for bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import millpond
from millpond.config import load
from millpond.planner import PPOPlan
from millpond.store import Checkpoints
from millpond.trainers.common.policy import load_policy
from millpond.trainers.common.session import resume_run, start_run
from millpond.trainers.ppo.trainer import PPOTrainer
from tests.support.ppo_runs import SMALL, train_small
from tests.support.records import records

CARTPOLE = {"env.id": "gymnasium:CartPole-v1", "env.num_agents": 1, "env.stagger": False}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    checkpoints = Checkpoints(folder / "checkpoints")
    found = load_file(next(checkpoints.path(checkpoints.updates()[-1]).glob("*.safetensors")))
    return {name: tensor for name, tensor in found.items() if "policy" in name or "." in name}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"trainer.batch_unit": "agent_steps"},  # 16 rows: less than one round of 18
        {"trainer.batch_unit": "agent_steps", "trainer.batch_size": 8 * 40},  # 2 rounds and 4 rows, 2 envs, 2 surplus
        {"ppo.sampling": "prioritized", "ppo.prio_alpha": 0.8, "ppo.advantage": "vtrace"},
        {"trainer.max_minibatch_size": 8 * 4, "policy.core": "gru"},
        {"policy.core": "none", "ppo.lr_schedule": "linear", "vector.backend": "processes", "trainer.num_workers": 2},
        {"policy.separate_critic": True, "ppo.normalize_values": True, "ppo.normalize_advantage": "minibatch"},
        {"ppo.style": "puffer", "trainer.max_minibatch_size": 8 * 4},
    ],
)
def test_run_matches_its_plan(tmp_path: Path, changes: dict[str, Any]) -> None:
    trainer = train_small(tmp_path, "pond", **changes)
    plan = trainer.plan
    assert isinstance(plan, PPOPlan)
    found = records(tmp_path / "pond")
    assert len(found) == plan.iterations == 4
    last = found[-1]
    assert last["updates"] == plan.total_gradient_updates
    assert last["env_steps"] == plan.total_env_steps
    assert last["agent_steps"] == plan.total_env_steps * plan.num_agents
    assert last["frames"] == last["env_steps"]
    assert trainer.rows.nbytes == plan.buffer_bytes
    assert found[0]["updates"] == plan.gradient_updates
    assert found[0]["env_steps"] == plan.env_steps
    assert json.loads((tmp_path / "pond" / "plan.json").read_text())["gradient_updates"] == plan.gradient_updates
    names = {"policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "explained_variance", "grad_norm",
             "reward_per_agent_step", "episode_return", "episode_length"}  # fmt: skip
    assert names <= set(found[-1])


@pytest.mark.parametrize(("core", "plain"), [("gru", True), ("none", False)])
def test_a_separate_critic_that_trains_in_plain_pytorch_is_named_at_the_start_and_in_the_plan(
    tmp_path: Path, core: str, plain: bool
) -> None:
    changes = {**CARTPOLE, "policy.core": core, "policy.separate_critic": True, "trainer.total_iterations": 1}
    trainer = train_small(tmp_path, "pond", **changes)
    said = " ".join(" ".join(trainer.opening()).split())
    assert ("training: plain PyTorch; on the CPU a separate critic trains in compiled code only" in said) == plain
    advice = millpond.plan(CARTPOLE["env.id"], {"policy.core": core, "policy.separate_critic": True}).advice
    assert ("separate critic" in {one.topic for one in advice}) == plain


def test_traces_over_rows_change_advantages_only_where_a_row_goes_on(tmp_path: Path) -> None:
    """With lambda 0 there are no traces, and rows are estimated alike; with 0.9 they are not."""
    rounds = {
        **CARTPOLE,
        "trainer.batch_unit": "agent_steps",
        "trainer.total_iterations": 1,
        "trainer.batch_size": 8 * 48,
    }
    found = {}
    for lam in (0.0, 0.9):
        for end in ("row", "iteration"):
            changes = {**rounds, "ppo.gae_lambda": lam, "ppo.trace_end": end, "ppo.learning_rate": 1e-9}
            trainer = train_small(tmp_path, f"{end}-{lam}", **changes)
            assert (trainer.rows.following >= 0).any()
            found[lam, end] = trainer.rows["advantage"].clone()
    assert torch.equal(found[0.0, "row"], found[0.0, "iteration"])
    assert not torch.equal(found[0.9, "row"], found[0.9, "iteration"])


def test_first_update_is_on_policy(tmp_path: Path) -> None:
    """Before the first optimiser step the unrolled policy is the one that acted: no divergence, nothing clipped."""
    trainer = train_small(
        tmp_path,
        "pond",
        **{"trainer.total_iterations": 1, "trainer.update_epochs": 1, "trainer.minibatch_size": 8 * 16},
    )
    first = records(tmp_path / "pond")[0]
    assert trainer.counters.updates == 1
    assert first["approx_kl"] == pytest.approx(0.0, abs=1e-8)
    assert first["clip_fraction"] == 0.0
    assert first["entropy"] == pytest.approx(np.log(5), abs=0.01)


def test_rows_are_trained_with_the_normalizer_statistics_of_their_collection(tmp_path: Path) -> None:
    """With normalised observations and one update per iteration, every update is on policy, not only the first."""
    one_update = {"trainer.update_epochs": 1, "trainer.minibatch_size": 8 * 16, "ppo.learning_rate": 0.05}
    trainer = train_small(
        tmp_path, "pond", **one_update, **CARTPOLE, **{"policy.normalize_observations": True, "eval.interval": None}
    )
    found = records(tmp_path / "pond")
    assert len(found) == trainer.counters.updates == 4
    assert [record["approx_kl"] for record in found] == pytest.approx([0.0] * 4, abs=1e-7)
    counts = [float(tensor) for name, tensor in trainer.policy.state_dict().items() if name.endswith("count")]
    assert counts == [trainer.counters.agent_steps], "every step was counted once"


@pytest.mark.parametrize("changes", [{}, {"ppo.normalize_advantage": "minibatch", "ppo.normalize_values": True}])
def test_micro_batches_do_not_change_the_result(tmp_path: Path, changes: dict[str, Any]) -> None:
    train_small(tmp_path, "whole", **changes)
    train_small(tmp_path, "parts", **changes, **{"trainer.max_minibatch_size": 8 * 2})
    for name, tensor in weights(tmp_path / "whole").items():
        torch.testing.assert_close(weights(tmp_path / "parts")[name], tensor, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("core", ["lstm", "none"])
@pytest.mark.parametrize("fast", [True, False])
def test_normalised_values_learn_alike_in_every_unit_of_the_rewards(tmp_path: Path, core: str, fast: bool) -> None:
    """In powers of two nothing is rounded differently but by the terms 1e-8 of Adam and of the advantages' deviation."""
    same = {**CARTPOLE, "policy.core": core, "ppo.normalize_values": True, "trainer.fast": fast, "eval.interval": None}
    units = {"one": 1.0, "tiny": 2.0**-10, "huge": 2.0**10}
    for name, unit in units.items():
        train_small(tmp_path, name, **same, **{"env.reward_scale": unit})
    one = records(tmp_path / "one")
    learned = weights(tmp_path / "one")
    for name in ("tiny", "huge"):
        for ours, theirs in zip(records(tmp_path / name), one, strict=True):
            for metric in ("policy_loss", "value_loss", "entropy", "grad_norm", "explained_variance", "episode_length"):
                assert ours.get(metric) == pytest.approx(theirs.get(metric), rel=1e-3, abs=1e-4), metric
        for key, tensor in weights(tmp_path / name).items():
            if "value_scale" not in key:
                torch.testing.assert_close(tensor, learned[key], rtol=1e-3, atol=1e-4)


def test_learning_rate_ends_at_its_floor(tmp_path: Path) -> None:
    """Four iterations: the last begins at three quarters of the way."""
    trainer = train_small(
        tmp_path, "pond", **{"ppo.lr_schedule": "linear", "ppo.min_lr_ratio": 0.2, "ppo.learning_rate": 1e-3}
    )
    assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(1e-3 * (0.2 + 0.8 * 0.25))


def test_target_kl_ends_an_iteration_early(tmp_path: Path) -> None:
    trainer = train_small(
        tmp_path, "pond", **{"ppo.target_kl": 1e-9, "trainer.update_epochs": 5, "ppo.learning_rate": 1e-2}
    )
    assert trainer.plan.iterations <= trainer.counters.updates < trainer.plan.total_gradient_updates
    assert records(tmp_path / "pond")[-1]["env_steps"] == trainer.plan.total_env_steps


def test_same_seed_gives_the_same_run(tmp_path: Path) -> None:
    for name in ("one", "two"):
        train_small(tmp_path, name)
    assert records(tmp_path / "one") == records(tmp_path / "two")
    train_small(tmp_path, "other", seed=2)
    assert records(tmp_path / "one") != records(tmp_path / "other")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"trainer.batch_unit": "agent_steps", "trainer.batch_size": 8 * 40},
        {"policy.core": "gru"},
        {"policy.core": "none", "env.id": "truncation", "policy.normalize_observations": True},  # compiled throughout
        {"ppo.normalize_values": True, "ppo.normalize_advantage": "minibatch"},
        {"ppo.normalize_values": True, "policy.separate_critic": True, "policy.core": "none"},
        {"ppo.style": "puffer", "ppo.optimizer": "muon", "ppo.prio_beta0": 1.0},  # no schedule depends on the length
    ],
)
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_stopped_run_resumes_bit_for_bit(tmp_path: Path, cut: int, changes: dict[str, Any]) -> None:
    train_small(tmp_path, "uncut", **changes)
    train_small(tmp_path, "cut", **{**changes, "trainer.total_iterations": cut})
    loaded, run = resume_run("cut", ["trainer.total_iterations=4"], str(tmp_path))
    trainer = PPOTrainer(loaded, run)
    try:
        trainer.train()
    finally:
        trainer.close()
    cut_records, uncut_records = records(tmp_path / "cut"), records(tmp_path / "uncut")
    for ours, theirs in zip(cut_records, uncut_records, strict=True):
        shared = {key for key in ours if not key.startswith("eval/")}  # the end of the first run was evaluated too
        assert {key: ours[key] for key in shared} == {key: theirs[key] for key in shared}
    for name, tensor in weights(tmp_path / "uncut").items():
        assert torch.equal(weights(tmp_path / "cut")[name], tensor), name


def command(root: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "millpond", "train", *arguments, f"run_dir={root}"]


# Enough agents and rows for two threads in acting and in learning.
WIDE = {"trainer.num_envs": 48, "trainer.batch_size": 8 * 96, "trainer.minibatch_size": 8 * 48}


@pytest.mark.parametrize(("threads", "sizes"), [("1", {}), ("2", WIDE)])
def test_killed_run_resumes_bit_for_bit(tmp_path: Path, threads: str, sizes: dict[str, Any]) -> None:
    """kill -9 of the real command at a random moment, through the real files."""
    settings = [f"{key}={value}" for key, value in {**SMALL, **sizes, "trainer.total_iterations": 12}.items()]
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    subprocess.run(
        command(tmp_path, "grid", *settings, "--run", "uncut"), check=True, capture_output=True, env=environment
    )
    process = subprocess.Popen(
        command(tmp_path, "grid", *settings, "--run", "cut"), stdout=subprocess.DEVNULL, env=environment
    )
    while len(Checkpoints(tmp_path / "cut" / "checkpoints").updates()) < 3:
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(records(tmp_path / "cut")) < 12
    done = subprocess.run(
        [sys.executable, "-m", "millpond", "train", "--resume", str(tmp_path / "cut")],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert records(tmp_path / "cut") == records(tmp_path / "uncut")
    for name, tensor in weights(tmp_path / "uncut").items():
        assert torch.equal(weights(tmp_path / "cut")[name], tensor), name


def test_continuous_actions_are_clipped_for_the_env_and_stored_unclipped(tmp_path: Path) -> None:
    """Pendulum takes torques in -2..2; a wide normal distribution draws others."""
    loaded = load(
        "grid",
        {
            **{key: value for key, value in SMALL.items() if not key.startswith("env.")},
            "run_dir": str(tmp_path),
            "env.id": "gymnasium:Pendulum-v1",
            "env.num_agents": 1,
            "env.stagger": False,
            "env.max_steps": None,
            "trainer.total_iterations": 1,
            "eval.interval": None,
        },
    )
    trainer = PPOTrainer(loaded, start_run(loaded, "pond"))
    try:
        with torch.no_grad():
            trainer.policy.get_parameter(
                next(n for n, _ in trainer.policy.named_parameters() if "deviation" in n)
            ).fill_(2.0)
        trainer.train()
    finally:
        trainer.close()
    assert float(trainer.rows["action"].abs().max()) > 2.0
    assert records(tmp_path / "pond")[0]["approx_kl"] < 1.0
    loaded_policy = load_policy(str(tmp_path / "pond"))
    drawn, _ = loaded_policy.act(np.zeros((100, 3), np.float32), deterministic=False)
    assert float(drawn.abs().max()) == 2.0, "whoever acts with a run's policy is given what the env takes"


KILLED = {
    "trainer.num_workers": 2,
    "trainer.num_envs": 8,
    "trainer.batch_size": 8 * 8,
    "trainer.minibatch_size": 8 * 4,
    "vector.backend": "processes",
    "vector.on_crash": "restart",
}


def test_run_continues_without_the_steps_of_a_killed_worker(tmp_path: Path) -> None:
    """on_crash=restart, with a real worker process that is killed in the middle of collection."""
    loaded = load("grid", {**SMALL, **KILLED, "run_dir": str(tmp_path)})
    trainer = PPOTrainer(loaded, start_run(loaded, "pond"))
    trained: list[int] = []
    kept = trainer.collector.finish
    sent = iter(range(10_000))
    send = trainer.vector.send

    def finish() -> None:
        trained.append(int(trainer.rows["alive"][: trainer.plan.segments].sum()))
        kept()

    def killing_send(actions: Any = None) -> None:
        if next(sent) == 25:  # in the second of the four iterations
            os.kill(trainer.vector.pids[1], signal.SIGKILL)
        send(actions)

    trainer.collector.finish = finish  # type: ignore[method-assign]
    trainer.vector.send = killing_send  # type: ignore[method-assign]
    try:
        trainer.train()
        restarts = trainer.vector.restarts.copy()
    finally:
        trainer.close()
    plan, found = trainer.plan, records(tmp_path / "pond")
    assert restarts.tolist() == [0, 0, 1, 1] * 2, "each of two groups has two envs of the worker that died"
    assert [record["updates"] for record in found] == [plan.gradient_updates * n for n in (1, 2, 3, 4)]
    assert [record["agent_steps"] for record in found] == [plan.agent_steps * n for n in (1, 2, 3, 4)]
    dropped = [int(record.get("dropped_agent_steps", 0)) for record in found]
    assert dropped[1] > 0
    assert dropped[0] == dropped[2] == dropped[3] == 0
    assert trained == [plan.agent_steps - lost for lost in dropped], "trained, or dropped and counted"
    assert all(np.isfinite(value) for record in found for value in record.values())
