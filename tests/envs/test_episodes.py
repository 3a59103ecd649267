from __future__ import annotations

import numpy as np
import pytest

from millpond.envs.episodes import EpisodeBook
from millpond.envs.registry import describe
from millpond.trainers.common.envs import EnvBatchFactory
from millpond.vector import make_vector


def test_numbers_are_kept_and_everything_else_is_left_out():
    book = EpisodeBook(2, 1)
    book.add(0, 2, np.ones((2, 1), np.float32))
    book.report(1, {"a": 1, "b": np.float32(2), "flag": True, "text": "x", "nan": float("nan"), "array": np.ones(3)})
    book.report(1, {"a": 3, "zero-d": np.array(4.0)})
    book.end(1, {"extra": 5.0})
    (episode,) = book.drain()
    assert episode.info == {"a": 2.0, "b": 2.0, "flag": 1.0, "zero-d": 4.0, "extra": 5.0}
    assert (episode.env, episode.returns, episode.length) == (1, (1.0,), 1)
    assert book.length.tolist() == [1, 0]
    assert book.drain() == []


def test_a_saved_book_goes_on_in_the_middle_of_an_episode():
    book, other = EpisodeBook(2, 2), EpisodeBook(2, 2)
    for _ in range(3):
        book.add(0, 2, np.full((2, 2), 0.1, np.float32))
        book.report(0, {"a": 1 / 3})
    book.end(1)
    other.load_state(book.save_state())
    for each in (book, other):
        each.add(0, 1, np.ones((1, 2), np.float32))
        each.end(0)
    assert other.drain() == book.drain()


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
def test_each_aggregate_gives_the_same_when_its_state_is_saved_in_between(aggregate, expected, cut):
    book = EpisodeBook(1, 1, aggregate)
    for k, infos in enumerate(STEPS):
        if k == cut:
            saved = book.save_state()
            book = EpisodeBook(1, 1, aggregate)
            book.load_state(saved)
        book.report(0, infos)
    book.end(0)
    (episode,) = book.drain()
    assert episode.info == pytest.approx(expected)


def test_a_name_that_was_once_a_number_is_averaged():
    book = EpisodeBook(1, 1)
    for value in (True, 0, True):
        book.report(0, {"flag": value})
    book.end(0)
    assert book.drain()[0].info == {"flag": pytest.approx(2 / 3)}


def test_the_last_value_of_each_agent_counts_wherever_it_leaves():
    book = EpisodeBook(1, 2)
    book.report(0, {"won": False}, agent=0)
    book.report(0, {"won": True}, agent=1)  # leaves here
    book.report(0, {"won": False}, agent=0)
    book.end(0)
    assert book.drain()[0].info == {"won": 0.5}


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
