"""DQN: targets against the formula, the target network, and learning from replay only."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from millpond.config.mixture import DQNConfig
from millpond.config.recipe import EnvConfig
from millpond.learners import DQN, build_q_network
from millpond.learners.dqn import td_loss
from millpond.learners.q_network import LearnerError
from millpond.replay import Schema
from millpond.replay.pond import Pond
from millpond.trainers.common.play import evaluate
from tests.support.corridor import CORRIDOR, SMALL, make, make_group, network_for

CPU = torch.device("cpu")


def transitions(count: int, seed: int = 0) -> Any:
    rng = torch.Generator().manual_seed(seed)
    return SimpleNamespace(
        observation=torch.rand(count, 4, generator=rng),
        next_observation=torch.rand(count, 4, generator=rng),
        action=torch.randint(2, (count,), generator=rng, dtype=torch.int32),
        reward=torch.rand(count, generator=rng),
        discount=torch.where(torch.rand(count, generator=rng) < 0.3, 0.0, 0.81),
        next_action_mask=None,
    )


def cartpole_dqn(**settings: Any) -> DQN:
    vector = make(EnvConfig(id="gymnasium:CartPole-v1"), 1)
    return DQN(network_for(vector, 1), DQNConfig(**settings))


@pytest.mark.parametrize("double", [False, True])
def test_target_equals_the_formula(double: bool) -> None:
    dqn, batch = cartpole_dqn(double=double), transitions(64)
    dqn.target_parameters.data.add_(
        torch.randn(dqn.target_parameters.data.shape, generator=torch.Generator().manual_seed(3))
    )
    with torch.no_grad():
        online, target = dqn.network(batch.next_observation), dqn.target(batch.next_observation)
    expected = []
    for k in range(64):
        action = int(online[k].argmax()) if double else int(target[k].argmax())
        expected.append(float(batch.reward[k]) + float(batch.discount[k]) * float(target[k, action]))
    torch.testing.assert_close(dqn.targets(batch, batch.reward), torch.tensor(expected))
    assert (online.argmax(-1) != target.argmax(-1)).any()  # so that double makes a difference


@pytest.mark.parametrize("double", [False, True])
def test_target_is_the_largest_of_the_allowed_next_actions(double: bool) -> None:
    dqn, batch = cartpole_dqn(double=double), transitions(64)
    dqn.target_parameters.data.add_(
        torch.randn(dqn.target_parameters.data.shape, generator=torch.Generator().manual_seed(3))
    )
    batch.next_action_mask = torch.rand(64, 2, generator=torch.Generator().manual_seed(4)) < 0.5
    with torch.no_grad():
        online, target = dqn.network(batch.next_observation), dqn.target(batch.next_observation)
    expected = []
    for k in range(64):
        allowed = [action for action in (0, 1) if batch.next_action_mask[k, action]] or [0, 1]
        chooser = online if double else target
        best = max(allowed, key=lambda action: float(chooser[k, action]))
        expected.append(float(batch.reward[k]) + float(batch.discount[k]) * float(target[k, best]))
    torch.testing.assert_close(dqn.targets(batch, batch.reward), torch.tensor(expected))


def test_squared_and_huber_loss_equal_hand_computed_values() -> None:
    difference = torch.tensor([0.5, -3.0])
    assert float(td_loss(difference, "huber")) == pytest.approx((0.125 + 2.5) / 2)
    assert float(td_loss(difference, "squared")) == pytest.approx((0.125 + 4.5) / 2)


def test_soft_target_is_a_moving_average_and_hard_target_a_copy() -> None:
    soft, hard = cartpole_dqn(target_tau=0.1), cartpole_dqn(target_tau=0, target_interval=3)
    before = soft.target_parameters.data.clone()
    soft.update(transitions(8))
    torch.testing.assert_close(soft.target_parameters.data, before + 0.1 * (soft.online.data - before))
    equal = []
    for k in range(6):
        hard.update(transitions(8, k))
        equal.append(torch.equal(hard.target_parameters.data, hard.online.data))
    assert equal == [False, False, True, False, False, True]


def test_gradients_are_clipped() -> None:
    dqn = cartpole_dqn(max_grad_norm=1e-3)
    assert float(dqn.update(transitions(8))["grad_norm"]) > 1e-3  # as it was before
    assert float(dqn.online.grad.norm()) == pytest.approx(1e-3, rel=1e-3)


def test_passed_rewards_replace_those_of_the_batch() -> None:
    one, other = cartpole_dqn(), cartpole_dqn()
    batch, better = transitions(16), torch.rand(16)
    one.update(batch, reward=better)
    batch.reward = better
    other.update(batch)
    assert torch.equal(one.online.data, other.online.data)


def test_stacks_of_frames_are_reshaped_to_one_observation() -> None:
    vector = make(EnvConfig(id="minatar:breakout"), 1)
    dqn = DQN(build_q_network(vector.spec.observation, vector.spec.action, hidden_size=8), DQNConfig())
    frames = torch.randint(0, 2, (5, 2, 2, 10, 10), dtype=torch.uint8)  # two frames of two channels
    batch = transitions(5)
    batch.observation = batch.next_observation = frames
    assert torch.isfinite(dqn.update(batch)["q_loss"])


@pytest.mark.parametrize("n_step", [1, 3])
def test_learns_the_corridor_from_steps_of_a_random_player(n_step: int) -> None:
    explorer = make_group(CORRIDOR, SMALL.model_copy(update={"epsilon_end": 1.0}))
    pond = Pond.init(Schema.from_spec(explorer.spec), 8 * 256, lanes=8)
    for _ in range(8):
        pond.add(explorer.collect()[0].as_steps(pond.schema))
    config = DQNConfig(gamma=0.9, n_step=n_step, learning_rate=2e-3, target_tau=0.02)
    dqn, rng = DQN(network_for(explorer.vectors[0], 1), config), np.random.default_rng(0)
    for _ in range(400):
        dqn.update(pond.sample(config.batch_size, rng, n_step=n_step, gamma=config.gamma))
    played = evaluate(dqn.network, make(CORRIDOR, 2), episodes=2, seed=9, device=CPU, deterministic=True)
    assert played.lengths == (5, 5)
    if n_step > 1:  # the random player's detours are part of several steps' rewards, so that values are lower
        return
    # one step before the right end it is worth 1, two before 0.9, ...
    cells = torch.eye(9, dtype=torch.int8)[3:8]
    torch.testing.assert_close(dqn.network(cells)[:, 1], 0.9 ** torch.arange(4, -1, -1), atol=0.1, rtol=0)


def test_training_continues_from_its_state_bit_for_bit() -> None:
    uncut, again = cartpole_dqn(), cartpole_dqn()
    for k in range(3):
        uncut.update(transitions(8, k))
    again.load_state_dict(uncut.state_dict())
    for dqn in (uncut, again):
        for k in range(3, 6):
            dqn.update(transitions(8, k))
    assert torch.equal(uncut.online.data, again.online.data)
    assert torch.equal(uncut.target_parameters.data, again.target_parameters.data)
    assert uncut.updates == again.updates == 6


@pytest.mark.parametrize("loss", ["huber", "squared"])
def test_reduced_parts_of_a_batch_equal_the_whole_batch(loss: str) -> None:
    """Two learners with half of each batch, in threads that sum their gradients."""
    settings: dict[str, Any] = {"loss": loss, "max_grad_norm": 0.1, "target_tau": 0.5}
    whole, halves = cartpole_dqn(**settings), [cartpole_dqn(**settings) for _ in range(2)]
    given: list[torch.Tensor] = []
    meeting = Barrier(2)

    def all_reduce(tensor: torch.Tensor) -> None:
        given.append(tensor.clone())
        meeting.wait()
        tensor.copy_(given[-2] + given[-1])
        meeting.wait()

    def learn(half: int) -> list[dict[str, float]]:
        part, metrics_of_half = slice(half * 8, half * 8 + 8), []
        for k in range(3):
            batch = SimpleNamespace(
                **{name: None if values is None else values[part] for name, values in vars(transitions(16, k)).items()}
            )
            metrics = halves[half].update(batch, parts=2, all_reduce=all_reduce)
            metrics_of_half.append({name: float(value) for name, value in metrics.items()})
        return metrics_of_half

    expected = [{name: float(value) for name, value in whole.update(transitions(16, k)).items()} for k in range(3)]
    with ThreadPoolExecutor(2) as pool:
        for metrics_of_half in pool.map(learn, range(2)):
            for mine, theirs in zip(metrics_of_half, expected, strict=True):
                assert mine == pytest.approx(theirs, abs=1e-5)
    assert torch.equal(halves[0].online.data, halves[1].online.data)
    assert torch.equal(halves[0].target_parameters.data, halves[1].target_parameters.data)
    torch.testing.assert_close(halves[0].online.data, whole.online.data, atol=1e-5, rtol=0)
    torch.testing.assert_close(halves[0].target_parameters.data, whole.target_parameters.data, atol=1e-5, rtol=0)


def test_start_from_copies_parameters_and_resets_target_and_optimizer() -> None:
    dqn = cartpole_dqn()
    dqn.update(transitions(8))
    other = network_for(make(EnvConfig(id="gymnasium:CartPole-v1"), 1), 9)
    dqn.start_from(other)
    for network in (dqn.network, dqn.target):
        assert all(torch.equal(a, b) for a, b in zip(network.parameters(), other.parameters(), strict=True))
    assert not dqn.optimizer.first.any()


def test_partial_reset_keeps_a_share_of_the_weights_and_replaces_the_last_layer() -> None:
    new = cartpole_dqn().network
    with torch.no_grad():
        for parameter in new.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    asked: list[int] = []

    def initial(reset: int) -> Any:
        asked.append(reset)
        return new

    vector = make(EnvConfig(id="gymnasium:CartPole-v1"), 1)
    config = DQNConfig(reset_every=4, reset_keep=0.75, learning_rate=1e-12)
    dqn = DQN(network_for(vector, 1), config, total_updates=11, initial=initial)
    for k in range(4):
        dqn.update(transitions(8, k))
    before = {name: parameter.detach().clone() for name, parameter in dqn.network.named_parameters()}
    target = {name: parameter.detach().clone() for name, parameter in dqn.target.named_parameters()}
    assert (asked, dqn.resets, dqn.since_reset) == ([], 1, 0)  # due, and done before the next update
    dqn.update(transitions(8, 4))
    assert asked == [1]
    assert dqn.optimizer.updates == [1]
    for name, parameter in new.named_parameters():
        keep = 0.0 if name.startswith("output.") else 0.75
        for network, old in ((dqn.network, before), (dqn.target, target)):
            mixed = keep * old[name] + (1 - keep) * parameter
            torch.testing.assert_close(dict(network.named_parameters())[name], mixed, atol=1e-6, rtol=1e-6)
    for k in range(5, 11):
        dqn.update(transitions(8, k))
    assert asked == [1]  # a reset after 8 updates would leave fewer than 4 to recover
    assert (dqn.resets, dqn.since_reset) == (1, 7)


def test_discount_and_steps_are_annealed_geometrically_after_each_reset() -> None:
    vector = make(EnvConfig(id="gymnasium:CartPole-v1"), 1)
    config = DQNConfig(
        gamma=0.99, gamma_from=0.96, n_step=2, n_step_from=8, anneal_over=128, reset_every=256
    )  # fmt: skip
    dqn = DQN(network_for(vector, 1), config, total_updates=1_000, initial=lambda reset: network_for(vector, 1))
    seen = {}
    for updates in (0, 31, 32, 64, 96, 128, 200, 256, 320, 512, 768, 999):
        dqn.updates = updates
        seen[updates] = (round(dqn.gamma, 6), dqn.n_step)
    # 1 - gamma: 0.04, 0.04 / sqrt(2), 0.02, 0.02 / sqrt(2), 0.01; steps: 8, 5.66, 4, 2.83, 2
    start, half, end = (0.96, 8), (0.98, 4), (0.99, 2)
    assert seen == {
        0: start, 31: start, 32: (0.971716, 6), 64: half, 96: (0.985858, 3), 128: end, 200: end,
        256: start, 320: half, 512: start, 768: end, 999: end,
    }  # fmt: skip
    dqn.updates = 40
    assert dqn.updates_with_same_targets(100) == 1  # not compiled: one by one


def test_partial_resets_need_new_initial_weights() -> None:
    with pytest.raises(LearnerError, match="reset_every needs `initial`"):
        cartpole_dqn(reset_every=10)
