import json
import math
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from millpond.loop import Moments

values = st.floats(allow_nan=False, allow_infinity=False)
weights = st.one_of(st.integers(1, 10_000).map(float), st.floats(1e-6, 1e6))
observations = st.lists(st.tuples(values, weights), min_size=1, max_size=30)


def moments_of(pairs):
    moments = Moments()
    for value, weight in pairs:
        moments.add(value, weight)
    return moments


def exact(pairs):
    total = sum(Fraction(weight) for _, weight in pairs)
    mean = sum(Fraction(weight) * Fraction(value) for value, weight in pairs) / total
    variance = sum(Fraction(weight) * (Fraction(value) - mean) ** 2 for value, weight in pairs) / total
    return mean, variance


def test_hand_computed_moments():
    # batches of 3, 1 and 4 rows with means 2, 10 and 4: (6 + 10 + 16) / 8 = 4, not (2 + 10 + 4) / 3
    moments = moments_of([(2.0, 3.0), (10.0, 1.0), (4.0, 4.0)])
    assert moments.mean == 4.0
    assert moments.std == math.sqrt((3 * 4 + 36 + 0) / 8)
    assert (moments.minimum, moments.maximum, moments.count, moments.total_weight) == (2.0, 10.0, 3, 8.0)


@given(observations)
def test_mean_is_exact_and_rounded_once(pairs):
    mean, variance = exact(pairs)
    moments = moments_of(pairs)
    assert moments.mean == float(mean)
    assert (moments.minimum, moments.maximum) == (min(v for v, _ in pairs), max(v for v, _ in pairs))
    std, last_place = Fraction(moments.std), Fraction(math.ulp(moments.std))
    assert max(std - last_place, 0) ** 2 <= variance <= (std + last_place) ** 2


@given(st.lists(observations, min_size=1, max_size=6), st.randoms())
def test_grouping_and_order_do_not_matter(portions, random):
    whole = moments_of([pair for portion in portions for pair in portion])
    merged = Moments()
    random.shuffle(portions)
    for portion in portions:
        merged.merge(moments_of(portion))
    assert (merged.mean, merged.std) == (whole.mean, whole.std)
    assert (merged.count, merged.total_weight) == (whole.count, whole.total_weight)


@given(st.lists(st.tuples(values, st.one_of(st.just(0.0), weights)), max_size=30))
def test_moments_of_many_values_equal_repeated_add(pairs):
    one_by_one = moments_of(pairs)
    at_once = Moments.of([value for value, _ in pairs], [weight for _, weight in pairs])
    assert at_once.count == one_by_one.count
    if at_once.count:
        assert (at_once.mean, at_once.std) == (one_by_one.mean, one_by_one.std)
        assert (at_once.minimum, at_once.maximum) == (one_by_one.minimum, one_by_one.maximum)
        assert at_once.total_weight == one_by_one.total_weight
    else:
        assert at_once == Moments()


@given(observations)
def test_state_round_trips_through_json(pairs):
    moments = moments_of(pairs)
    assert Moments.from_state(json.loads(json.dumps(moments.state_dict()))) == moments


def test_moments_without_values_are_nan():
    moments = Moments()
    moments.add(5.0, 0.0)
    assert math.isnan(moments.mean)
    assert math.isnan(moments.std)
    assert Moments.from_state(json.loads(json.dumps(moments.state_dict()))) == moments


def test_cancellation_loses_no_precision():
    # a textbook float sum of squares gives 0 or a negative variance here
    moments = moments_of([(1e9, 1.0), (1e9 + 1, 1.0), (1e9 + 2, 1.0)])
    assert moments.std == math.sqrt(2 / 3)
