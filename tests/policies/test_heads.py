"""Log-probabilities, entropies and samples, against torch.distributions."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Categorical, Independent, Normal

from millpond.envs.spec import ActionSpec
from millpond.fast.choices import FastChoices
from millpond.policies import PolicyError
from millpond.policies.heads import ChoiceHead, GaussianHead, MixedHead, make_head

SIZES = (4, 2, 3)


def choices(action: ActionSpec, way: str) -> ChoiceHead | FastChoices:
    """Return the plain head, or its compiled version."""
    plain = ChoiceHead(action)
    return plain if way == "plain" else FastChoices(plain)


both_ways = pytest.mark.parametrize("way", ["plain", "fast"])


@both_ways
def test_one_choice_equals_torchs_categorical(way: str) -> None:
    head = choices(ActionSpec.discrete(5), way)
    logits, action = torch.randn(7, 3, 5), torch.randint(0, 5, (7, 3), dtype=torch.int32)
    log_prob, entropy = head.evaluate(logits, action, None)
    reference = Categorical(logits=logits)
    torch.testing.assert_close(log_prob, reference.log_prob(action))
    torch.testing.assert_close(entropy, reference.entropy())


@both_ways
def test_several_choices_add_up(way: str) -> None:
    head = choices(ActionSpec.multidiscrete(SIZES), way)
    logits = torch.randn(7, sum(SIZES))
    action = torch.stack([torch.randint(0, size, (7,), dtype=torch.int32) for size in SIZES], -1)
    log_prob, entropy = head.evaluate(logits, action, None)
    references = [Categorical(logits=part) for part in logits.split(SIZES, -1)]
    torch.testing.assert_close(log_prob, sum(one.log_prob(action[:, k]) for k, one in enumerate(references)))
    torch.testing.assert_close(entropy, sum(one.entropy() for one in references))


@both_ways
def test_masks_forbid_and_renormalise(way: str) -> None:
    head = choices(ActionSpec.multidiscrete((3, 2)), way)
    logits = torch.tensor([[1.0, 2.0, 3.0, 0.5, -0.5]], requires_grad=True)
    mask = torch.tensor([[True, False, True, False, True]])
    log_prob, entropy = head.evaluate(logits, torch.tensor([[2, 1]]), mask)
    reference = Categorical(logits=torch.tensor([1.0, 3.0]))  # the second choice has one action left
    torch.testing.assert_close(log_prob, reference.log_prob(torch.tensor([1])))
    torch.testing.assert_close(entropy, reference.entropy()[None])
    (gradient,) = torch.autograd.grad(log_prob.sum() + entropy.sum(), logits)
    assert gradient.isfinite().all()
    assert gradient[0, [1, 3]].tolist() == [0, 0]


@both_ways
def test_forbidden_actions_are_never_drawn(way: str) -> None:
    head = choices(ActionSpec.multidiscrete((3, 2)), way)
    logits = torch.tensor([[1.0, 2.0, 3.0, 0.5, -0.5]])
    generator = torch.Generator().manual_seed(0)
    many = torch.tensor([[True, False, True, False, True]]).expand(2_000, -1)
    for deterministic in (False, True):
        action, drawn = head.sample(logits.expand(2_000, -1), many, generator, deterministic)
        assert set(action[:, 0].tolist()) == ({2} if deterministic else {0, 2})
        assert set(action[:, 1].tolist()) == {1}
        torch.testing.assert_close(drawn, head.evaluate(logits.expand(2_000, -1), action, many)[0])


@both_ways
def test_mask_that_forbids_everything_makes_all_actions_equally_likely(way: str) -> None:
    head = choices(ActionSpec.discrete(4), way)
    action, log_prob = head.sample(torch.randn(5, 4), torch.zeros(5, 4, dtype=torch.bool), None, False)
    torch.testing.assert_close(log_prob, torch.full((5,), 0.25).log())
    assert action.max() < 4


@both_ways
def test_nan_shows_in_the_log_probability(way: str) -> None:
    logits = torch.tensor([[0.0, float("nan"), 1.0], [0.0, 1.0, 1.0]])
    _, log_prob = choices(ActionSpec.discrete(3), way).sample(logits, None, None, False)
    assert log_prob.isnan().tolist() == [True, False]


@both_ways
def test_choices_are_drawn_with_their_probabilities(way: str) -> None:
    head = choices(ActionSpec.discrete(3), way)
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


def test_mixed_head_is_the_product_of_its_parts() -> None:
    head = make_head(ActionSpec.mixed((3, 2), (-2.0, 0.0), (2.0, 1.0)))
    assert isinstance(head, MixedHead)
    with torch.no_grad():
        head.vector.log_deviation.copy_(torch.tensor([0.3, -0.5]))
    numbers = torch.randn(50, 7)
    action, sampled = head.sample(numbers, None, torch.Generator().manual_seed(0), False)
    log_prob, entropy = head.evaluate(numbers, action, None)
    torch.testing.assert_close(sampled, log_prob)
    choices = [Categorical(logits=numbers[:, :3]), Categorical(logits=numbers[:, 3:5])]
    centre, reach = torch.tensor([0.0, 0.5]), torch.tensor([2.0, 0.5])
    vector = Normal(centre + reach * numbers[:, 5:], reach * head.vector.log_deviation.exp())
    expected = sum(one.log_prob(action[:, k]) for k, one in enumerate(choices)) + vector.log_prob(action[:, 2:]).sum(-1)
    torch.testing.assert_close(log_prob, expected)
    torch.testing.assert_close(entropy, sum(one.entropy() for one in choices) + vector.entropy().sum(-1))
    best, _ = head.sample(numbers, None, None, True)
    torch.testing.assert_close(best[:, :2], torch.stack([one.probs.argmax(-1) for one in choices], -1).float())
    torch.testing.assert_close(best[:, 2:], vector.mean)


@pytest.mark.parametrize("sizes", [(2, 2), ()])
def test_masked_numbers_are_zero_and_count_for_nothing(sizes: tuple[int, ...]) -> None:
    head = make_head(ActionSpec.mixed(sizes, (-1.0, -1.0), (1.0, 5.0)))
    alone = make_head(ActionSpec.mixed(sizes, (-1.0,), (1.0,)))
    numbers = torch.randn(9, sum(sizes) + 2, requires_grad=True)
    mask = torch.ones(9, sum(sizes) + 2, dtype=torch.bool)
    mask[:, -1] = False
    action, log_prob = head.sample(numbers, mask, torch.Generator().manual_seed(0), False)
    assert action[:, -1].tolist() == [0.0] * 9
    expected = alone.evaluate(numbers[:, :-1], action[:, :-1], None)
    torch.testing.assert_close(log_prob, expected[0])
    evaluated = head.evaluate(numbers, action, mask)
    torch.testing.assert_close(evaluated, expected)
    (gradient,) = torch.autograd.grad(evaluated[0].sum() + evaluated[1].sum(), numbers)
    assert gradient[:, -1].tolist() == [0.0] * 9
