"""Gradients in one compiled call against torch's own, in float64, for which there is no compiled way."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from millpond.trainers.common.clipping import clip_gradients
from millpond.trainers.ppo.compiled_rows import RowsCall, can_take, policy_of
from millpond.trainers.ppo.micro_batch import Coefficients, Estimate, Part, learned_in_torch

from millpond.envs.spec import ActionSpec, ObservationSpec
from millpond.policies import build_policy
from millpond.rollout.rows import Rows
from millpond.rollout.sampling import Draw
from millpond.rollout.schema import RowField
from millpond.threads import torch_threads
from millpond.trainers.ppo.update import part_loss, train_minibatch

ROWS, HORIZON, AGENTS, HIDDEN, NUMBERS = 9, 12, 2, 16, 5
WEIGHT = np.linspace(0.5, 1.5, ROWS, dtype=np.float32)
SPEC = ObservationSpec.single((NUMBERS,), "float32", "vector")
OBSERVATIONS = {
    "vector": SPEC,
    "tokens": ObservationSpec.single((24, 3), "uint8", "tokens"),
    "odd tokens": ObservationSpec.single((20, 3), "uint8", "tokens"),
    "several": ObservationSpec.packed([("cells", "grid", (3, 3), "uint8"), ("held", "vector", (3,), "uint8")]),
}


def made_rows(action: ActionSpec, masked: bool, seen: ObservationSpec, hidden: int = HIDDEN) -> tuple[Rows, Estimate]:
    """Made-up rows in which episodes end and agents die."""
    draw = torch.Generator().manual_seed(1)
    choices = () if action.kind == "discrete" else (len(action.sizes),)
    shapes: dict[str, tuple[tuple[int, ...], str]] = {
        "observation": (seen.shape, seen.dtype),
        "action": (choices, "int32"),
        "log_prob": ((), "float32"),
        "value": ((), "float32"),
        "initial_state": ((2, hidden), "float32"),
        **dict.fromkeys(("terminated", "truncated", "alive"), ((), "bool")),
        **({"action_mask": ((sum(action.sizes),), "bool")} if masked else {}),
    }
    fields = [
        RowField(name, shape, dtype, np.dtype(dtype).itemsize, per_step=name != "initial_state", trained=True)
        for name, (shape, dtype) in shapes.items()
    ]
    rows = Rows(fields, ROWS, HORIZON, AGENTS, AGENTS, "cpu")
    for name in ("initial_state", "value"):
        rows[name].normal_(generator=draw)
    if seen.dtype == "float32":
        rows["observation"].normal_(generator=draw)
    else:
        rows["observation"].random_(0, 256 if len(seen.shape) > 1 else 3, generator=draw)
    if seen.parts[0].kind == "tokens":  # the first step has no real token, the next has one, and so on
        for t in range(HORIZON):
            rows["observation"][:, t, :, t:] = 255
    rows["log_prob"].uniform_(-2.0, -0.2, generator=draw)
    sizes = torch.tensor(action.sizes) if choices else torch.tensor(action.sizes[0])
    rows["action"].copy_((torch.rand(rows["action"].shape, generator=draw) * sizes).int())
    for name, often in (("terminated", 0.1), ("truncated", 0.1), ("alive", 0.9)):
        rows[name].copy_(torch.rand(rows[name].shape, generator=draw) < often)
    if masked:
        mask = torch.rand(rows["action_mask"].shape, generator=draw) < 0.7
        begins = torch.tensor((0, *action.sizes[:-1])).cumsum(0)
        taken = rows["action"].view(*mask.shape[:-1], -1) + begins  # what was taken was allowed
        rows["action_mask"].copy_(mask.scatter(-1, taken, True))
    advantage = torch.randn(ROWS, HORIZON, AGENTS, generator=draw)
    return rows, Estimate(advantage, 2 * advantage, np.zeros(ROWS), torch.zeros(()), rows["alive"].sum(dim=(1, 2)))


def trained_part(action: ActionSpec, masked: bool, seen: ObservationSpec = SPEC, hidden: int = HIDDEN) -> Part:
    """All of them, with weights."""
    return Part.of(*made_rows(action, masked, seen, hidden), torch.arange(ROWS), WEIGHT, torch.device("cpu"))


def in_float64(part: Part) -> Part:
    def double(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.double() if tensor.is_floating_point() else tensor

    batch = {name: double(tensor) for name, tensor in part.batch.items()}
    others = part.state, part.reset, part.log_prob, part.value, part.advantage, part.target, part.weight
    return Part(batch, *map(double, others))


@pytest.mark.parametrize(("vf_clip", "value_trains_core"), [(0.1, True), (None, True), (0.1, False)])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    ("action", "masked"),
    [
        (ActionSpec.discrete(4), False),
        (ActionSpec.discrete(4), True),
        (ActionSpec.multidiscrete((3, 2)), False),
        (ActionSpec.multidiscrete((3, 2)), True),
    ],
)
def test_gradients_and_losses_are_those_of_plain_torch(
    action: ActionSpec, masked: bool, threads: int, vf_clip: float | None, value_trains_core: bool
) -> None:
    coefficients = Coefficients(0.2, vf_clip, 0.5, 0.02, 0.5)
    compare_with_plain_torch(SPEC, action, masked, threads, coefficients, value_trains_core)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("seen", OBSERVATIONS)
@pytest.mark.parametrize("hidden", [HIDDEN, 12])  # in whole panels, and not
def test_so_they_are_whatever_is_seen(seen: str, hidden: int, threads: int) -> None:
    coefficients = Coefficients(0.2, 0.1, 0.5, 0.02, 0.5)
    compare_with_plain_torch(OBSERVATIONS[seen], ActionSpec.discrete(4), True, threads, coefficients, True, hidden)


def compare_with_plain_torch(
    seen: ObservationSpec,
    action: ActionSpec,
    masked: bool,
    threads: int,
    coefficients: Coefficients,
    value_trains_core: bool,
    hidden: int = HIDDEN,
) -> None:
    policy = build_policy(seen, action, hidden_size=hidden, generator=torch.Generator().manual_seed(0))
    policy.value_trains_core = value_trains_core
    with torch.no_grad():
        policy.output.weight.mul_(20.0)  # far from uniform, so that some ratios are clipped and some are not
    part = trained_part(action, masked, seen, hidden)
    living = float((part.weight > 0).sum())
    with torch_threads(threads):
        losses, gradients = RowsCall(policy, list(policy.parameters()), part, coefficients, living)()

    plain = copy.deepcopy(policy).double()
    exact = in_float64(trained_part(action, masked, seen, hidden))
    expected = part_loss(plain.unroll, exact, coefficients, torch.tensor(living))
    wanted = torch.autograd.grad(expected.pop("total"), list(plain.parameters()))
    for gradient, reference in zip(gradients, wanted, strict=True):
        assert gradient is not None
        torch.testing.assert_close(gradient.double(), reference, rtol=1e-4, atol=1e-6)
    assert losses.keys() == expected.keys()
    for name, loss in losses.items():
        assert float(loss) == pytest.approx(float(expected[name]), rel=1e-4, abs=1e-6), name
    assert 0 < float(losses["clip_fraction"]) < 1


@pytest.mark.parametrize("seen", ["vector", "tokens"])
def test_a_nan_that_was_seen_or_learned_is_in_all_that_follows(seen: str) -> None:
    policy = build_policy(OBSERVATIONS[seen], ActionSpec.discrete(4), hidden_size=HIDDEN)
    encoder = policy.encoder.compiled()
    assert encoder is not None
    with torch.no_grad():
        encoder.parameters[-1][3] = float("nan")  # the bias
    part = trained_part(ActionSpec.discrete(4), False, OBSERVATIONS[seen])
    losses, gradients = RowsCall(policy, list(policy.parameters()), part, Coefficients(0.2, 0.1, 0.5, 0.02, 0.5), 1.0)()
    assert losses["value_loss"].isnan()
    assert all(gradient is not None and bool(gradient.isnan().any()) for gradient in gradients)


@pytest.mark.parametrize("seen", OBSERVATIONS)
def test_memory_that_is_kept_changes_nothing(seen: str) -> None:
    """Minibatches of other rows each time, one of them smaller, in parts; the same to the last bit."""
    action = ActionSpec.multidiscrete((3, 2))
    rows, estimate = made_rows(action, True, OBSERVATIONS[seen])
    found = []
    for kept in (None, dict[tuple[int, int], RowsCall]()):
        policy = build_policy(
            OBSERVATIONS[seen], action, hidden_size=HIDDEN, generator=torch.Generator().manual_seed(0)
        )
        parameters = list(policy.parameters())
        optimizer = torch.optim.SGD(parameters, lr=0.01)
        with torch_threads(2):
            for picked in ([0, 1, 2, 3, 4, 5, 6, 7], [8, 7, 6, 5, 4, 3, 2, 1], [2, 2, 5], [1, 3, 5, 7, 0, 2, 4, 6]):
                train_minibatch(
                    policy.unroll,
                    parameters,
                    optimizer,
                    rows,
                    estimate,
                    Draw(np.array(picked), WEIGHT[: len(picked)]),
                    Coefficients(0.2, 0.1, 0.5, 0.02, 0.5),
                    part_rows=4,
                    device=torch.device("cpu"),
                    kept=kept,
                )
        assert kept is None or bool(kept) == (seen != "several"), "an encoder of torch's keeps nothing"
        found.append([parameter.detach() for parameter in parameters])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_what_is_learned_from_is_picked_alike_with_and_without_torch() -> None:
    rows, estimate = made_rows(ActionSpec.discrete(4), False, SPEC)
    picked, weight, cpu = torch.tensor([7, 0, 3]), WEIGHT[[7, 0, 3]], torch.device("cpu")
    part = Part.of(rows, estimate, picked, weight, cpu)
    found = part.reset, part.log_prob, part.value, part.advantage, part.target, part.weight
    for one, other in zip(found, learned_in_torch(rows, estimate, picked, weight, cpu), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    torch.testing.assert_close(part.reset[:, 0], torch.zeros(3 * AGENTS, dtype=torch.bool))
    with pytest.raises(IndexError):
        Part.of(rows, estimate, torch.tensor([ROWS]), weight[:1], cpu)


def test_only_what_is_computed_there_is_taken() -> None:
    cpu = torch.device("cpu")
    lstm = build_policy(SPEC, ActionSpec.discrete(3), hidden_size=HIDDEN)
    assert policy_of(lstm.unroll) is lstm
    assert can_take(lstm, cpu)
    assert not can_take(build_policy(SPEC, ActionSpec.discrete(3), core="gru", hidden_size=HIDDEN), cpu)
    continuous = ActionSpec.continuous((-1.0,), (1.0,))
    assert not can_take(build_policy(SPEC, continuous, hidden_size=HIDDEN), cpu)
    assert not can_take(lstm, torch.device("cuda"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not can_take(lstm, cpu)
    assert policy_of(torch.compile(lstm.unroll)) is None

    class Own(type(lstm)):  # type: ignore[misc]
        def unroll(self, *arguments: Any, **named: Any) -> Any:
            return super().unroll(*arguments, **named)

    assert policy_of(Own(lstm.encoder, lstm.core, lstm.head, HIDDEN).unroll) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_clipping_is_torchs(max_norm: float) -> None:
    ours, theirs = ([torch.nn.Parameter(torch.ones(3, 4)), torch.nn.Parameter(torch.ones(7))] for _ in range(2))
    for one, other in zip(ours, theirs, strict=True):
        one.grad = torch.randn(one.shape)
        other.grad = one.grad.clone()
    norm, expected = clip_gradients(ours, max_norm), torch.nn.utils.clip_grad_norm_(theirs, max_norm)
    torch.testing.assert_close(norm, expected)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_a_nan_spreads_to_all_gradients() -> None:
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    parameters[0].grad, parameters[1].grad = torch.tensor([1.0, float("nan")]), torch.ones(2)
    assert clip_gradients(parameters, 0.5).isnan()
    assert parameters[1].grad.isnan().all()
