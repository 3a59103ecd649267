"""The products that are timed alone are exactly those of the networks, counted by hand."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from millpond.bench.arithmetic import Network
from millpond.bench.measure import count_flops
from millpond.bench.products import (
    PRODUCTS,
    BetweenRounds,
    Products,
    Repeated,
    dqn_update,
    loss_update,
    pqn_update,
    q_acting,
    sac_acting,
    sac_update,
)
from millpond.config.mixture import DQNConfig
from millpond.envs.registry import describe
from millpond.learners import DQN, SAC, build_q_network
from millpond.policies.policy import build_policy

B = 8
# MinAtar breakout: 4 planes of 10x10, 16 filters of 3x3 at 8x8 places, a layer of 32, 3 actions
CONVOLUTION, DENSE = 2 * 4 * 16 * 9 * 64, 2 * (16 * 64 * 32 + 32 * 3)


def breakout() -> tuple[Any, torch.Tensor]:
    spec = describe("minatar:breakout", {})
    network = build_q_network(spec.observation, spec.action, hidden_size=32)
    return network, torch.randint(0, 2, (B, 4, 10, 10), dtype=torch.uint8)


def batch(observation: torch.Tensor, action: torch.Tensor) -> Any:
    return SimpleNamespace(observation=observation, next_observation=observation, action=action)


def test_products_of_q_networks() -> None:
    """The first layer needs no gradient of its inputs: 2 products instead of 3."""
    network, observation = breakout()
    forward, training = CONVOLUTION + DENSE, 2 * CONVOLUTION + 3 * DENSE
    assert count_flops(q_acting(network, observation)) == B * forward
    assert count_flops(pqn_update(network, observation)) == B * training
    for double in (False, True):
        dqn = DQN(breakout()[0], DQNConfig(double=double))
        counted = count_flops(dqn_update(dqn, batch(observation, torch.zeros(B))))
        assert counted == B * (training + forward * (1 + double))


def test_products_of_sac() -> None:
    """Targets: actor and critics. Critics: forward and backward. Actor: both, through critics that learn nothing."""
    spec = describe("gymnasium:Pendulum-v1", {})
    sac = SAC(spec.observation, spec.action, seed=0, hidden_size=16)
    observation, action = torch.randn(B, 3), torch.randn(B, 1)
    first, rest = 2 * 3 * 16, 2 * (16 * 16 + 16 * 2)
    actor, actor_training = first + rest, 2 * first + 3 * rest
    first, rest = 2 * 4 * 16, 2 * (16 * 16 + 16 * 1)
    critic, critic_training, critic_inputs = first + rest, 2 * first + 3 * rest, 2 * (first + rest)
    assert count_flops(sac_acting(sac, observation)) == B * actor
    expected = (actor + 2 * critic) + 2 * critic_training + (actor_training + 2 * critic_inputs)
    assert count_flops(sac_update(sac, batch(observation, action))) == B * expected


@pytest.mark.parametrize(("core", "gates"), [("lstm", 4), ("gru", 3), ("mingru", 3)])
def test_products_within_the_operators_of_cores_with_memory(core: Any, gates: int) -> None:
    """Each step: inputs and hidden state to the sums of the gates; MinGRU's gates see the inputs alone."""
    spec, steps, size = describe("gymnasium:CartPole-v1", {}), 5, 16
    policy = build_policy(spec.observation, spec.action, core=core, hidden_size=size)
    features, reset = torch.randn(steps, B, size), torch.zeros(steps, B, dtype=torch.bool)
    state = policy.initial_state(B)
    products = Products.of(lambda: policy.core.unroll(features, state, reset).sum().backward())
    each = 2 * gates * size * size * (1 if core == "mingru" else 2)
    # Features need no gradient here, but the operator computes it: forward, and both gradients of each product
    assert count_flops(products) == steps * B * 3 * each


def test_products_of_acting_have_the_convolutions() -> None:
    spec = describe("minatar:breakout", {})
    policy = build_policy(spec.observation, spec.action, core="none", hidden_size=32)
    observation = torch.randint(0, 2, (B, 4, 10, 10), dtype=torch.uint8)
    ready: Any = SimpleNamespace(observation=observation, action_mask=None)
    acting: Any = SimpleNamespace(
        policy=policy,
        autocast=contextlib.nullcontext,
        device=torch.device("cpu"),
        state=policy.initial_state(B),
        generator=torch.Generator(),
    )
    products = Products.of(lambda: Network.act_plainly(acting, ready))
    core, head = 2 * 32 * 32, 2 * 32 * (3 + 1)
    assert count_flops(products) == B * (CONVOLUTION + 2 * 16 * 64 * 32 + core + head)


def test_recording_leaves_the_learner_unchanged() -> None:
    network, observation = breakout()
    dqn = DQN(network, DQNConfig())
    before = dqn.online.data.clone()
    dqn_update(dqn, batch(observation, torch.zeros(B)))
    pqn_update(network, observation)
    assert torch.equal(dqn.online.data, before)
    assert not dqn.online.grad.any()
    layer = torch.nn.Linear(3, 2)
    loss_update(layer, lambda: layer(torch.ones(4, 3)).sum())
    assert layer.weight.grad is None


def test_nothing_but_products_is_timed() -> None:
    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(function.overloadpacket)
            return function(*args, **(kwargs or {}))

    names: list[Any] = []
    products = pqn_update(*breakout())
    with Seen():
        products()
    assert len(names) == len(products.calls) == 3 + 5  # three layers; a convolution's backward pass is one call
    assert set(names) <= set(PRODUCTS)


def test_operands_have_the_layout_of_the_recorded_ones() -> None:
    """A transposed, a broadcast and a plain matrix: the same strides, and memory of its own."""
    left, right = torch.zeros(5, 3).t(), torch.zeros(5)
    products = Products.of(lambda: torch.addmm(right.expand(3, 5), left, torch.zeros(5, 5)))
    call: Any = products.calls[0]
    assert [tensor.stride() for tensor in call.args] == [(0, 1), (1, 3), (5, 1)]
    assert [tuple(tensor.shape) for tensor in call.args] == [(3, 5), (3, 5), (5, 5)]
    assert call.args[1].any()
    assert not left.any()


def test_seconds_are_scaled_and_added_by_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call takes 1 second on this clock. The first round is a warm-up."""
    counts: list[int] = []

    class Counted(Products):
        def __call__(self) -> None:
            counts.append(1)

    def clock(work: Any) -> float:
        before = len(counts)
        work()
        return float(len(counts) - before)

    monkeypatch.setattr("millpond.bench.products.timed", clock)
    made = [
        Repeated("learn", Counted(), 10, 2),
        Repeated("learn", Counted(), 3, 5),
        Repeated("act", Counted(), 0.5, 1),
    ]
    between = BetweenRounds(lambda: made, lambda text: None)
    ended: Any = None
    for _ in range(3):
        between(ended)
    assert between.spent == [3 + 8, 8, 8]
    assert {name: (spread.median, spread.count) for name, spread in between.summary().items()} == {
        "learn": (13.0, 2),
        "act": (0.5, 2),
    }
