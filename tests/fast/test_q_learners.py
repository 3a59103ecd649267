"""Compiled updates of DQN and PQN against the plain ones, and their gradients against torch in float64."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from millpond import fast
from millpond.config.mixture import DQNConfig, PQNConfig
from millpond.config.recipe import EnvConfig
from millpond.envs.spec import ActionSpec, ObservationSpec
from millpond.fast.gemm import SGEMM
from millpond.fast.q_learners import joined
from millpond.learners import DQN, AgentGroup, QNetwork, build_q_network
from millpond.learners.dqn import GoalBatch
from tests.support.corridor import make

pytestmark = pytest.mark.skipif(not SGEMM, reason="torch's BLAS cannot be called from compiled code")
SHAPE, ACTIONS = (4, 10, 10), 3


def network_of(shape: tuple[int, ...] = SHAPE, dtype: str = "uint8", hidden: int = 24, seed: int = 1) -> QNetwork:
    observation = ObservationSpec.single(shape, dtype, "pixels", high=None if dtype == "bool" else 1.0)
    rng = torch.Generator().manual_seed(seed)
    network = build_q_network(observation, ActionSpec.discrete(ACTIONS), hidden_size=hidden, generator=rng)
    with torch.no_grad():
        for parameter in network.parameters():  # so that no bias, gain or shift is 0 or 1
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=rng))
    return network


def transitions(
    count: int,
    seed: int = 0,
    shape: tuple[int, ...] = SHAPE,
    dtype: torch.dtype = torch.uint8,
    masked: bool = False,
) -> Any:
    rng = torch.Generator().manual_seed(seed)

    def frames() -> torch.Tensor:
        return (torch.rand(count, *shape, generator=rng) < 0.2).to(dtype)

    return SimpleNamespace(
        observation=frames(),
        next_observation=frames(),
        action=torch.randint(ACTIONS, (count,), generator=rng, dtype=torch.int32),
        reward=2 * torch.randn(count, generator=rng),  # some beyond the linear part of Huber's loss
        discount=torch.where(torch.rand(count, generator=rng) < 0.3, 0.0, 0.81),
        next_action_mask=torch.rand(count, ACTIONS, generator=rng) < 0.5 if masked else None,
    )


def pair(network: QNetwork | None = None, **settings: Any) -> tuple[DQN, DQN]:
    """Return a plain and a compiled learner with equal parameters, whose targets differ from them."""
    network = network or network_of()
    plain = DQN(copy.deepcopy(network), DQNConfig(**settings))
    quick = DQN(copy.deepcopy(network), DQNConfig(**settings), compiled=fast.dqn_updates)
    assert quick.updates_at_once > plain.updates_at_once == 1
    for dqn in (plain, quick):
        rng = torch.Generator().manual_seed(3)
        for parameter in dqn.target.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=rng))
    return plain, quick


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> int:
    """Several numbers of threads; `quiet_torch` restores it."""
    torch.set_num_threads(request.param)
    return int(request.param)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("loss", ["huber", "squared"])
def test_gradient_equals_torch_in_float64(double: bool, loss: str, threads: int) -> None:
    plain, quick = pair(double=double, loss=loss)
    batch = transitions(50)
    means = quick._compiled.gradient(batch, batch.reward, 2)  # type: ignore[union-attr]
    exact = copy.deepcopy(plain.network).double()
    target = copy.deepcopy(plain.target).double()
    with torch.no_grad():
        future = target(batch.next_observation)
        best = (exact if double else target)(batch.next_observation).argmax(-1, keepdim=True)
        goal = batch.reward + batch.discount * future.gather(1, best).squeeze(1)
    q = exact(batch.observation).gather(1, batch.action.long().unsqueeze(1)).squeeze(1)
    difference = q - goal
    of_loss = torch.nn.functional.huber_loss(q, goal) if loss == "huber" else 0.5 * difference.square().mean()
    (of_loss / 2).backward()
    names = dict(quick.network.named_parameters())
    for name, parameter in exact.named_parameters():
        found = names[name].grad
        assert found is not None, name
        torch.testing.assert_close(found.double(), parameter.grad, atol=1e-6, rtol=1e-4)
    assert means.tolist() == pytest.approx([of_loss.item() / 2, q.mean().item() / 2], rel=1e-5)


@pytest.mark.parametrize(("dtype", "shape"), [("uint8", (7, 10, 10)), ("bool", (2, 5, 8)), ("float32", (1, 12, 6))])
def test_updates_equal_the_plain_ones(dtype: str, shape: tuple[int, ...], threads: int) -> None:
    plain, quick = pair(network_of(shape, dtype), max_grad_norm=0.5, target_tau=0.1, learning_rate=1e-3)
    batches = [transitions(40, seed, shape, getattr(torch, dtype)) for seed in range(6)]
    expected = [plain.update(batch) for batch in batches]
    metrics = [*quick.update_all(batches[:4]), quick.update(batches[4]), *quick.update_all(batches[5:])]
    for mine, theirs in zip(metrics, expected, strict=True):
        assert dict(mine) == pytest.approx({name: float(value) for name, value in theirs.items()}, rel=1e-4, abs=1e-5)
    assert float(expected[0]["grad_norm"]) > 0.5  # so that clipping makes a difference
    # Adam divides by the gradient's size, so a gradient near 0 turns its rounding into a share of a step of 1e-3.
    torch.testing.assert_close(quick.online.data, plain.online.data, atol=3e-5, rtol=0)
    torch.testing.assert_close(quick.target_parameters.data, plain.target_parameters.data, atol=3e-5, rtol=0)
    assert quick.updates == plain.updates == quick.optimizer.updates[0] == 6


def test_updates_towards_whole_returns_equal_the_plain_ones(threads: int) -> None:
    """RAdam from its unrectified first steps on, weight decay, a decaying learning rate, and the mean of the weights."""
    settings = {
        "optimizer": "radam",
        "weight_decay": 0.5,
        "lr_schedule": "linear",
        "mean_decay": 0.5,
        "learning_rate": 1e-3,
    }
    plain, quick = pair(**settings, loss="squared", target_tau=1.0)
    for dqn in (plain, quick):
        dqn.total_updates = 20
    steps = [transitions(40, seed) for seed in range(9)]
    batches = [GoalBatch(step.observation, step.action, step.reward, {}) for step in steps]
    expected = [plain.update(batch) for batch in batches]
    metrics = [*quick.update_all(batches[:5]), quick.update(batches[5]), *quick.update_all(batches[6:])]
    for mine, theirs in zip(metrics, expected, strict=True):
        assert dict(mine) == pytest.approx({name: float(value) for name, value in theirs.items()}, rel=1e-4, abs=1e-5)
    torch.testing.assert_close(quick.online.data, plain.online.data, atol=3e-5, rtol=0)
    assert quick.target_is_online
    assert torch.equal(quick.target_parameters.data, quick.online.data)
    assert plain.learning_rate() == pytest.approx(1e-3 * 11 / 20)
    observation = steps[0].observation
    for target in (False, True):
        torch.testing.assert_close(quick.values(observation, target=target), plain.values(observation, target=target))
    for mine, theirs in zip(quick.mean.parameters(), plain.mean.parameters(), strict=True):
        assert not torch.equal(theirs, torch.zeros_like(theirs))
        torch.testing.assert_close(mine, theirs, atol=3e-5, rtol=0)


@pytest.mark.parametrize("double", [False, True])
def test_updates_with_action_masks_equal_the_plain_ones(double: bool, threads: int) -> None:
    plain, quick = pair(double=double)
    batches = [transitions(40, seed, masked=True) for seed in range(3)]
    assert not batches[0].next_action_mask.any(-1).all()  # a mask that allows nothing allows all
    expected = [plain.update(batch) for batch in batches]
    for mine, theirs in zip(quick.update_all(batches), expected, strict=True):
        assert dict(mine) == pytest.approx({name: float(value) for name, value in theirs.items()}, rel=1e-4, abs=1e-5)
    torch.testing.assert_close(quick.online.data, plain.online.data, atol=3e-5, rtol=0)
    without = pair(double=double)[1].update(transitions(40, 0))
    assert without["q_loss"] != pytest.approx(float(expected[0]["q_loss"]), rel=1e-3)  # masks make a difference


def test_partial_resets_within_a_call_equal_the_plain_ones() -> None:
    def learner(compiled: Any) -> DQN:
        return DQN(
            network_of(), DQNConfig(reset_every=3, learning_rate=1e-3), total_updates=20, compiled=compiled,
            initial=lambda reset: network_of(seed=reset + 1),
        )  # fmt: skip

    plain, quick = learner(None), learner(fast.dqn_updates)
    batches = [transitions(40, seed) for seed in range(11)]
    expected = [plain.update(batch) for batch in batches]
    metrics = [*quick.update_all(batches[:8]), *quick.update_all(batches[8:9]), *quick.update_all(batches[9:])]
    for mine, theirs in zip(metrics, expected, strict=True):
        assert dict(mine) == pytest.approx({name: float(value) for name, value in theirs.items()}, rel=1e-4, abs=1e-5)
    torch.testing.assert_close(
        quick.online.data, plain.online.data, atol=3e-4, rtol=0
    )  # weights that were not reset differ by 0.1
    assert quick.resets == plain.resets == 3
    assert quick.optimizer.updates == plain.optimizer.updates == [2]


def test_hard_target_is_copied_at_its_interval() -> None:
    _, quick = pair(target_tau=0, target_interval=3)
    quick.update_all([transitions(16, seed) for seed in range(2)])
    assert not torch.equal(quick.target_parameters.data, quick.online.data)
    quick.update_all([transitions(16, 2)])
    assert torch.equal(quick.target_parameters.data, quick.online.data)


def test_passed_rewards_replace_those_of_the_batch() -> None:
    plain, quick = pair()
    batch, better = transitions(16), torch.rand(16)
    plain.update(batch, reward=better)
    quick.update(batch, reward=better)
    torch.testing.assert_close(quick.online.data, plain.online.data, atol=1e-5, rtol=0)


def test_many_updates_in_one_call_equal_single_ones_bit_for_bit(threads: int) -> None:
    _, once = pair()
    _, singly = pair()
    batches = [transitions(32, seed) for seed in range(5)]
    once.update_all(batches)
    for batch in batches:
        singly.update(batch)
    assert torch.equal(once.online.data, singly.online.data)
    assert torch.equal(once.optimizer.second, singly.optimizer.second)


def test_training_continues_from_its_state_bit_for_bit() -> None:
    (_, uncut), (_, again) = pair(), pair()
    batches = [transitions(32, seed) for seed in range(6)]
    uncut.update_all(batches[:3])
    again.load_state_dict(uncut.state_dict())
    for dqn in (uncut, again):
        dqn.update_all(batches[3:])
    assert torch.equal(uncut.online.data, again.online.data)
    assert torch.equal(uncut.target_parameters.data, again.target_parameters.data)


def test_updates_stop_after_one_that_is_not_finite() -> None:
    _, quick = pair()
    batches = [transitions(32, seed) for seed in range(4)]
    batches[1].reward[7] = np.nan
    metrics = quick.update_all(batches)
    assert len(metrics) == quick.updates == 2
    assert np.isfinite(metrics[0]["q_loss"])
    assert np.isnan(metrics[1]["q_loss"])


def test_summed_gradients_of_parts_equal_the_whole_batch() -> None:
    plain, quick = pair()
    whole = transitions(32, masked=True)
    halves = [
        SimpleNamespace(**{name: value[part] for name, value in vars(whole).items()})
        for part in (slice(0, 16), slice(16, 32))
    ]
    quick._compiled.gradient(halves[1], halves[1].reward, 2)  # type: ignore[union-attr]
    other = quick.online.grad[0].clone()

    def all_reduce(tensor: torch.Tensor) -> None:
        tensor[: len(other)].add_(other)

    quick.update(halves[0], parts=2, all_reduce=all_reduce)
    plain.update(whole)
    torch.testing.assert_close(quick.online.data, plain.online.data, atol=1e-5, rtol=0)


def test_other_networks_are_not_compiled() -> None:
    large = network_of((4, 84, 84))
    odd = network_of(hidden=20)
    cartpole = make(EnvConfig(id="gymnasium:CartPole-v1"), 1)
    vector = build_q_network(cartpole.spec.observation, cartpole.spec.action, hidden_size=16)
    for network in (large, odd, vector):
        assert DQN(network, DQNConfig(), compiled=fast.dqn_updates).updates_at_once == 1


def test_switch_turns_compiled_updates_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLPOND_FAST", "0")
    assert DQN(network_of(), DQNConfig(), compiled=fast.dqn_updates).updates_at_once == 1


# -- PQN

PQN = PQNConfig(num_envs=16, num_steps=8, num_minibatches=4, update_epochs=2, learning_rate=1e-3, max_grad_norm=0.5)


def group_of(agents: int, compiled: Any) -> AgentGroup:
    vectors = [make(EnvConfig(id="minatar:breakout"), PQN.num_envs) for _ in range(agents)]
    for seed, vector in enumerate(vectors):
        vector.reset(seed)
    networks = [network_of(seed=seed) for seed in range(agents)]
    return AgentGroup(networks, vectors, PQN, seeds=range(agents), total_collections=4, compiled=compiled)


@pytest.mark.parametrize("agents", [1, 2, 3])
def test_collecting_and_learning_equal_the_plain_agents(agents: int, threads: int) -> None:
    pytest.importorskip("minatar")
    plain, quick = group_of(agents, None), group_of(agents, fast.pqn_updates)
    for _ in range(3):
        for one, other in zip(plain.collect(), quick.collect(), strict=True):
            torch.testing.assert_close(one.value, other.value, atol=1e-4, rtol=0)
            assert torch.equal(one.action, other.action)
        plain.storage.lost[:, 2, :5] = quick.storage.lost[:, 2, :5] = True
        for one_metrics, other_metrics in zip(plain.learn(), quick.learn(), strict=True):
            numbers = {name: float(value) for name, value in other_metrics.items()}
            assert numbers == pytest.approx({name: float(v) for name, v in one_metrics.items()}, rel=1e-4, abs=1e-5)
    torch.testing.assert_close(quick.parameters.data, plain.parameters.data, atol=1e-5, rtol=0)
    assert quick.updates == plain.updates == quick.optimizer.updates
    for one_generator, other_generator in zip(plain.generators, quick.generators, strict=True):
        assert torch.equal(one_generator.get_state(), other_generator.get_state())


def test_metrics_are_not_finite_if_one_update_was_not() -> None:
    pytest.importorskip("minatar")
    group = group_of(2, fast.pqn_updates)
    group.collect()
    group.storage.reward[1] = np.inf
    metrics = group.learn()
    assert np.isfinite(float(metrics[0]["q_loss"]))
    assert not np.isfinite(float(metrics[1]["q_loss"]))


def test_batches_side_by_side_are_joined_without_a_copy() -> None:
    whole = torch.arange(24.0).reshape(6, 4)
    halves = [whole[:3], whole[3:]]
    assert joined(halves).data_ptr() == whole.data_ptr()
    assert torch.equal(joined(halves), whole)
    assert torch.equal(joined(halves[::-1]), torch.cat(halves[::-1]))
    assert torch.equal(joined([whole[:2], whole[3:5]]), torch.cat([whole[:2], whole[3:5]]))
    assert torch.equal(joined([whole[:3, :2], whole[3:, :2]]), whole[:, :2])
    assert torch.equal(joined([whole[:3], whole[3:].clone()]), whole)
