"""The whole policy: unrolling equals acting, for every core, every encoder and every kind of action."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from millpond.envs.spec import ActionSpec, ObservationSpec
from millpond.policies import Policy, PolicyError, build_policy, count_parameters

B, T, H = 6, 11, 16

OBSERVATIONS = {
    "grid": ObservationSpec.packed([("cells", "grid", (5, 5), "uint8"), ("inventory", "vector", (3,), "uint8")]),
    "tokens": ObservationSpec.single((20, 3), "uint8", "tokens"),
    "minatar": ObservationSpec.single((4, 10, 10), "uint8", "pixels"),
    "atari": ObservationSpec.single((1, 36, 44), "uint8", "pixels"),
    "vector": ObservationSpec.single((4,), "float32", "vector"),
    "mixed": ObservationSpec.packed(
        [("mask", "vector", (3,), "bool"), ("speed", "vector", (2,), "float32"), ("view", "pixels", (8, 8), "uint8")]
    ),
}
ACTIONS = {
    "discrete": ActionSpec.discrete(5),
    "multidiscrete": ActionSpec.multidiscrete((3, 1, 4)),
    "continuous": ActionSpec.continuous((-2.0, 0.0), (2.0, float("inf"))),
    "mixed": ActionSpec.mixed((3, 2), (-2.0, 0.0), (2.0, float("inf"))),
}


def observations(name: str, *lead: int, seed: int = 0) -> Tensor:
    """Return random valid observations of a spec, [*lead, *shape]."""
    generator = torch.Generator().manual_seed(seed)
    spec = OBSERVATIONS[name]

    def whole(high: int, *shape: int) -> Tensor:
        return torch.randint(0, high, (*lead, *shape), generator=generator, dtype=torch.uint8)

    def real(*shape: int) -> Tensor:
        return torch.randn(*lead, *shape, generator=generator)

    if name == "grid":
        return torch.cat((whole(7, 25), whole(50, 3)), -1)
    if name == "tokens":
        tokens = whole(255, *spec.shape)
        tokens[torch.rand(*lead, spec.shape[0], generator=generator) < 0.7] = 0xFF
        return tokens
    if name == "vector":
        return real(*spec.shape)
    if name == "mixed":
        padding = torch.zeros(*lead, 1, dtype=torch.uint8)  # so that the floats are aligned
        return torch.cat((whole(2, 3), padding, real(2).view(torch.uint8), whole(255, 64)), -1)
    return whole(255 if name == "atari" else 2, *spec.shape)


def make(observation: str = "grid", action: str = "discrete", core: str = "lstm", **settings: Any) -> Policy:
    generator = torch.Generator().manual_seed(1)
    policy = build_policy(
        OBSERVATIONS[observation],
        ACTIONS[action],
        core=core,  # type: ignore[arg-type]
        hidden_size=H,
        generator=generator,
        **settings,
    )
    with torch.no_grad():  # so that actions are far from uniform
        policy.output.weight.normal_(std=0.3, generator=generator)
        if policy.value_scale is not None:
            policy.value_layer.weight[-1].normal_(std=0.3, generator=generator)
            policy.value_scale.mean.fill_(-3.0)
            policy.value_scale.variance.fill_(4.0)
    return policy


def masks(action: str, *lead: int) -> Tensor | None:
    """Return random masks that allow at least one action of each choice."""
    sizes = ACTIONS[action].sizes
    if not sizes:
        return None
    mask = torch.rand(*lead, ACTIONS[action].mask_size, generator=torch.Generator().manual_seed(5)) < 0.6
    first = 0
    for size in sizes:
        mask[..., first] = True
        first += size
    return mask


def roll(policy: Policy, seen: Tensor, reset: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Act through rows: observations [B, T, ...], reset [B, T] -> actions, log-probabilities, values."""
    generator = torch.Generator().manual_seed(2)
    state = policy.initial_state(len(seen))
    rows: list[tuple[Tensor, Tensor, Tensor]] = []
    for t in range(reset.shape[1]):
        state = torch.where(reset[:, t, None, None], policy.initial_state(len(seen)), state)
        step_mask = None if mask is None else mask[:, t]
        acted = policy.act(seen[:, t], state, action_mask=step_mask, generator=generator)
        rows.append((acted.action, acted.log_prob, acted.value))
        state = acted.state
    actions, log_probs, values = (torch.stack(column, 1) for column in zip(*rows, strict=True))
    return actions, log_probs, values


def resets() -> Tensor:
    reset = torch.rand(B, T, generator=torch.Generator().manual_seed(4)) < 0.25
    reset[0, -1] = True
    reset[1] = False
    return reset


@pytest.mark.parametrize("core", ["lstm", "gru", "mingru", "none"])
@pytest.mark.parametrize("observation", list(OBSERVATIONS))
@pytest.mark.parametrize(
    ("action", "masked"),
    [*((action, False) for action in ACTIONS), ("discrete", True), ("multidiscrete", True), ("mixed", True)],
)
def test_row_replays(observation: str, action: str, core: str, masked: bool) -> None:
    check_that_a_row_replays(make(observation, action, core), observation, action, masked)


@pytest.mark.parametrize("normalize_values", [False, True])
@pytest.mark.parametrize("core", ["lstm", "gru", "mingru", "none"])
@pytest.mark.parametrize("observation", list(OBSERVATIONS))
def test_row_replays_with_a_separate_critic(observation: str, core: str, normalize_values: bool) -> None:
    policy = make(observation, "discrete", core, separate_critic=True, normalize_values=normalize_values)
    check_that_a_row_replays(policy, observation, "discrete", True)
    states = {"lstm": 4, "gru": 2, "mingru": 2, "none": 0}[core]
    assert policy.initial_state(3).shape == (3, states, H)


@pytest.mark.parametrize("core", ["lstm", "gru", "mingru", "none"])
def test_row_replays_with_normalised_values(core: str) -> None:
    check_that_a_row_replays(make("vector", "discrete", core, normalize_values=True), "vector", "discrete", False)


def test_separate_critic_shares_nothing() -> None:
    """The policy loss has no gradient in the critic, and the value loss has none elsewhere."""
    policy = make("vector", separate_critic=True)
    seen, reset = observations("vector", B, T), resets()
    unrolled = policy.unroll(seen, policy.initial_state(B), reset, torch.zeros(B, T, dtype=torch.int32))
    own, critic = [*policy.encoder.parameters(), *policy.core.parameters()], [*policy.critic.parameters()]  # type: ignore
    assert len(critic) == len(own) + 2
    for loss, trained, untouched in (
        (unrolled.log_prob.sum(), own, critic),
        (unrolled.value.sum(), critic, own),
    ):
        gradients = torch.autograd.grad(loss, [*trained, *untouched], allow_unused=True, retain_graph=True)
        assert all(gradient is not None and gradient.any() for gradient in gradients[: len(trained)])
        assert all(gradient is None for gradient in gradients[len(trained) :])


def check_that_a_row_replays(policy: Policy, observation: str, action: str, masked: bool) -> None:
    seen, reset = observations(observation, B, T), resets()
    mask = masks(action, B, T) if masked else None
    actions, log_probs, values = roll(policy, seen, reset, mask)
    assert actions.shape == (B, T, *ACTIONS[action].shape)
    assert actions.dtype == getattr(torch, ACTIONS[action].dtype)
    unrolled = policy.unroll(seen, policy.initial_state(B), reset, actions, action_mask=mask)
    torch.testing.assert_close(unrolled.log_prob, log_probs, rtol=0, atol=1e-5)
    torch.testing.assert_close(unrolled.value, values, rtol=0, atol=1e-5)
    assert unrolled.entropy.shape == (B, T)
    (unrolled.log_prob.sum() + unrolled.value.sum() + unrolled.entropy.sum()).backward()
    for name, parameter in policy.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_row_replays_from_the_middle_of_an_episode(core: str) -> None:
    """The second half alone, from the state stored at its start."""
    policy = make(core=core)
    seen, state, half = observations("grid", B, T), policy.initial_state(B), T // 2
    acted = []
    for t in range(T):
        if t == half:
            stored = state
        acted.append(policy.act(seen[:, t], state))
        state = acted[-1].state
    action = torch.stack([one.action for one in acted[half:]], 1)
    unrolled = policy.unroll(seen[:, half:], stored, torch.zeros(B, T - half, dtype=torch.bool), action)
    torch.testing.assert_close(unrolled.value, torch.stack([one.value for one in acted[half:]], 1), rtol=0, atol=1e-5)
    wrong = policy.unroll(seen[:, half:], policy.initial_state(B), torch.zeros(B, T - half, dtype=torch.bool), action)
    assert not torch.allclose(wrong.value, unrolled.value, atol=1e-3), "the stored state matters"


def test_reset_changes_outputs_from_its_step_on() -> None:
    policy = make()
    seen, state = observations("grid", B, T), torch.randn(B, 2, H)
    action = torch.zeros(B, T, dtype=torch.int32)
    none, one = torch.zeros(B, T, dtype=torch.bool), torch.zeros(B, T, dtype=torch.bool)
    one[2, 5] = True
    without, with_one = policy.unroll(seen, state, none, action), policy.unroll(seen, state, one, action)
    same = torch.isclose(without.value, with_one.value, atol=1e-7)
    assert same[2, :5].all()
    assert not same[2, 5:].any()
    assert same[torch.arange(B) != 2].all()


def test_value_equals_that_of_acting_without_side_effects() -> None:
    policy = make()
    seen, state = observations("grid", B), torch.randn(B, 2, H)
    before = state.clone()
    value = policy.value(seen, state)
    assert torch.equal(state, before)
    torch.testing.assert_close(value, policy.act(seen, state).value)
    assert torch.equal(state, before)


@pytest.mark.parametrize(("core", "states"), [("lstm", 2), ("gru", 1), ("none", 0)])
def test_initial_state_is_zeros_of_the_right_shape(core: str, states: int) -> None:
    state = make(core=core).initial_state(3)
    assert state.shape == (3, states, H)
    assert state.dtype == torch.float32
    assert not state.any()


@pytest.mark.parametrize("core", ["lstm", "gru", "mingru", "none"])
def test_value_loss_can_be_detached_from_the_core(core: str) -> None:
    policy = make(core=core)
    given = observations("grid", B, T), policy.initial_state(B), torch.zeros(B, T, dtype=torch.bool)
    taken = torch.zeros(B, T, dtype=torch.int32)
    shared = policy.unroll(*given, taken)
    policy.value_trains_core = False
    apart = policy.unroll(*given, taken)
    torch.testing.assert_close(apart.value, shared.value)
    trained, alone = [*policy.core.parameters(), policy.encoder.bias], policy.output.weight
    by_value = torch.autograd.grad(shared.value.sum(), trained, retain_graph=True)
    assert all(bool(gradient.any()) for gradient in by_value)
    none = torch.autograd.grad(apart.value.sum(), trained, retain_graph=True, allow_unused=True)
    assert none == (None,) * len(trained)
    expected = torch.autograd.grad(shared.value.sum(), alone, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(apart.value.sum(), alone, retain_graph=True), expected)
    torch.autograd.grad(apart.log_prob.sum(), trained)  # actions still train all of it


def test_same_generator_gives_the_same_policy_and_actions() -> None:
    one, two = make(), make()
    for first, second in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(first, second)
    seen, state = observations("grid", 200), one.initial_state(200)
    torch.manual_seed(0)
    drawn = one.act(seen, state, generator=torch.Generator().manual_seed(7)).action
    torch.manual_seed(1)
    assert torch.equal(drawn, two.act(seen, state, generator=torch.Generator().manual_seed(7)).action)
    assert not torch.equal(drawn, two.act(seen, state, generator=torch.Generator().manual_seed(8)).action)


def test_initial_policy_is_nearly_uniform_with_orthogonal_weights() -> None:
    policy = build_policy(OBSERVATIONS["grid"], ActionSpec.discrete(5), hidden_size=64)
    unrolled = policy.unroll(
        observations("grid", B, T), policy.initial_state(B), resets(), torch.zeros(B, T, dtype=torch.int32)
    )
    torch.testing.assert_close(unrolled.entropy, torch.full((B, T), 5.0).log(), rtol=0, atol=1e-3)
    rows = policy.output.weight
    torch.testing.assert_close(rows[:-1] @ rows[:-1].t(), 1e-4 * torch.eye(5), rtol=1e-4, atol=1e-8)
    torch.testing.assert_close(rows[-1].norm(), torch.tensor(1.0))


def test_acting_builds_no_graph() -> None:
    policy = make()
    acted = policy.act(observations("grid", B), policy.initial_state(B))
    assert not any(tensor.requires_grad for tensor in acted)
    assert not policy.value(observations("grid", B), acted.state).requires_grad


@pytest.mark.bfloat16
@pytest.mark.parametrize("core", ["lstm", "gru", "mingru", "none"])
@pytest.mark.parametrize("action", list(ACTIONS))
def test_bfloat16_autocast_agrees_with_float32(core: str, action: str) -> None:
    policy = make("grid", action, core)
    seen, reset = observations("grid", B, T), resets()
    actions, _, _ = roll(policy, seen, reset)
    inputs = (seen, policy.initial_state(B), reset, actions)

    def gradients(unrolled: Any) -> list[Tensor]:
        loss = (unrolled.log_prob + unrolled.value.square() + unrolled.entropy).mean()
        return list(torch.autograd.grad(loss, list(policy.parameters())))

    exact = policy.unroll(*inputs)
    with torch.autocast("cpu", torch.bfloat16):
        low = policy.unroll(*inputs)
        acted = policy.act(seen[:, 0], policy.initial_state(B), deterministic=True)
    assert {tensor.dtype for tensor in low if tensor is not None} == {torch.float32}
    assert acted.state.dtype == acted.log_prob.dtype == acted.value.dtype == torch.float32
    for ours, theirs in zip(low, exact, strict=True):
        if ours is not None or theirs is not None:
            torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.05)
    for ours, theirs in zip(gradients(low), gradients(exact), strict=True):
        assert ours.dtype == torch.float32
        assert nn.functional.cosine_similarity(ours.flatten(), theirs.flatten(), 0) > 0.99


@pytest.mark.slow
@pytest.mark.parametrize(("observation", "core"), [("grid", "lstm"), ("tokens", "gru"), ("minatar", "none")])
def test_compiled_policy_is_one_graph_and_agrees(core: str, observation: str) -> None:
    torch.compiler.reset()
    policy = make(observation, "discrete", core)
    seen, reset = observations(observation, B, T), resets()
    actions, _, _ = roll(policy, seen, reset)
    inputs = (seen, policy.initial_state(B), reset, actions)
    wanted = list(policy.parameters())
    unroll = torch.compile(policy.unroll, fullgraph=True)
    ours, exact = unroll(*inputs), policy.unroll(*inputs)
    for left, right in zip(ours, exact, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-5)
    for left, right in zip(
        torch.autograd.grad(ours.log_prob.sum() + ours.value.sum(), wanted),
        torch.autograd.grad(exact.log_prob.sum() + exact.value.sum(), wanted),
        strict=True,
    ):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-4)
    acted = torch.compile(policy.act)(seen[:, 0], policy.initial_state(B), deterministic=True)
    expected = policy.act(seen[:, 0], policy.initial_state(B), deterministic=True)
    for left, right in zip(acted, expected, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-5)


def test_policy_can_be_saved_and_loaded() -> None:
    policy = make("vector", normalize_observations=True)
    policy.update_normalizer(observations("vector", 100))
    other = make("vector", normalize_observations=True)
    other.load_state_dict(policy.state_dict())
    seen, state = observations("vector", B, seed=3), policy.initial_state(B)
    for left, right in zip(
        policy.act(seen, state, deterministic=True), other.act(seen, state, deterministic=True), strict=True
    ):
        assert torch.equal(left, right)
    assert any("mean" in name for name in policy.state_dict())


def test_parameters_are_counted() -> None:
    # encoder 4*16 + bias 16, lstm 4*16*(16+16+1), heads (5+1)*(16+1)
    assert count_parameters(make("vector")) == 4 * 16 + 16 + 4 * 16 * 33 + 6 * 17
    policy = make("vector")
    policy.output.bias.requires_grad_(False)
    assert count_parameters(policy) == count_parameters(make("vector")) - 6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"core": "rnn"}, "policy.core='rnn' must be one of lstm, gru, mingru, none"),
        ({"encoder": "image"}, "policy.encoder='image' must be one of auto, grid"),
        ({"hidden_size": 0}, "policy.hidden_size=0 must be at least 1"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        build_policy(OBSERVATIONS["grid"], ACTIONS["discrete"], **settings)
