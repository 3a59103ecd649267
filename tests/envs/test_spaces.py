from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.envs.env_batch import EnvError
from millpond.envs.masks import write_mask
from millpond.envs.random_play import sample_action
from millpond.envs.spaces import ActionLayout, ObservationLayout, read_part
from millpond.envs.spec import ActionSpec

LEAVES = st.sampled_from(
    [
        spaces.Box(-1, 1, (3,), np.float32),
        spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
        spaces.Box(0, 255, (9, 8, 3), np.uint8),
        spaces.Box(0, 255, (8, 9), np.uint8),
        spaces.Box(-5, 5, (2,), np.int16),
        spaces.Box(0, 1, (4,), bool),
        spaces.Discrete(4, start=-2),
        spaces.MultiDiscrete([2, 3, 4]),
        spaces.MultiBinary((2, 3)),
    ]
)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: spaces.Tuple(tuple(parts))),
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3).map(spaces.Dict),
    ),
    max_leaves=6,
)


def plain(space: spaces.Space, value: object) -> list[np.ndarray]:
    """Return the parts of a value one by one, without the layout."""
    if isinstance(space, spaces.Dict):
        return [part for key in space.spaces for part in plain(space[key], value[key])]
    if isinstance(space, spaces.Tuple):
        return [part for inner, item in zip(space.spaces, value, strict=True) for part in plain(inner, item)]
    if isinstance(space, spaces.Discrete):
        return [np.array([i == value for i in range(int(space.start), int(space.start + space.n))], np.uint8)]
    if isinstance(space, spaces.MultiDiscrete):
        return [np.array([i == v for n, v in zip(space.nvec, value, strict=True) for i in range(n)], np.uint8)]
    array = np.asarray(value)
    if array.dtype == np.uint8 and array.ndim == 3:
        return [array.transpose(2, 0, 1)]
    if array.dtype == np.uint8 and array.ndim == 2:
        return [array[None]]
    return [array.astype({"float64": "float32", "bool": "uint8"}.get(array.dtype.name, array.dtype))]


@settings(max_examples=80, deadline=None)
@given(TREES, st.integers(0, 2**31))
def test_written_observations_can_be_read_part_by_part(space, seed):
    layout = ObservationLayout(space, "test")
    space.seed(seed)
    batch = np.zeros((3, 2, *layout.spec.shape), layout.spec.dtype)
    values = [[space.sample() for _ in range(2)] for _ in range(3)]
    for env in range(3):
        for agent in range(2):
            layout.write(values[env][agent], batch[env, agent])
    for place, part in enumerate(layout.spec.parts):
        read = read_part(batch, layout.spec, part)
        assert read.shape == (3, 2, *part.shape)
        for env in range(3):
            for agent in range(2):
                expected = plain(space, values[env][agent])[place]
                np.testing.assert_array_equal(read[env, agent].reshape(expected.shape), expected)
        if part.high is not None:
            assert read.max() <= part.high


def test_parts_of_one_dtype_keep_it_and_mixed_parts_become_bytes():
    same = ObservationLayout(spaces.Tuple((spaces.Box(0, 1, (2,)), spaces.Box(0, 1, (3,)))), "test").spec
    assert (same.dtype, same.shape) == ("float32", (5,))
    mixed = ObservationLayout(spaces.Tuple((spaces.Box(0, 1, (2,)), spaces.Discrete(3))), "test").spec
    assert (mixed.dtype, mixed.shape) == ("uint8", (12,))  # 8 bytes of floats, 3 of choices, 1 of padding


@settings(max_examples=80, deadline=None)
@given(TREES)
def test_every_part_of_every_observation_of_a_batch_is_aligned(space):
    spec = ObservationLayout(space, "test").spec
    for part in spec.parts:
        assert part.offset % np.dtype(part.dtype).itemsize == 0
        assert spec.nbytes % np.dtype(part.dtype).itemsize == 0
    ends = [part.offset + part.nbytes for part in spec.parts]
    assert all(end <= part.offset for end, part in zip(ends, spec.parts[1:], strict=False))
    assert ends[-1] <= spec.nbytes


@pytest.mark.parametrize(
    ("dtype", "stored"), [(np.float64, "float32"), (bool, "uint8"), (np.uint16, "int32"), (np.uint32, "int64")]
)
def test_scalar_box_has_one_number_and_dtypes_are_supported_by_torch(dtype, stored):
    layout = ObservationLayout(spaces.Box(0, 1, (), dtype), "test")
    assert (layout.spec.shape, layout.spec.dtype) == ((1,), stored)
    batch = np.zeros((3, 1), stored)
    layout.write_all([np.asarray(value, dtype) for value in (1, 0, 1)], batch)
    assert batch.tolist() == [[1], [0], [1]]


def test_actions_are_values_of_the_space():
    several = ActionLayout(spaces.MultiDiscrete([2, 3], start=[1, 5]), "test")
    assert several.read(np.array([1, 2], np.int32)).tolist() == [2, 7]
    binary = ActionLayout(spaces.MultiBinary(3), "test")
    assert binary.spec.sizes == (2, 2, 2)
    assert binary.read(np.array([0, 1, 1], np.int32)).tolist() == [0, 1, 1]
    box = spaces.Box(-1, 1, (2, 2), np.float64)
    continuous = ActionLayout(box, "test")
    assert continuous.spec.low == (-1.0,) * 4
    assert box.contains(continuous.read(np.zeros(4, np.float32)))


ACTION_LEAVES = st.sampled_from(
    [
        spaces.Discrete(4, start=-2),
        spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[0, 1], [5, -1]]),
        spaces.MultiBinary((2, 3)),
        spaces.Box(-1, 1, (), np.float64),
        spaces.Box(np.array([-1, -np.inf], np.float32), np.array([3, np.inf], np.float32)),
    ]
)
ACTION_TREES = st.recursive(
    ACTION_LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: spaces.Tuple(tuple(parts))),
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3).map(spaces.Dict),
    ),
    max_leaves=6,
)


@settings(max_examples=80, deadline=None)
@given(ACTION_TREES, st.integers(0, 2**31))
def test_actions_of_any_structure_come_back_as_they_were(space, seed):
    layout, generator = ActionLayout(space, "test"), np.random.default_rng(seed)
    stored = np.stack([sample_action(layout.spec, np.zeros(0, bool), generator) for _ in range(3)])
    assert (stored.shape[1:], stored.dtype) == (layout.spec.shape, layout.spec.dtype)
    for one, action in zip(stored, layout.read_all(stored), strict=True):
        assert space.contains(action), action
        np.testing.assert_array_equal(layout.write(action), one)
    space.seed(seed)
    sample = space.sample()
    again = layout.read(layout.write(sample))
    for ours, theirs in zip(plain_actions(space, again), plain_actions(space, sample), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def plain_actions(space: spaces.Space, value: object) -> list[object]:
    """Return the parts of an action one by one."""
    if isinstance(space, spaces.Dict):
        assert set(value) == set(space.spaces)
        return [part for key in space.spaces for part in plain_actions(space[key], value[key])]
    if isinstance(space, spaces.Tuple):
        assert isinstance(value, tuple)
        return [part for inner, item in zip(space.spaces, value, strict=True) for part in plain_actions(inner, item)]
    return [value]


def test_a_dict_becomes_choices_then_numbers():
    move = spaces.Tuple((spaces.Discrete(3), spaces.Box(-2, 2, (2,), np.float32)))
    layout = ActionLayout(spaces.Dict({"move": move, "say": spaces.MultiDiscrete([2, 5], start=[0, 10])}), "test")
    assert layout.spec == ActionSpec.mixed((3, 2, 5), (-2.0, -2.0), (2.0, 2.0))
    action = layout.read(np.array([2, 1, 4, 0.5, -1.5], np.float32))
    assert action["move"][0] == 2
    assert action["move"][1].tolist() == [0.5, -1.5]
    assert action["say"].tolist() == [1, 14]
    assert ActionLayout(spaces.Dict({"a": spaces.Discrete(2)}), "test").spec == ActionSpec.discrete(2)
    choices = spaces.Tuple((spaces.Discrete(2), spaces.MultiBinary(2)))
    assert ActionLayout(choices, "test").spec == ActionSpec.multidiscrete((2, 2, 2))
    boxes = spaces.Tuple((spaces.Box(0, 1, (1,)), spaces.Box(-3, 3, (1,))))
    assert ActionLayout(boxes, "test").spec == ActionSpec.continuous((0.0, -3.0), (1.0, 3.0))
    with pytest.raises(EnvError, match=r"is not an action of its space .*: 'say'"):
        layout.write({"move": (0, np.zeros(2))})


def test_masks_have_the_structure_of_the_space_or_are_flat():
    say = spaces.Tuple((spaces.Discrete(2), spaces.MultiDiscrete([2, 3])))
    layout = ActionLayout(spaces.Dict({"aim": spaces.Box(-1, 1, (2,)), "say": say}), "test")
    flat = [True, False, True, True, False, True, False]
    assert layout.read_mask(np.array(flat, np.int8)).tolist() == flat
    nested = {"say": (np.array(flat[:2]), (np.array(flat[2:4]), np.array(flat[4:])))}
    assert layout.read_mask(nested).tolist() == flat
    assert layout.read_mask({"aim": None, "say": (np.array(flat[:2]), None)}).tolist() == [True, False] + [True] * 5
    into = np.zeros(layout.spec.mask_size, bool)
    write_mask(nested, layout, into, env_id="test", env=0)
    assert into.tolist() == [*flat, True, True]  # numbers are always allowed
    with pytest.raises(EnvError, match="an action mask of 3 entries, but there are 7 choices"):
        write_mask(np.ones(3), layout, into, env_id="test", env=0)
    with pytest.raises(EnvError, match="allows nothing"):
        write_mask(np.zeros(7), layout, into, env_id="test", env=0)
    write_mask(np.zeros(7), layout, into, env_id="test", env=0, final=True)  # after the end nothing needs to be allowed
    assert not into[:7].any()


def test_spaces_without_a_fixed_size_are_refused():
    with pytest.raises(EnvError, match="'a' is a Text space"):
        ObservationLayout(spaces.Dict({"a": spaces.Text(5)}), "test")
    with pytest.raises(EnvError, match="has no parts"):
        ObservationLayout(spaces.Dict({}), "test")
    with pytest.raises(EnvError, match=r"a Box of uint64, .* show it as uint8, int32, int64 or float32"):
        ObservationLayout(spaces.Box(0, 9, (2,), np.uint64), "test")
    with pytest.raises(EnvError, match="no policy here can act in its action space Text"):
        ActionLayout(spaces.Text(5), "test")
    with pytest.raises(EnvError, match=r"can act in part 'a/1' of its action space, Box\(0, 9, \(2,\), int32\)"):
        ActionLayout(spaces.Dict({"a": spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 9, (2,), np.int32)))}), "test")
    with pytest.raises(EnvError, match="has no parts"):
        ActionLayout(spaces.Tuple(()), "test")


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ([None] * 4, "it is not made of numbers"),
        (np.array([0.0, 1.0, None, 0.0], object), "it is not made of numbers"),
        (np.zeros(4, object), "it is not made of numbers"),
        (["0.5"] * 4, "it is not made of numbers"),
        (np.zeros(1, np.float32), "its shape is not (4,)"),
        (0.0, "its shape is not (4,)"),
        (None, "its shape is not (4,)"),
        ([[0.0], [0.0, 1.0]], "ValueError"),
    ],
)
def test_values_that_numpy_would_store_as_other_numbers_are_refused(value, why):
    layout = ObservationLayout(spaces.Box(-1, 1, (4,), np.float32), "my:env")
    good, into = np.ones(4, np.float32), np.zeros((3, 4), np.float32)
    watched: list[int] = []
    with pytest.raises(EnvError) as found:
        layout.write_all([good, value, good], into, watched.append)
    assert watched == [0, 1]
    for words in ("env 'my:env' returned ", "Box(-1.0, 1.0, (4,), float32)", why, "observation_space"):
        assert words in str(found.value)
    with pytest.raises(EnvError):
        layout.write(value, into[0])


@pytest.mark.parametrize("value", [[1, 2], [True, False], np.array([1, 2], np.int64), np.array([1.5, 2]), (0.5, 1.0)])
def test_numbers_of_other_dtypes_are_stored(value):
    layout = ObservationLayout(spaces.Box(-9, 9, (2,), np.float32), "test")
    into = np.zeros((2, 2), np.float32)
    layout.write_all([value, np.zeros(2, np.float64)], into)
    np.testing.assert_array_equal(into, [np.asarray(value, np.float32), [0, 0]])


@pytest.mark.parametrize("value", [[0.5, 1.0], [300, 1], [-1, 0], [float("nan"), 0.0]])
def test_numbers_that_do_not_fit_integers_are_refused_and_whole_floats_are_not(value):
    layout = ObservationLayout(spaces.Box(0, 255, (2,), np.uint8), "test")
    into = np.zeros((1, 2), np.uint8)
    with pytest.raises(EnvError, match="it does not fit into uint8"):
        layout.write_all([value], into)
    layout.write_all([[254.0, 3.0]], into)
    assert into.tolist() == [[254, 3]]


def test_refused_part_of_a_dict_is_named():
    space = spaces.Dict({"speed": spaces.Box(-1, 1, (2,), np.float32), "kind": spaces.Discrete(3)})
    layout = ObservationLayout(space, "test")
    into = np.zeros(layout.spec.shape, layout.spec.dtype)
    for value, part in (
        ({"speed": [None, None], "kind": 1}, "part 'speed'"),
        ({"speed": [0.0, 0.0], "kind": None}, "part 'kind'"),
        ({"speed": [0.0, 0.0], "kind": 7}, "part 'kind'"),
        ({"kind": 1}, "part 'speed' .*it has no 'speed'"),
        (None, "NoneType"),
    ):
        with pytest.raises(EnvError, match=part):
            layout.write(value, into)


@pytest.mark.parametrize(
    ("space", "wrong", "why"),
    [
        (spaces.Discrete(3), -1, "not a whole number from 0 to 2"),
        (spaces.Discrete(3, start=-2), 1, "not a whole number from -2 to 0"),
        (spaces.Discrete(3), 1.5, "not a whole number"),
        (spaces.MultiDiscrete([2, 3]), np.array([-1, 0]), r"not from \[0, 0\] to \[1, 2\]"),
        (spaces.MultiDiscrete([2, 3]), np.array([2, 0]), "a number is not from"),
        (spaces.MultiDiscrete([2, 3], start=[4, 0]), np.array([1, 1]), r"from \[4, 0\] to \[5, 2\]"),
    ],
)
def test_values_outside_a_choice_are_not_taken_for_others(space, wrong, why):
    layout = ObservationLayout(space, "test")
    into = np.zeros(layout.spec.shape, layout.spec.dtype)
    with pytest.raises(EnvError, match=why):
        layout.write(wrong, into)
    for _ in range(20):
        layout.write(space.sample(), into)
