"""The store of finished episodes: what it keeps, where, and what a gather returns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from millpond.envs.spec import ActionSpec, ObservationSpec
from millpond.errors import MillpondError
from millpond.rewards.own_episodes import EpisodeStore

OBSERVATION, ACTION = ObservationSpec.single((2,), "float32", "vector"), ActionSpec.discrete(3)


def episode(number: int, steps: int) -> tuple[Any, Any, float]:
    """An episode whose observations say which it is, and the time."""
    observation = np.stack([np.full(steps + 1, number), np.arange(steps + 1)], 1).astype(np.float32)
    return observation, (np.arange(steps) % 3).astype(np.int32), 10.0 * number


def whole(store: EpisodeStore) -> list[tuple[int, int]]:
    """Return number and steps of every stored episode, after a look at each of its records."""
    found = []
    for first, steps, total in zip(*store.table(), strict=True):
        now, action, after = store.gather(np.array([first]), np.arange(steps)[None])
        expected, actions, expected_total = episode(int(now[0, 0]), int(steps))
        np.testing.assert_array_equal(now, expected[:-1])
        np.testing.assert_array_equal(after, expected[1:])
        np.testing.assert_array_equal(action, actions)
        assert total == expected_total
        found.append((int(now[0, 0]), int(steps)))
    return found


def test_oldest_episodes_make_room_and_the_newest_stay_whole() -> None:
    store, rng, lengths = EpisodeStore(40, OBSERVATION, ACTION), np.random.default_rng(0), []
    for number in range(200):
        lengths.append(int(rng.integers(1, 20)))
        store.add(*episode(number, lengths[-1]))
        stored = whole(store)
        assert stored == [(one, lengths[one]) for one in range(number + 1 - len(stored), number + 1)]
        assert sum(steps + 1 for _, steps in stored) <= 40
    assert store.nbytes == 40 * (8 + 4)


def test_episode_that_fills_the_store_replaces_all_others() -> None:
    store = EpisodeStore(10, OBSERVATION, ACTION)
    store.add(*episode(1, 3))
    store.add(*episode(2, 9))
    assert whole(store) == [(2, 9)]


def test_episode_longer_than_the_store_is_refused_with_a_fix() -> None:
    with pytest.raises(MillpondError, match=r"10 steps does not fit into reward_model.records=10; set .*records=110"):
        EpisodeStore(10, OBSERVATION, ACTION).add(*episode(1, 10))


def test_state_restores_episodes_and_the_place_of_the_next() -> None:
    first, second = (EpisodeStore(40, OBSERVATION, ACTION) for _ in range(2))
    for number in range(9):
        first.add(*episode(number, 6 + number % 3))
    second.load_state_dict(first.state_dict())
    assert whole(second) == whole(first)
    for store in (first, second):
        store.add(*episode(9, 15))
    assert whole(second) == whole(first)
