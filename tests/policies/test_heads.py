"""Log-probabilities, entropies and samples, against torch.distributions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.distributions import Categorical, Independent, Normal

from millpond.envs.spec import ActionSpec
from millpond.policies import PolicyError
from millpond.policies.heads import ChoiceHead, GaussianHead, make_head

SIZES = (4, 2, 3)


@pytest.fixture(params=[True, False], ids=["plain", "compiled"])
def _both_ways(request: pytest.FixtureRequest) -> Iterator[None]:
    """Without gradients, as when acting, choices are drawn by a compiled loop."""
    with torch.set_grad_enabled(request.param):
        yield


def test_one_choice_equals_torchs_categorical() -> None:
    head = ChoiceHead(ActionSpec.discrete(5))
    logits, action = torch.randn(7, 3, 5), torch.randint(0, 5, (7, 3), dtype=torch.int32)
    log_prob, entropy = head.evaluate(logits, action, None)
    reference = Categorical(logits=logits)
    torch.testing.assert_close(log_prob, reference.log_prob(action))
    torch.testing.assert_close(entropy, reference.entropy())


def test_several_choices_add_up() -> None:
    head = ChoiceHead(ActionSpec.multidiscrete(SIZES))
    logits = torch.randn(7, sum(SIZES))
    action = torch.stack([torch.randint(0, size, (7,), dtype=torch.int32) for size in SIZES], -1)
    log_prob, entropy = head.evaluate(logits, action, None)
    references = [Categorical(logits=part) for part in logits.split(SIZES, -1)]
    torch.testing.assert_close(log_prob, sum(one.log_prob(action[:, k]) for k, one in enumerate(references)))
    torch.testing.assert_close(entropy, sum(one.entropy() for one in references))


def test_masks_forbid_and_renormalise() -> None:
    head = ChoiceHead(ActionSpec.multidiscrete((3, 2)))
    logits = torch.tensor([[1.0, 2.0, 3.0, 0.5, -0.5]], requires_grad=True)
    mask = torch.tensor([[True, False, True, False, True]])
    log_prob, entropy = head.evaluate(logits, torch.tensor([[2, 1]]), mask)
    reference = Categorical(logits=torch.tensor([1.0, 3.0]))  # the second choice has one action left
    torch.testing.assert_close(log_prob, reference.log_prob(torch.tensor([1])))
    torch.testing.assert_close(entropy, reference.entropy()[None])
    (gradient,) = torch.autograd.grad(log_prob.sum() + entropy.sum(), logits)
    assert gradient.isfinite().all()
    assert gradient[0, [1, 3]].tolist() == [0, 0]


@pytest.mark.parametrize("forbidden", ["none", "some", "all"])
def test_a_compiled_evaluation_equals_plain_torch_forth_and_back(forbidden: str) -> None:
    """float64 has no compiled way."""
    head, draw = ChoiceHead(ActionSpec.multidiscrete(SIZES)), torch.Generator().manual_seed(0)
    logits = torch.randn(5, 7, sum(SIZES), generator=draw)
    action = torch.stack([torch.randint(0, size, (5, 7), generator=draw) for size in SIZES], -1)
    mask = None
    if forbidden != "none":
        mask = torch.rand(logits.shape, generator=draw) < 0.5
        begins = torch.tensor((0, *SIZES[:-1])).cumsum(0)
        mask = mask.scatter(-1, action + begins, True)
        mask[2, 3] = mask[2, 3] & (forbidden == "some")
    found = []
    for dtype in (torch.float32, torch.float64):
        given = logits.to(dtype).requires_grad_()
        log_prob, entropy = head.evaluate(given, action, mask)
        weights = torch.linspace(-1, 1, 35).view(5, 7).to(dtype)
        (gradient,) = torch.autograd.grad((log_prob * weights + entropy * weights.flip(0)).sum(), given)
        found.append([tensor.double() for tensor in (log_prob, entropy, gradient)])
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("_both_ways")
def test_what_a_mask_forbids_is_never_drawn() -> None:
    head = ChoiceHead(ActionSpec.multidiscrete((3, 2)))
    logits = torch.tensor([[1.0, 2.0, 3.0, 0.5, -0.5]])
    generator = torch.Generator().manual_seed(0)
    many = torch.tensor([[True, False, True, False, True]]).expand(2_000, -1)
    for deterministic in (False, True):
        action, drawn = head.sample(logits.expand(2_000, -1), many, generator, deterministic)
        assert set(action[:, 0].tolist()) == ({2} if deterministic else {0, 2})
        assert set(action[:, 1].tolist()) == {1}
        torch.testing.assert_close(drawn, head.evaluate(logits.expand(2_000, -1), action, many)[0])


@pytest.mark.usefixtures("_both_ways")
def test_a_mask_that_forbids_everything_gives_numbers_all_the_same() -> None:
    head = ChoiceHead(ActionSpec.discrete(4))
    action, log_prob = head.sample(torch.randn(5, 4), torch.zeros(5, 4, dtype=torch.bool), None, False)
    torch.testing.assert_close(log_prob, torch.full((5,), 0.25).log())
    assert action.max() < 4


@pytest.mark.usefixtures("_both_ways")
def test_a_bad_number_shows_in_the_log_probability() -> None:
    logits = torch.tensor([[0.0, float("nan"), 1.0], [0.0, 1.0, 1.0]])
    _, log_prob = ChoiceHead(ActionSpec.discrete(3)).sample(logits, None, None, False)
    assert log_prob.isnan().tolist() == [True, False]


@pytest.mark.usefixtures("_both_ways")
def test_choices_are_drawn_as_often_as_they_are_likely() -> None:
    head = ChoiceHead(ActionSpec.discrete(3))
    likely = torch.tensor([0.7, 0.3, 0.0])
    count = 200_000
    generator = torch.Generator().manual_seed(0)
    action, log_prob = head.sample(likely.log().expand(count, -1), None, generator, False)
    seen = torch.bincount(action, minlength=3) / count
    assert seen[2] == 0
    torch.testing.assert_close(seen, likely, rtol=0, atol=0.005)  # four standard errors
    torch.testing.assert_close(log_prob, likely.log()[action])


@pytest.mark.parametrize("low", [(-2.0, -1.0), (-float("inf"), 3.0)])
def test_vectors_equal_torchs_normal(low: tuple[float, float]) -> None:
    high = (2.0, 5.0)
    head = GaussianHead(ActionSpec.continuous(low, high))
    with torch.no_grad():
        head.log_deviation.copy_(torch.tensor([-0.7, 0.3]))
    centre = torch.tensor([0.0, (low[1] + 5) / 2])
    reach = torch.tensor([2.0 if low[0] == -2 else 1.0, (5 - low[1]) / 2])
    numbers = torch.randn(6, 4, 2)
    reference = Independent(Normal(centre + reach * numbers, reach * head.log_deviation.exp()), 1)
    action = reference.sample()
    log_prob, entropy = head.evaluate(numbers, action, None)
    torch.testing.assert_close(log_prob, reference.log_prob(action))
    torch.testing.assert_close(entropy, reference.entropy())
    assert entropy.shape == (6, 4)
    drawn, log_prob = head.sample(numbers[0, :1].expand(100_000, -1), None, torch.Generator().manual_seed(0), False)
    torch.testing.assert_close(drawn.mean(0), reference.mean[0, 0], rtol=0, atol=0.02 * reach.max().item())
    torch.testing.assert_close(drawn.std(0), reference.stddev[0, 0], rtol=0.02, atol=0)
    assert log_prob.shape == (100_000,)
    torch.testing.assert_close(head.sample(numbers[0], None, None, True)[0], centre + reach * numbers[0])


def test_vectors_are_not_clipped() -> None:
    head = GaussianHead(ActionSpec.continuous((-1.0,), (1.0,)))
    action, _ = head.sample(torch.zeros(1_000, 1), None, torch.Generator().manual_seed(0), False)
    assert action.abs().max() > 2


def test_heads_compute_in_float32() -> None:
    logits = torch.randn(4, 5)
    head = ChoiceHead(ActionSpec.discrete(5))
    action = torch.zeros(4, dtype=torch.int32)
    low, _ = head.evaluate(logits.bfloat16(), action, None)
    exact, _ = head.evaluate(logits.bfloat16().float(), action, None)
    assert low.dtype == torch.float32
    assert torch.equal(low, exact)


@pytest.mark.parametrize(
    "spec",
    [ActionSpec("discrete"), ActionSpec.multidiscrete((3, 0)), ActionSpec("continuous", shape=(2,), low=(0.0,))],
)
def test_impossible_actions_are_refused(spec: ActionSpec) -> None:
    with pytest.raises(PolicyError):
        make_head(spec)
