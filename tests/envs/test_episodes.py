from __future__ import annotations

import numpy as np

from millpond.envs.episodes import EpisodeBook


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
