from __future__ import annotations

import numpy as np

from millpond.envs.grid import kernels
from millpond.envs.seeds import draw, draw_below, spawn_seeds


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
