"""Fast actors against `Policy.act`, step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from millpond import fast
from millpond.envs.spec import ActionSpec, ObservationSpec
from millpond.fast.act import NetworkActor, RecurrentActor
from millpond.policies import Policy, build_policy
from millpond.threads import torch_threads
from tests.support.update_rows import set_value_scale

BATCH, HIDDEN = 70, 16  # enough for two threads
VECTOR = ObservationSpec.single((4,), "float32", "vector")
OBSERVATIONS = {
    "vector": VECTOR,
    "grid": ObservationSpec.packed([("cells", "grid", (5, 5), "uint8"), ("inventory", "vector", (3,), "uint8")]),
    "tokens": ObservationSpec.single((16, 3), "uint8", "tokens"),
    "images": ObservationSpec.single((4, 36, 40), "uint8", "pixels"),
    "small images": ObservationSpec.single((4, 10, 10), "uint8", "pixels"),
}
CONTINUOUS = ActionSpec.continuous((-1.0, -3.0), (1.0, 2.0))
MIXED = ActionSpec.mixed((3, 2), (-1.0, -3.0), (1.0, 2.0))


def make_actor(policy: Policy, **settings: Any) -> RecurrentActor | NetworkActor:
    actor = fast.actor(policy, **settings)
    assert actor is not None
    return actor


def compare_with_policy(
    spec: ObservationSpec,
    action: ActionSpec,
    core: Any,
    *,
    masked: bool,
    threads: int,
    frozen: bool,
    **value: bool,
) -> None:
    """Let both act for three steps from the same states, with the same random numbers."""
    draw = torch.Generator().manual_seed(0)
    policy = build_policy(spec, action, core=core, hidden_size=HIDDEN, generator=draw, **value)
    with torch.no_grad():
        policy.output.weight.mul_(30.0)  # far from uniform
        if policy.value_scale is not None:
            policy.value_layer.weight[-1].normal_(generator=draw)
            set_value_scale(policy, -3.0, 2.0)
    actor = make_actor(policy)
    if frozen:
        actor.freeze_weights()
    state = torch.randn(BATCH, policy.states, HIDDEN, generator=draw)
    for step in range(3):
        observation = torch.randn(BATCH, 4, generator=draw)
        if spec.dtype == "uint8":
            observation = torch.randint(0, 9, (BATCH, *spec.shape), generator=draw, dtype=torch.uint8)
        mask = torch.rand(BATCH, action.mask_size, generator=draw) < 0.7 if masked else None
        updated = state.clone()
        with torch_threads(threads):
            expected = policy.act(observation, state, action_mask=mask, generator=torch.Generator().manual_seed(step))
            value = actor.value(observation.numpy(), state)
            arrays = observation.numpy(), updated, None if mask is None else mask.numpy()
            acted = actor.act(*arrays, torch.Generator().manual_seed(step))
        for ours, plain in (
            (acted.action, expected.action),
            (acted.log_prob, expected.log_prob),
            (acted.value, expected.value),
            (value, expected.value),
            (updated, expected.state),
        ):
            np.testing.assert_allclose(ours, plain.numpy(), rtol=1e-5, atol=5e-6)
        state = expected.state.clone()


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("action", [ActionSpec.discrete(5), ActionSpec.multidiscrete((3, 2))], ids=["one", "several"])
@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_lstm_with_choices_acts_as_the_policy(
    observation: str, action: ActionSpec, masked: bool, threads: int, frozen: bool
) -> None:
    compare_with_policy(OBSERVATIONS[observation], action, "lstm", masked=masked, threads=threads, frozen=frozen)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("core", ["lstm", "gru", "mingru", "none"])
@pytest.mark.parametrize("action", [ActionSpec.discrete(5), CONTINUOUS], ids=["discrete", "continuous"])
@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_every_core_and_head_acts_as_the_policy(observation: str, action: ActionSpec, core: str, threads: int) -> None:
    compare_with_policy(OBSERVATIONS[observation], action, core, masked=False, threads=threads, frozen=True)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("core", ["lstm", "gru", "none"])
def test_choices_with_a_vector_act_as_the_policy(core: str, masked: bool) -> None:
    compare_with_policy(VECTOR, MIXED, core, masked=masked, threads=2, frozen=True)


@pytest.mark.parametrize("value", [{"normalize_values": True}, {"separate_critic": True, "normalize_values": True}])
@pytest.mark.parametrize("core", ["lstm", "gru", "mingru", "none"])
@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_normalised_value_and_separate_critic_act_as_the_policy(
    observation: str, core: str, value: dict[str, bool]
) -> None:
    spec, action = OBSERVATIONS[observation], ActionSpec.discrete(5)
    compare_with_policy(spec, action, core, masked=True, threads=2, frozen=True, **value)


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_actor_follows_weights_that_change_in_place(core: Any) -> None:
    policy = build_policy(VECTOR, ActionSpec.discrete(3), core=core, hidden_size=HIDDEN)
    actor, observation = make_actor(policy), np.ones((2, 4), np.float32)
    before = np.asarray(actor.act(observation, policy.initial_state(2), None, None).value).copy()
    with torch.no_grad():
        policy.output.bias.add_(1.0)
    after = np.asarray(actor.act(observation, policy.initial_state(2), None, None).value).copy()
    np.testing.assert_allclose(after, before + 1.0, rtol=1e-6)


@pytest.mark.parametrize("core", ["lstm", "none"])
def test_evaluation_follows_the_weights_after_a_collection_of_images(core: Any) -> None:
    spec = OBSERVATIONS["images"]
    policy = build_policy(spec, ActionSpec.discrete(3), core=core, hidden_size=HIDDEN)
    actor, observation = make_actor(policy), torch.randint(0, 256, (2, *spec.shape), dtype=torch.uint8)
    actor.freeze_weights()
    with torch.no_grad():
        for weight in policy.encoder.parameters():
            weight.mul_(-1.0)
    state = policy.initial_state(2)
    torch.testing.assert_close(actor.policy.value(observation, state), policy.value(observation, state))
    actor.freeze_weights()
    torch.testing.assert_close(actor.value(observation.numpy(), state), policy.value(observation, state))


@pytest.mark.bfloat16
@pytest.mark.parametrize("threads", [1, 2])
def test_autocast_acts_in_bfloat16(threads: int) -> None:
    policy = build_policy(VECTOR, ActionSpec.discrete(3), hidden_size=HIDDEN)
    actor = make_actor(policy, autocast=True)
    assert isinstance(actor, NetworkActor)
    observation, state = torch.randn(BATCH, 4), torch.randn(BATCH, 2, HIDDEN)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch_threads(threads):
        expected, value = policy.value(observation, state), actor.value(observation.numpy(), state)
    torch.testing.assert_close(value, expected, rtol=0, atol=1e-2)
    assert not torch.allclose(value, policy.value(observation, state), rtol=0, atol=1e-6)
