"""Compiled updates of SAC against the plain ones, and their gradients against torch in float64."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from millpond import fast
from millpond.envs.spec import ActionSpec, ObservationSpec
from millpond.fast.gemm import SGEMM
from millpond.learners import SAC
from millpond.learners.sac import LOG_DEVIATION

pytestmark = pytest.mark.skipif(not SGEMM, reason="torch's BLAS cannot be called from compiled code")
SEEN = ObservationSpec.single((3,), "float32", "vector")
TWO = ActionSpec.continuous((-2.0, 0.0), (2.0, 1.0))
PARAMETERS = ("policy", "critics", "target_parameters")


def transitions(count: int, seed: int = 0) -> Any:
    rng = torch.Generator().manual_seed(seed)
    return SimpleNamespace(
        observation=torch.randn(count, 3, generator=rng),
        next_observation=torch.randn(count, 3, generator=rng),
        action=torch.rand(count, 2, generator=rng),
        reward=torch.rand(count, generator=rng),
        discount=torch.where(torch.rand(count, generator=rng) < 0.3, 0.0, 0.99),
    )


def learner(compiled: bool = True, hidden_size: int = 24, **settings: Any) -> SAC:
    made = SAC(SEEN, TWO, seed=1, hidden_size=hidden_size, compiled=fast.sac_updates if compiled else None, **settings)
    rng = torch.Generator().manual_seed(7)
    with torch.no_grad():  # targets that differ, and some log deviations at their limits
        for target in made.target_parameters.networks:
            for parameter in target.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=rng))
        made.actor.layers[4].weight[3] *= 40
    return made


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> int:
    """Several numbers of threads; `quiet_torch` restores it."""
    torch.set_num_threads(request.param)
    return int(request.param)


def test_gradients_equal_torch_in_float64(threads: int) -> None:
    quick, batch = learner(learning_rate=1e-12, target_tau=0.0), transitions(50)  # so that parameters stay
    actor = copy.deepcopy(quick.actor).double()
    critics = [copy.deepcopy(network).double() for network in quick.critics.networks]
    targets = [copy.deepcopy(network).double() for network in quick.target_parameters.networks]
    noise = [torch.empty(50, 2).normal_(generator=rng) for rng in [copy_of(quick.generator)] for _ in range(2)]
    metrics = quick.update(batch)
    for module in (*critics, actor):
        module.requires_grad_()

    def sample(observation: torch.Tensor, drawn: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, raw = actor.layers(observation.double()).chunk(2, -1)
        log_deviation = raw.clamp(*LOG_DEVIATION)
        before = mean + drawn.double() * log_deviation.exp()
        each = -0.5 * drawn.double() ** 2 - log_deviation - 0.5 * math.log(2 * math.pi)
        each = each - 2 * (math.log(2) - before - F.softplus(-2 * before)) - actor.reach.log()
        return actor.centre + actor.reach * before.tanh(), each.sum(-1)

    def q(networks: Any, observation: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        inputs = torch.cat([observation.double(), action.double()], 1)
        return torch.stack([network(inputs).squeeze(1) for network in networks])

    with torch.no_grad():
        action, log_prob = sample(batch.next_observation, noise[0])
        goal = batch.reward + batch.discount * (q(targets, batch.next_observation, action).amin(0) - log_prob)
    q_loss = (q(critics, batch.observation, batch.action) - goal).square().mean(1).sum()
    q_loss.backward()
    compare(quick.critics.networks, critics)
    action, log_prob = sample(batch.observation, noise[1])
    smaller = q(critics, batch.observation, action)
    assert 2 < int((smaller[0] < smaller[1]).sum()) < 48  # so that both critics are used
    policy_loss = (log_prob - smaller.amin(0)).mean()
    actor.zero_grad()
    policy_loss.backward()
    compare([quick.actor], [actor])
    raw = actor.layers(batch.observation.double())[:, 2:]
    assert bool((raw > LOG_DEVIATION[1]).any())  # so that limits make a difference
    expected = {"q_loss": q_loss.item(), "policy_loss": policy_loss.item(), "entropy": -log_prob.mean().item()}
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-4)
    assert float(quick._log_alpha_grad) == pytest.approx(-(log_prob.mean().item() - 2), rel=1e-4)


def copy_of(generator: torch.Generator) -> torch.Generator:
    same = torch.Generator()
    same.set_state(generator.get_state())
    return same


def compare(found: Any, exact: Any) -> None:
    for one, other in zip(found, exact, strict=True):
        for name, parameter in one.named_parameters():
            of_other = dict(other.named_parameters())[name].grad
            torch.testing.assert_close(parameter.grad.double(), of_other, atol=1e-5, rtol=1e-3, msg=name)


def test_updates_equal_the_plain_ones(threads: int) -> None:
    plain, quick = learner(compiled=False, target_tau=0.1), learner(target_tau=0.1)
    batches = [transitions(40, seed) for seed in range(6)]
    expected = [plain.update(batch) for batch in batches]
    metrics = [*quick.update_all(batches[:4]), quick.update(batches[4]), *quick.update_all(batches[5:])]
    for mine, theirs in zip(metrics, expected, strict=True):
        assert dict(mine) == pytest.approx({name: float(value) for name, value in theirs.items()}, rel=1e-4, abs=1e-5)
    for name in PARAMETERS:
        torch.testing.assert_close(getattr(quick, name).data, getattr(plain, name).data, atol=1e-5, rtol=0)
    torch.testing.assert_close(quick.log_alpha, plain.log_alpha, atol=1e-6, rtol=0)
    assert torch.equal(quick.generator.get_state(), plain.generator.get_state())
    assert quick.updates == plain.updates == quick.optimizers["alpha"].updates[0] == 6


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("batch", [1, 3, 9])
def test_actions_equal_the_plain_ones(batch: int, deterministic: bool) -> None:
    plain, quick = learner(compiled=False), learner()
    observation = transitions(batch).observation
    for _ in range(2):
        expected, found = (one.act(observation, deterministic=deterministic) for one in (plain, quick))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(plain.generator.get_state(), quick.generator.get_state())


def test_passed_rewards_replace_those_of_the_batch() -> None:
    plain, quick = learner(compiled=False), learner()
    batch, better = transitions(16), torch.rand(16)
    plain.update(batch, reward=better)
    quick.update(batch, reward=better)
    torch.testing.assert_close(quick.critics.data, plain.critics.data, atol=1e-5, rtol=0)


def test_training_continues_from_its_state_bit_for_bit(threads: int) -> None:
    uncut, again = learner(), learner()
    batches = [transitions(32, seed) for seed in range(6)]
    uncut.update_all(batches[:3])
    again.load_state_dict(uncut.state_dict())
    uncut.update_all(batches[3:])
    for batch in batches[3:]:
        again.update(batch)
    for name in PARAMETERS:
        assert torch.equal(getattr(uncut, name).data, getattr(again, name).data)
    assert torch.equal(uncut.log_alpha, again.log_alpha)


def test_updates_stop_after_one_that_is_not_finite() -> None:
    quick, batches = learner(), [transitions(32, seed) for seed in range(4)]
    batches[1].reward[7] = np.nan
    metrics = quick.update_all(batches)
    assert len(metrics) == quick.updates == 2
    assert np.isfinite(metrics[0]["q_loss"])
    assert np.isnan(metrics[1]["q_loss"])


def test_switch_and_odd_sizes_use_the_plain_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    assert learner()._compiled is not None
    assert learner(hidden_size=20)._compiled is None
    monkeypatch.setenv("MILLPOND_FAST", "0")
    assert learner()._compiled is None
