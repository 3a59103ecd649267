"""Padding of agents with different spaces; the adapter of PettingZoo is tested in `adapters/test_pettingzoo.py`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from gymnasium import spaces

from millpond.envs.agents import AgentActions, AgentObservations, agent_types
from millpond.envs.spaces import ActionLayout, ObservationLayout, read_part
from millpond.envs.spec import ActionSpec
from tests.support.env_specs import env_spec


def test_unbounded_numbers_are_clipped_to_the_bounds_of_the_agents_that_have_some():
    bounded, free = spaces.Box(0, 2, (1,), np.float32), spaces.Box(-np.inf, np.inf, (1,), np.float32)
    actions = AgentActions([ActionLayout(bounded, "test"), ActionLayout(free, "test")])
    assert actions.spec == ActionSpec.continuous((-np.inf,), (np.inf,))
    assert not actions.padded
    assert [actions.read(agent, np.array([5.0], np.float32)).tolist() for agent in (0, 1)] == [[2.0], [5.0]]


def test_images_of_different_sizes_are_padded_and_parts_of_different_kinds_stay_apart():
    shown = [
        spaces.Box(0, 255, (9, 8, 3), np.uint8),
        spaces.Box(0, 255, (8, 10, 3), np.uint8),
        spaces.Box(0, 5, (2, 2), np.float64),
        spaces.Box(0, 5, (3,), np.int64),
    ]
    layout = AgentObservations([ObservationLayout(space, "test") for space in shown], [0, 1, 2, 3])
    image, vector, agent = layout.spec.parts
    assert (image.name, image.shape, image.dtype) == ("observation_pixels", (3, 9, 10), "uint8")
    assert (vector.name, vector.shape, vector.dtype) == ("observation_vector", (4,), "float32")
    stored = np.full((4, *layout.spec.shape), 77, layout.spec.dtype)
    for number, space in enumerate(shown):
        layout.write(number, np.ones(space.shape, space.dtype), stored[number])
    assert read_part(stored, layout.spec, image).sum((1, 2, 3)).tolist() == [216, 240, 0, 0]
    assert read_part(stored, layout.spec, vector).tolist() == [[0] * 4, [0] * 4, [1, 1, 1, 1], [1, 1, 1, 0]]
    assert read_part(stored, layout.spec, agent).tolist() == np.eye(4).tolist()


def test_agents_are_of_one_type_if_spaces_and_names_without_numbers_agree():
    small, large = spaces.Discrete(2), spaces.Discrete(3)
    names = ["cat_0", "cat_1", "dog_0", "cat_2"]
    assert agent_types(names, [(small, small), (small, small), (small, small), (small, large)]) == [0, 0, 1, 2]


def test_returns_are_named_one_by_one_or_by_type_if_there_are_many():
    def named(*names: str) -> dict[str, tuple[int, ...]]:
        return replace(env_spec(len(names)), agent_names=names).named_agents

    assert named("cat_0", "cat_1", "dog") == {"cat_0": (0,), "cat_1": (1,), "dog": (2,)}
    assert named("cat") == named() == {}
    many = [f"cat_{number}" for number in range(20)]
    assert named(*many) == {}  # the same as the mean of all
    assert named(*many, "dog-1", "dog-2") == {"cat": tuple(range(20)), "dog": (20, 21)}
    assert named(*(f"{number}th" for number in range(20))) == {}
