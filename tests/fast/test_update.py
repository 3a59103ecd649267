"""Gradients of the fast updater against those of plain torch, in float64 and float32."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from millpond import fast
from millpond.envs.spec import ActionSpec, ObservationSpec
from millpond.fast.encoders import array_encoder
from millpond.fast.ppo_loss import loss_arguments
from millpond.fast.rows import RecurrentRows
from millpond.fast.update import GraphRows
from millpond.losses import Coefficients, Scale
from millpond.policies import Policy, build_policy
from millpond.rollout.micro_batch import gather
from millpond.rollout.sampling import Draw
from millpond.threads import torch_threads
from millpond.trainers.ppo.update import Updater, train_minibatch
from tests.support.update_rows import (
    HIDDEN,
    OBSERVATIONS,
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
USUAL = Coefficients(0.2, 0.1, 0.5, 0.02, 0.5)
STATES = {"lstm": 2, "gru": 1, "mingru": 1, "none": 0}
CONTINUOUS = ActionSpec.continuous((-1.0, -2.0), (1.0, 2.0))
MIXED = ActionSpec.mixed((3, 2), (-1.0, -2.0), (1.0, 2.0))


def compare_with_plain_torch(
    observation: ObservationSpec,
    action: ActionSpec,
    *,
    masked: bool = False,
    threads: int = 1,
    coefficients: Coefficients = USUAL,
    value_trains_core: bool = True,
    hidden: int = HIDDEN,
    core: Any = "lstm",
    of_largest: float = 0.0,
    separate_critic: bool = False,
) -> None:
    """Compare gradients and metrics of all rows with those of the plain updater, in float64 and in float32.

    Gradients may also differ by the fraction `of_largest` of the largest number of their parameter.
    """
    generator = torch.Generator().manual_seed(0)
    scale = coefficients.value_scale
    policy = build_policy(
        observation,
        action,
        core=core,
        hidden_size=hidden,
        generator=generator,
        separate_critic=separate_critic,
        normalize_values=scale is not None,
    )
    if scale is not None:
        set_value_scale(policy, float(scale.mean), float(scale.deviation))
    policy.value_trains_core = value_trains_core
    with torch.no_grad():
        policy.output.weight.mul_(
            1.0 if action.low else 20.0
        )  # far from uniform, so that some ratios are clipped and some are not
        if scale is not None:  # not 0
            policy.value_layer.weight[-1].normal_(generator=generator)
    rows, advantages = random_rows(action, masked, observation, hidden, policy.states)
    everything, valid_steps = torch.arange(ROWS), rows["alive"].sum()
    plain, exact = copy.deepcopy(policy), copy.deepcopy(policy).double()
    with torch_threads(threads):
        shares = fast_updater(policy).backward(rows, advantages, everything, WEIGHT, coefficients, valid_steps)
    metrics = {name: sum(float(share[name]) for share in shares) for name in shares[0]}
    micro_batch = gather(rows, advantages, everything, WEIGHT, CPU)
    (expected,) = Updater(exact, device=CPU).backward_of(
        [in_float64(micro_batch)], coefficients, torch.tensor(float(valid_steps), dtype=torch.float64)
    )
    Updater(plain, device=CPU).backward(rows, advantages, everything, WEIGHT, coefficients, valid_steps)
    for ours, float32, float64 in zip(*map(gradients_of, (policy, plain, exact)), strict=True):
        assert ours is not None
        assert float32 is not None
        size = of_largest * float(float64.abs().max())
        torch.testing.assert_close(ours.double(), float64, rtol=1e-4, atol=max(1e-6, size))
        torch.testing.assert_close(ours, float32, rtol=1e-4, atol=max(1e-5, size))
    assert metrics.keys() == expected.keys()
    for name, metric in metrics.items():
        assert metric == pytest.approx(float(expected[name]), rel=1e-4, abs=1e-6), name
    assert 0 < metrics["clip_fraction"] < 1


@pytest.mark.parametrize(("vf_clip", "value_trains_core"), [(0.1, True), (None, True), (0.1, False)])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("action", [ActionSpec.discrete(4), ActionSpec.multidiscrete((3, 2))], ids=["one", "several"])
def test_gradients_of_an_lstm_with_choices_equal_plain_torch(
    action: ActionSpec, masked: bool, threads: int, vf_clip: float | None, value_trains_core: bool
) -> None:
    coefficients = Coefficients(0.2, vf_clip, 0.5, 0.02, 0.5)
    compare_with_plain_torch(
        SPEC,
        action,
        masked=masked,
        threads=threads,
        coefficients=coefficients,
        value_trains_core=value_trains_core,
    )


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize("hidden", [HIDDEN, 12])  # in whole panels, and not
def test_gradients_equal_plain_torch_for_every_encoder(observation: str, hidden: int, threads: int) -> None:
    action = ActionSpec.discrete(4)
    compare_with_plain_torch(OBSERVATIONS[observation], action, masked=True, threads=threads, hidden=hidden)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("hidden", [HIDDEN, 12])  # in whole panels, and not
@pytest.mark.parametrize("observation", ["vector", "tokens", "several"])
@pytest.mark.parametrize("core", ["gru", "none"])
def test_gradients_equal_plain_torch_for_every_core(core: str, observation: str, hidden: int, threads: int) -> None:
    action = ActionSpec.multidiscrete((3, 2))
    compare_with_plain_torch(OBSERVATIONS[observation], action, core=core, masked=True, hidden=hidden, threads=threads)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("core", ["lstm", "gru", "mingru", "none"])
@pytest.mark.parametrize("value_trains_core", [True, False])
def test_gradients_of_continuous_actions_equal_plain_torch(core: str, value_trains_core: bool, threads: int) -> None:
    compare_with_plain_torch(SPEC, CONTINUOUS, core=core, value_trains_core=value_trains_core, threads=threads)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("observation", ["vector", "several"])
@pytest.mark.parametrize("core", ["lstm", "gru", "none"])
def test_newest_ratios_and_values_are_written_back_to_the_rows_that_were_trained(
    core: Any, observation: str, threads: int
) -> None:
    """Of every way to compute them: whole rows, without memory, and torch's graph; and of plain torch."""
    seen, action = OBSERVATIONS[observation], ActionSpec.multidiscrete((3, 2))
    generator = torch.Generator().manual_seed(0)
    policy = build_policy(seen, action, core=core, hidden_size=HIDDEN, generator=generator, normalize_values=True)
    set_value_scale(policy, -1.5, 0.7)
    with torch.no_grad():
        policy.value_layer.weight[-1].normal_(generator=generator)
    coefficients = replace(USUAL, value_scale=Scale(-1.5, 0.7), weights_value=False)
    picked, weight = torch.tensor([7, 0, 4, 5, 2]), WEIGHT[:5]
    written = []
    for updater in (fast_updater(policy), Updater(policy, device=CPU)):
        rows, advantages = random_rows(action, True, seen, HIDDEN, policy.states, ratio=True)
        rows["ratio"].fill_(1.0)
        rows.resets_state = False
        before = rows["value"].clone()
        with torch_threads(threads):
            metrics = updater.backward(rows, advantages, picked, weight, coefficients, rows["alive"].sum())
        kl = sum(float(share["approx_kl"]) for share in metrics) * float(rows["alive"].sum())
        batch = gather(rows, advantages, picked, weight, CPU)
        ratio = rows["ratio"][picked][rows["alive"][picked]].double()
        assert kl == pytest.approx(float((ratio - 1 - ratio.log()).sum()), rel=1e-4)
        others = torch.tensor([1, 3, 6, 8])
        assert torch.equal(rows["value"][others], before[others])
        assert torch.equal(rows["ratio"][others], torch.ones_like(rows["ratio"][others]))
        again = policy.unroll(batch.observation, batch.state, batch.reset, batch.action, action_mask=batch.action_mask)
        torch.testing.assert_close(batch.value, again.value.detach(), rtol=1e-4, atol=1e-5)
        written.append(rows)
    for name in ("ratio", "value"):
        alive = written[0]["alive"]
        torch.testing.assert_close(written[0][name][alive], written[1][name][alive], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("core", ["lstm", "none"])
def test_weights_on_the_advantage_alone_equal_plain_torch(core: str) -> None:
    compare_with_plain_torch(SPEC, ActionSpec.discrete(4), core=core, coefficients=replace(USUAL, weights_value=False))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("core", ["lstm", "gru", "none"])
def test_gradients_of_choices_with_a_vector_equal_plain_torch(core: str, masked: bool) -> None:
    compare_with_plain_torch(SPEC, MIXED, core=core, masked=masked, threads=2)


NORMALISED = Coefficients(0.2, 0.1, 0.5, 0.02, 0.5, advantage_scale=Scale(0.3, 1.6), value_scale=Scale(-1.5, 0.7))


@pytest.mark.parametrize("value_trains_core", [True, False])
@pytest.mark.parametrize("observation", ["vector", "several"])
@pytest.mark.parametrize("core", ["lstm", "gru", "mingru", "none"])
def test_gradients_of_normalised_values_and_advantages_equal_plain_torch(
    core: str, observation: str, value_trains_core: bool
) -> None:
    compare_with_plain_torch(
        OBSERVATIONS[observation],
        ActionSpec.discrete(4),
        core=core,
        coefficients=NORMALISED,
        value_trains_core=value_trains_core,
        threads=2,
    )


@pytest.mark.parametrize("coefficients", [USUAL, NORMALISED], ids=["usual", "normalised"])
def test_gradients_of_a_separate_critic_equal_plain_torch(coefficients: Coefficients) -> None:
    action = ActionSpec.discrete(4)
    compare_with_plain_torch(SPEC, action, core="none", coefficients=coefficients, separate_critic=True, threads=2)


@pytest.mark.parametrize(("core", "observation"), [("lstm", "vector"), ("gru", "tokens"), ("none", "several")])
def test_other_separate_critics_are_left_to_plain_torch(core: Any, observation: str) -> None:
    policy = build_policy(OBSERVATIONS[observation], ActionSpec.discrete(4), core=core, separate_critic=True)
    assert fast.updater(policy) is None
    assert fast.actor(policy) is not None


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_long_rows_are_computed_in_blocks_with_the_same_result(core: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of two steps, which do not divide the horizon evenly among threads."""
    monkeypatch.setattr("millpond.fast.rows.LSTM_BLOCK", 5 * 9)
    compare_with_plain_torch(SPEC, ActionSpec.discrete(4), core=core, masked=True, threads=2)


@pytest.mark.parametrize("observation", ["vector", "tokens"])
def test_nan_in_a_weight_spreads_to_losses_and_gradients(observation: str) -> None:
    policy = build_policy(OBSERVATIONS[observation], ActionSpec.discrete(4), hidden_size=HIDDEN)
    with torch.no_grad():
        policy.encoder.bias[3] = float("nan")
    rows, advantages = random_rows(ActionSpec.discrete(4), False, OBSERVATIONS[observation])
    updater = fast_updater(policy)
    (metrics,) = updater.backward(rows, advantages, torch.arange(ROWS), WEIGHT, USUAL, torch.tensor(1))
    assert metrics["value_loss"].isnan()
    assert all(gradient is not None and bool(gradient.isnan().any()) for gradient in gradients_of(policy))


@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_cached_memory_changes_nothing(observation: str) -> None:
    """Minibatches of other rows each time, one of them smaller, in micro-batches; the same to the last bit."""
    action, spec = ActionSpec.multidiscrete((3, 2)), OBSERVATIONS[observation]
    rows, advantages = random_rows(action, True, spec)
    weights = []
    for cached in (False, True):
        policy = build_policy(spec, action, hidden_size=HIDDEN, generator=torch.Generator().manual_seed(0))
        optimizer, updater = torch.optim.SGD(policy.parameters(), lr=0.01), fast_updater(policy)
        with torch_threads(2):
            for picked in ([0, 1, 2, 3, 4, 5, 6, 7], [8, 7, 6, 5, 4, 3, 2, 1], [2, 2, 5], [1, 3, 5, 7, 0, 2, 4, 6]):
                train_minibatch(
                    updater if cached else fast_updater(policy),
                    optimizer,
                    rows,
                    advantages,
                    Draw(np.array(picked), WEIGHT[: len(picked)]),
                    USUAL,
                    micro_batch_rows=4,
                    device=CPU,
                )
        if cached:
            throughout = array_encoder(policy.encoder) is not None
            assert bool(updater._cached) == throughout == (observation != "several")
        weights.append([parameter.detach() for parameter in policy.parameters()])
    for one, other in zip(*weights, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("core", "action", "autocast", "kind"),
    [
        ("lstm", ActionSpec.discrete(3), False, RecurrentRows),
        ("lstm", ActionSpec.discrete(3), True, GraphRows),
        ("gru", ActionSpec.discrete(3), False, RecurrentRows),
        ("lstm", CONTINUOUS, False, RecurrentRows),
    ],
)
def test_rows_of_recurrent_policies_are_one_call_and_in_bfloat16_a_graph(
    core: Any, action: ActionSpec, autocast: bool, kind: type
) -> None:
    policy = build_policy(SPEC, action, core=core, hidden_size=HIDDEN)
    rows, advantages = random_rows(action, False, SPEC, HIDDEN, STATES[core])
    micro_batch = gather(rows, advantages, torch.arange(ROWS), WEIGHT, CPU)
    share = fast_updater(policy, autocast)._share(micro_batch, loss_arguments(USUAL, 1.0))
    assert type(share) is kind


def test_custom_unroll_is_called_in_threads_and_gives_the_same_gradients() -> None:
    class Custom(Policy):
        calls = 0

        def unroll(self, *arguments: Any, **named: Any) -> Any:
            type(self).calls += 1
            return super().unroll(*arguments, **named)

    action = ActionSpec.discrete(4)
    builtin = build_policy(SPEC, action, hidden_size=HIDDEN)
    custom = Custom(builtin.encoder, builtin.core, builtin.head, HIDDEN)  # type: ignore[arg-type]
    custom.output.load_state_dict(builtin.output.state_dict())
    rows, advantages = random_rows(action, False, SPEC)
    arguments = rows, advantages, torch.arange(ROWS), WEIGHT, USUAL, rows["alive"].sum()
    fast_updater(custom).backward(*arguments)
    assert Custom.calls == 1
    gradients = [gradient.clone() for gradient in gradients_of(custom) if gradient is not None]
    for parameter in custom.parameters():
        parameter.grad = None
    Updater(builtin, device=CPU).backward(*arguments)
    for one, other in zip(gradients, gradients_of(builtin), strict=True):
        assert other is not None
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def with_gradients(*shapes: tuple[int, ...]) -> torch.nn.ParameterList:
    parameters = torch.nn.ParameterList(torch.nn.Parameter(torch.ones(shape)) for shape in shapes)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
    return parameters


@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_clipping_equals_torch(max_norm: float) -> None:
    ours, theirs = (with_gradients((3, 4), (7,)) for _ in range(2))
    norm, expected = fast_updater(ours).clip(max_norm), Updater.clip(fast_updater(theirs), max_norm)  # type: ignore[arg-type]
    torch.testing.assert_close(norm, expected)
    for one, other in zip(gradients_of(ours), gradients_of(theirs), strict=True):
        torch.testing.assert_close(one, other)


def test_clipping_spreads_a_nan_to_all_gradients() -> None:
    parameters = with_gradients((2,), (3,))
    first = parameters[0].grad
    assert first is not None
    first[1] = float("nan")
    assert fast_updater(parameters).clip(0.5).isnan()
    assert all(gradient is not None and bool(gradient.isnan().all()) for gradient in gradients_of(parameters))


@pytest.mark.parametrize("core", ["lstm", "gru", "mingru", "none"])
@pytest.mark.parametrize(
    ("image", "threads", "row_shares"),
    [
        ((1, 36, 44), 1, 1),
        ((1, 36, 44), 2, 2),
        ((3, 36, 36), 4, 1),  # they would not divide nine rows well, so they share images instead
        ((4, 10, 10), 1, 1),
        ((4, 10, 10), 2, 1),
    ],
)
def test_gradients_of_images_equal_plain_torch(
    image: tuple[int, ...], threads: int, row_shares: int, core: str
) -> None:
    spec = ObservationSpec.single(image, "uint8", "pixels")
    compare_with_plain_torch(spec, ActionSpec.discrete(4), core=core, threads=threads, of_largest=1e-5)
    with torch_threads(threads):
        shares = fast_updater(build_policy(spec, ActionSpec.discrete(4))).shares(ROWS, 12, 2)
    assert len(shares) == row_shares
