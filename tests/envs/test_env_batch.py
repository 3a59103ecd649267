from __future__ import annotations

import numpy as np
import pytest

from millpond.envs.env_batch import EpisodeTracker, draw, draw_below, spawn_seeds
from millpond.envs.grid import kernels
from millpond.envs.registry import EnvBatchFactory, describe
from millpond.vector import make_vector


def test_splitmix64_gives_the_published_numbers():
    # The first outputs for seed 1234567 (Vigna's reference implementation).
    state = np.array([1234567], np.uint64)
    drawn = [int(draw(state)[0]) for _ in range(3)]
    assert drawn == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_compiled_and_plain_streams_are_the_same():
    state, compiled = spawn_seeds(0, 4), spawn_seeds(0, 4)
    for bound in (1, 2, 5, 1_000, 2**31):
        plain = draw_below(state, bound)
        assert plain.tolist() == [kernels.draw_below(compiled, env, bound) for env in range(4)]
        assert (plain < bound).all()


def test_draws_are_uniform():
    counts = np.bincount(np.concatenate([draw_below(spawn_seeds(i, 1_000), 5) for i in range(20)]), minlength=5)
    assert (abs(counts - 4_000) < 4 * np.sqrt(4_000)).all()


def test_seeds_of_a_smaller_batch_are_a_prefix():
    np.testing.assert_array_equal(spawn_seeds(7, 100)[:10], spawn_seeds(7, 10))


def test_only_numbers_of_infos_are_recorded():
    tracker = EpisodeTracker(2, 1)
    tracker.add_step(0, 2, np.ones((2, 1), np.float32))
    tracker.add_infos(
        1, {"a": 1, "b": np.float32(2), "flag": True, "text": "x", "nan": float("nan"), "array": np.ones(3)}
    )
    tracker.add_infos(1, {"a": 3, "zero-d": np.array(4.0)})
    tracker.end_episode(1, {"extra": 5.0})
    (episode,) = tracker.pop_ended()
    assert episode.info == {"a": 2.0, "b": 2.0, "flag": 1.0, "zero-d": 4.0, "extra": 5.0}
    assert (episode.env, episode.returns, episode.length) == (1, (1.0,), 1)
    assert tracker.length.tolist() == [1, 0]
    assert tracker.pop_ended() == []


def test_saved_tracker_continues_in_the_middle_of_an_episode():
    tracker, other = EpisodeTracker(2, 2), EpisodeTracker(2, 2)
    for _ in range(3):
        tracker.add_step(0, 2, np.full((2, 2), 0.1, np.float32))
        tracker.add_infos(0, {"a": 1 / 3})
    tracker.end_episode(1)
    other.load_state(tracker.save_state())
    for each in (tracker, other):
        each.add_step(0, 1, np.ones((1, 2), np.float32))
        each.end_episode(0)
    assert other.pop_ended() == tracker.pop_ended()


#        won at step 1, 2, 3    place   a number at the end only
STEPS = [{"won": False, "is_success": 0.0, "place": 1}, {"won": True, "is_success": 1.0, "place": 5},
         {"won": True, "is_success": 1.0, "place": 3, "score": 7.0}]  # fmt: skip


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [
        ("auto", {"won": 1.0, "is_success": 1.0, "place": 3.0, "score": 7.0}),
        ("mean", {"won": 2 / 3, "is_success": 2 / 3, "place": 3.0, "score": 7.0}),
        ("sum", {"won": 2.0, "is_success": 2.0, "place": 9.0, "score": 7.0}),
        ("last", {"won": 1.0, "is_success": 1.0, "place": 3.0, "score": 7.0}),
        ("max", {"won": 1.0, "is_success": 1.0, "place": 5.0, "score": 7.0}),
    ],
)
@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_aggregates_do_not_depend_on_saving_in_between(aggregate, expected, cut):
    tracker = EpisodeTracker(1, 1, aggregate)
    for k, infos in enumerate(STEPS):
        if k == cut:
            saved = tracker.save_state()
            tracker = EpisodeTracker(1, 1, aggregate)
            tracker.load_state(saved)
        tracker.add_infos(0, infos)
    tracker.end_episode(0)
    (episode,) = tracker.pop_ended()
    assert episode.info == pytest.approx(expected)


def test_name_reported_as_a_number_once_is_averaged():
    tracker = EpisodeTracker(1, 1)
    for value in (True, 0, True):
        tracker.add_infos(0, {"flag": value})
    tracker.end_episode(0)
    assert tracker.pop_ended()[0].info == {"flag": pytest.approx(2 / 3)}


def test_last_value_of_each_agent_counts_whenever_it_leaves():
    tracker = EpisodeTracker(1, 2)
    tracker.add_infos(0, {"won": False}, agent=0)
    tracker.add_infos(0, {"won": True}, agent=1)  # leaves here
    tracker.add_infos(0, {"won": False}, agent=0)
    tracker.end_episode(0)
    assert tracker.pop_ended()[0].info == {"won": 0.5}


@pytest.mark.parametrize("backend", ["inline", "threads", "processes"])
def test_a_win_in_every_episode_is_a_rate_of_one_in_every_backend(backend):
    env_id = "tests.support.custom_envs:Outcomes"
    factory, workers = EnvBatchFactory(env_id, {}), 2 if backend == "processes" else 1
    episodes = []
    with make_vector(
        describe(env_id, {}), factory, num_envs=2, groups=1, num_workers=workers, backend=backend
    ) as vector:
        vector.reset(0)
        for _ in range(8):
            episodes += vector.recv().episodes
            vector.send(np.zeros((2, 1), np.int32))
    assert [episode.info for episode in episodes] == 2 * [
        {"won": 1.0, "is_success": 1.0, "early": 0.0, "place": 4.0, "score": 9.0}
    ]
