"""Policies without memory on vectors: compiled acting and gradients against plain torch."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from millpond import fast
from millpond.envs.spec import ActionSpec, ObservationSpec
from millpond.fast import feedforward
from millpond.fast.feedforward import FeedforwardActor, FeedforwardRows, is_compiled_feedforward
from millpond.fast.ppo_loss import loss_arguments
from millpond.losses import Coefficients, Scale
from millpond.policies import Policy, build_policy
from millpond.rollout.micro_batch import gather
from millpond.threads import torch_threads
from millpond.trainers.ppo.update import Updater
from tests.support.ppo_runs import train_small
from tests.support.records import records
from tests.support.update_rows import (
    HIDDEN,
    ROWS,
    SPEC,
    WEIGHT,
    fast_updater,
    gradients_of,
    in_float64,
    random_rows,
    set_value_scale,
)

CPU = torch.device("cpu")
COEFFICIENTS = Coefficients(0.2, 0.1, 0.5, 0.02, 0.5)
ACTIONS = {
    "one": ActionSpec.discrete(4),
    "several": ActionSpec.multidiscrete((3, 2)),
    "vector": ActionSpec.continuous((-1.0, -2.0), (1.0, float("inf"))),
}


def make_policy(action: ActionSpec, normalize: bool = False, separate_critic: bool = False) -> Policy:
    """Return a policy that normalises observations and values, or neither."""
    generator = torch.Generator().manual_seed(0)
    policy = build_policy(
        SPEC,
        action,
        core="none",
        hidden_size=HIDDEN,
        normalize_observations=normalize,
        normalize_values=normalize,
        separate_critic=separate_critic,
        generator=generator,
    )
    with torch.no_grad():
        policy.output.weight.mul_(20.0 if action.sizes else 1.0)  # far from uniform
        if not action.sizes:
            policy.head.log_deviation.copy_(torch.tensor([0.2, -0.3]))  # type: ignore[union-attr,operator]
    if normalize:  # some numbers are beyond the clip range
        with torch.no_grad():
            policy.value_layer.weight[-1].normal_(generator=generator)
        set_value_scale(policy, 1.5, 0.7)
        policy.update_normalizer(
            torch.randn(200, 5, generator=generator) * torch.tensor([0.1, 1.0, 2.0, 0.5, 3.0]) + 0.3
        )
    return policy


@pytest.mark.parametrize("gathered", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("value_trains", ["all", "its layer", "its network"])
@pytest.mark.parametrize(("action", "masked"), [("one", False), ("one", True), ("several", True), ("vector", False)])
def test_gradients_equal_plain_torch_in_float64(
    action: str,
    masked: bool,
    value_trains: str,
    normalize: bool,
    gathered: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In blocks that do not divide the steps, in two threads, from rows or from a gathered micro-batch."""
    monkeypatch.setattr(feedforward, "FEEDFORWARD_BLOCK", 50)
    monkeypatch.setattr("millpond.fast.update.MIN_FEEDFORWARD_STEPS_PER_THREAD", 24)
    policy = make_policy(ACTIONS[action], normalize, separate_critic=value_trains == "its network")
    policy.value_trains_core = value_trains != "its layer"
    coefficients = replace(COEFFICIENTS, value_scale=Scale(1.5, 0.7)) if normalize else COEFFICIENTS
    assert is_compiled_feedforward(policy)
    rows, advantages = random_rows(ACTIONS[action], masked, SPEC, HIDDEN, 0)
    everything, valid_steps = torch.arange(ROWS), rows["alive"].sum()
    exact, updater = copy.deepcopy(policy).double(), fast_updater(policy)
    micro_batch = gather(rows, advantages, everything, WEIGHT, CPU)
    with torch_threads(2):
        if gathered:
            halves = [micro_batch.some(slice(0, 8)), micro_batch.some(slice(8, None))]
            shares = updater.backward_of(halves, coefficients, valid_steps)
        else:
            shares = updater.backward(rows, advantages, everything, WEIGHT, coefficients, valid_steps)
    assert len(shares) == 2
    exact_steps = torch.tensor(float(valid_steps), dtype=torch.float64)
    (expected,) = Updater(exact, device=CPU).backward_of([in_float64(micro_batch)], coefficients, exact_steps)
    for ours, theirs in zip(gradients_of(policy), gradients_of(exact), strict=True):
        assert ours is not None
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-6)
    for name, metric in expected.items():
        assert sum(float(share[name]) for share in shares) == pytest.approx(float(metric), rel=1e-4, abs=1e-6), name


def test_micro_batches_add_up_to_the_minibatch() -> None:
    policy = make_policy(ACTIONS["one"])
    rows, advantages = random_rows(ACTIONS["one"], False, SPEC, HIDDEN, 0)
    updater, steps = fast_updater(policy), rows["alive"].sum()
    updater.backward(rows, advantages, torch.arange(ROWS), WEIGHT, COEFFICIENTS, steps)
    whole = [gradient.clone() for gradient in gradients_of(policy) if gradient is not None]
    for parameter in policy.parameters():
        parameter.grad = None
    for some in (slice(0, 4), slice(4, ROWS)):
        updater.backward(rows, advantages, torch.arange(ROWS)[some], WEIGHT[some], COEFFICIENTS, steps)
    for one, other in zip(whole, gradients_of(policy), strict=True):
        assert other is not None
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_row_that_does_not_exist_is_refused() -> None:
    rows, advantages = random_rows(ACTIONS["one"], False, SPEC, HIDDEN, 0)
    updater = fast_updater(make_policy(ACTIONS["one"]))
    with pytest.raises(IndexError):
        updater.backward(rows, advantages, torch.tensor([ROWS]), WEIGHT[:1], COEFFICIENTS, torch.tensor(1))


@pytest.mark.parametrize("action", ACTIONS)
def test_nan_in_a_weight_spreads_to_losses_gradients_and_values(action: str) -> None:
    policy = make_policy(ACTIONS[action])
    with torch.no_grad():
        policy.encoder.bias[3] = float("nan")
    rows, advantages = random_rows(ACTIONS[action], False, SPEC, HIDDEN, 0)
    (metrics,) = fast_updater(policy).backward(
        rows, advantages, torch.arange(ROWS), WEIGHT, COEFFICIENTS, torch.tensor(1)
    )
    assert metrics["value_loss"].isnan()
    assert all(bool(gradient.isnan().any()) for gradient in gradients_of(policy) if gradient is not None)
    actor = fast.actor(policy)
    assert actor is not None
    assert actor.value(np.ones((2, 5), np.float32), policy.initial_state(2)).isnan().all()


@pytest.mark.parametrize("separate_critic", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("action", "masked"), [("one", True), ("several", False), ("several", True), ("vector", False)]
)
def test_actor_acts_as_the_policy(
    action: str, masked: bool, threads: int, normalize: bool, separate_critic: bool
) -> None:
    policy, batch = make_policy(ACTIONS[action], normalize, separate_critic), 70
    actor = fast.actor(policy)
    assert isinstance(actor, FeedforwardActor)
    draw, state = torch.Generator().manual_seed(1), policy.initial_state(batch)
    for step in range(3):
        if normalize:
            policy.update_normalizer(torch.randn(50, 5, generator=draw))
            policy.update_value_scale(torch.randn(50, generator=draw), torch.ones(50, dtype=torch.bool))
        actor.freeze_weights()
        observation = 3 * torch.randn(batch, 5, generator=draw)
        mask = torch.rand(batch, sum(ACTIONS[action].sizes), generator=draw) < 0.7 if masked else None
        with torch_threads(threads):
            expected = policy.act(observation, state, action_mask=mask, generator=torch.Generator().manual_seed(step))
            arrays = observation.numpy(), state, None if mask is None else mask.numpy()
            acted = actor.act(*arrays, torch.Generator().manual_seed(step))
            value = actor.value(observation.flip(0).numpy(), state)  # leaves the results of `act` as they are
        for ours, plain in zip(acted, (expected.action, expected.log_prob, expected.value), strict=True):
            np.testing.assert_allclose(ours, plain.numpy(), rtol=1e-5, atol=5e-6)
        torch.testing.assert_close(value, expected.value.flip(0), rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize(
    "observation",
    [
        ObservationSpec.single((5,), "uint8", "vector"),
        ObservationSpec.packed([("a", "vector", (3,), "float32"), ("b", "vector", (2,), "float32")]),
        ObservationSpec.single((16, 3), "uint8", "tokens"),
    ],
    ids=["bytes", "several", "tokens"],
)
def test_other_observations_are_left_to_the_graph(observation: ObservationSpec) -> None:
    policy = build_policy(observation, ACTIONS["one"], core="none", hidden_size=HIDDEN)
    assert not is_compiled_feedforward(policy)
    assert not isinstance(fast.actor(policy), FeedforwardActor)
    assert fast.updater(policy) is not None


def test_bfloat16_is_left_to_torch() -> None:
    policy = make_policy(ACTIONS["one"])
    assert not isinstance(fast.actor(policy, autocast=True), FeedforwardActor)
    rows, advantages = random_rows(ACTIONS["one"], False, SPEC, HIDDEN, 0)
    micro_batch = gather(rows, advantages, torch.arange(ROWS), WEIGHT, CPU)
    arguments = loss_arguments(COEFFICIENTS, 1.0)
    assert isinstance(fast_updater(policy)._share(micro_batch, arguments), FeedforwardRows)
    assert not isinstance(fast_updater(policy, autocast=True)._share(micro_batch, arguments), FeedforwardRows)


CARTPOLE: dict[str, Any] = {
    "env.id": "gymnasium:CartPole-v1",
    "policy.core": "none",
    "policy.hidden_size": 64,
    "trainer.num_envs": 8,
    "trainer.async_factor": 1,
    "trainer.bptt_horizon": 128,
    "trainer.batch_unit": "agent_steps",
    "trainer.batch_size": 1024,
    "trainer.minibatch_size": 256,
    "trainer.update_epochs": 4,
    "trainer.num_workers": 1,
    "ppo.gamma": 0.99,
    "ppo.gae_lambda": 0.95,
    "ppo.learning_rate": 2.5e-3,
    "vector.backend": "inline",
    "env.max_steps": 500,
    "eval.interval": None,
    "checkpoint.interval": None,
}


def test_cartpole_is_learned_as_in_plain_torch(tmp_path: Path) -> None:
    """Returns of the last iterations of 30, with and without the fast path: far above the 22 of a random policy."""
    returns = []
    for on in (True, False):
        settings = {**CARTPOLE, "trainer.total_iterations": 30, "trainer.fast": on}
        run = train_small(tmp_path, f"cartpole-{on}", **settings)
        assert isinstance(run.collector.actor, FeedforwardActor) == on
        found = [record["episode_return"] for record in records(run.run.metrics_path.parent)]
        returns.append(np.mean(found[-5:]))
        assert np.mean(found[:2]) < 40
    assert min(returns) > 120
