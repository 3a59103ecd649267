"""Whole episodes of a pond's rings, against a search of all records."""

from __future__ import annotations

import numpy as np
import pytest

from millpond.replay.pond import Pond
from millpond.replay.ring_episodes import RingEpisodes
from millpond.replay.schema import FINAL
from millpond.replay.transitions import complete_episodes
from tests.support.naive_lake import FRAME, NaiveLake


def searched(pond: Pond) -> tuple[list[int], list[int], list[float]]:
    """Return start, steps and mean reward of the pond's whole episodes, from all of its records."""
    view, rewards = pond.view(), pond.fields["reward"].numpy()
    start, records = complete_episodes(view)
    steps = records - ((view.flags[view.later(start, records - 1)] & FINAL) > 0)
    means = [
        float(np.mean(rewards[view.later(np.full(count, first), np.arange(count))], dtype=np.float64))
        for first, count in zip(start.tolist(), steps.tolist(), strict=True)
    ]
    return start.tolist(), steps.tolist(), means


def require_equal(found: RingEpisodes) -> int:
    start, steps, mean_reward = found.find()
    expected = searched(found.pond)
    assert (start.tolist(), steps.tolist()) == expected[:2]
    np.testing.assert_allclose(mean_reward, expected[2], rtol=1e-12)
    return len(start)


@pytest.mark.parametrize("ring", [7, 30, 400])
@pytest.mark.parametrize("added", [1, 3, 7])
def test_episodes_equal_those_of_a_search_of_all_records(ring: int, added: int) -> None:
    pond, naive, rng = Pond.init(FRAME, 3 * ring, lanes=3), NaiveLake(), np.random.default_rng(ring)
    found, most = RingEpisodes(pond), 0
    for turn in range(60):
        steps = min(added, ring // 2)
        pond.add(naive.generate("a", 3, steps, rng, FRAME, fresh=False, ends=0.2))
        if turn % 3:  # several additions between two calls, too
            most = max(most, require_equal(found))
    assert most > 1


def test_episodes_follow_a_pond_that_was_cleared_or_loaded() -> None:
    pond, other = (Pond.init(FRAME, 60, lanes=2) for _ in range(2))
    found, rng = RingEpisodes(pond), np.random.default_rng(0)
    pond.add(NaiveLake().generate("a", 2, 20, rng, FRAME, fresh=False, ends=0.3))
    require_equal(found)
    other.add(NaiveLake().generate("a", 2, 20, rng, FRAME, fresh=False, ends=0.3))
    pond.load_state_dict(other.state_dict())  # as many records as before, but others
    assert require_equal(found) > 1
    pond.clear()
    assert require_equal(found) == 0


def test_only_new_records_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    pond, naive, rng = Pond.init(FRAME, 400, lanes=2), NaiveLake(), np.random.default_rng(0)
    found, read = RingEpisodes(pond), []
    rewards = pond.rewards
    monkeypatch.setattr(pond, "rewards", lambda slots: read.append(len(slots)) or rewards(slots))
    for _ in range(20):
        before = pond.heads.sum()
        pond.add(naive.generate("a", 2, 5, rng, FRAME, fresh=False, ends=0.2))
        read.clear()
        found.find()
        assert sum(read) == pond.heads.sum() - before
