"""The two entry points, how they are switched off, and that switching off changes no results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from millpond import fast
from millpond.envs.spec import ActionSpec, ObservationSpec
from millpond.fast.act import RecurrentActor
from millpond.fast.feedforward import FeedforwardActor
from millpond.fast.gemm import SGEMM
from millpond.fast.update import FastUpdater
from millpond.policies import Policy, build_policy
from millpond.rollout.collector import PolicyActor
from millpond.trainers.ppo.update import Updater
from tests.support.ppo_runs import train_small
from tests.support.records import records

VECTOR = ObservationSpec.single((4,), "float32", "vector")


class Custom(Policy):
    """Acts in its own way."""

    def act(self, *arguments: Any, **named: Any) -> Any:
        return super().act(*arguments, **named)


def test_torch_exports_its_blas() -> None:
    assert SGEMM, "torch no longer exports sgemm_; runs still work, in plain PyTorch"


def test_custom_policy_gets_no_actor_but_an_updater() -> None:
    policy = build_policy(VECTOR, ActionSpec.discrete(3), hidden_size=16)
    custom = Custom(policy.encoder, policy.core, policy.head, 16)  # type: ignore[arg-type]
    assert fast.actor(policy) is not None
    assert fast.actor(custom) is None
    assert fast.updater(custom) is not None
    assert fast.actor(policy.double()) is None
    assert fast.updater(policy) is None


def test_environment_variable_switches_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = build_policy(VECTOR, ActionSpec.discrete(3), hidden_size=16)
    monkeypatch.setenv("MILLPOND_FAST", "0")
    assert fast.actor(policy) is None
    assert fast.updater(policy) is None
    assert "MILLPOND_FAST=0" in fast.description()


PONG = {
    "env.frame_stack": 4,
    "trainer.num_envs": 8,
    "trainer.batch_size": 64,
    "trainer.minibatch_size": 32,
    "ppo.adam_eps": 1e-3,  # a small one turns rounding errors of tiny gradients into whole steps
}


@pytest.mark.parametrize("core", ["lstm", "gru", "mingru", "none"])
@pytest.mark.parametrize(
    "env",
    ["grid", "gymnasium:CartPole-v1", "gymnasium:Pendulum-v1", "minatar:breakout", "atari:pong"],
    ids=["grid", "CartPole", "Pendulum", "Breakout", "Pong"],
)
def test_first_updates_are_the_same_without_it(tmp_path: Path, env: str, core: str) -> None:
    settings: dict[str, Any] = {"policy.core": core, "policy.hidden_size": 32, "trainer.total_iterations": 2}
    if env != "grid":
        settings["env.id"] = env
    if env == "atari:pong":
        settings |= PONG
    runs = [train_small(tmp_path, f"fast-{on}", **settings, **{"trainer.fast": on}) for on in (True, False)]
    compiled, plain = runs
    assert isinstance(compiled.updater, FastUpdater)
    assert isinstance(compiled.collector.actor, RecurrentActor) == (core in ("lstm", "gru"))
    on_vectors = env.startswith("gymnasium:")
    assert isinstance(compiled.collector.actor, FeedforwardActor) == (core == "none" and on_vectors)
    assert isinstance(plain.updater, Updater)
    assert isinstance(plain.collector.actor, PolicyActor)
    assert compiled.counters.updates == plain.counters.updates >= 4
    for name in ("observation", "action", "reward", "log_prob", "value"):
        ours, theirs = compiled.rows[name], plain.rows[name]
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-5, err_msg=name)
    for one, other in zip(compiled.policy.parameters(), plain.policy.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    for one, other in zip(*(records(run.run.metrics_path.parent) for run in runs), strict=True):
        if env == "atari:pong":  # nobody scores so early: the variance of returns, a denominator, is nearly 0
            assert one.pop("explained_variance") == pytest.approx(other.pop("explained_variance"), rel=1e-3)
        assert one == pytest.approx(other, rel=1e-5, abs=1e-5)
