"""The same seeds give the same trajectories with every backend and any number of envs, groups and workers."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from millpond.vector import VectorError, env_seed, env_seeds, make_vector
from tests.support.playing import Trajectories, play
from tests.support.vector_envs import EPISODE, SEED, counting, counting_spec, whole

NUM_ENVS = 12
MAKERS = [
    {"backend": "inline", "groups": 1},
    {"backend": "inline", "groups": 3},
    {"backend": "threads", "groups": 2, "threads": 1},
    {"backend": "threads", "groups": 2, "threads": 3},
    {"backend": "threads", "groups": 4, "threads": 2},
    {"backend": "processes", "groups": 2, "num_workers": 1},
    {"backend": "processes", "groups": 1, "num_workers": 2},
    {"backend": "processes", "groups": 2, "num_workers": 3},
    {"backend": "processes", "groups": 2, "num_workers": 1, "trainer_share": 0.3},
    {"backend": "processes", "groups": 3, "num_workers": 2, "trainer_share": 0.1},
    {"backend": "native", "groups": 2},
]


@functools.cache
def expected() -> Trajectories:
    """Return reference trajectories: inline, whole rounds and slices."""
    with make_vector(counting_spec(), counting, num_envs=NUM_ENVS, groups=2, backend="inline") as vector:
        vector.reset(11)
        trajectories = play(vector, 10)
        play(vector.slice(9, 7), 5, trajectories)
        play(vector.slice(3, 8), 2, trajectories)
        return play(vector, 4, trajectories)


@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: "-".join(map(str, maker.values())))
def test_every_backend_gives_the_same_trajectories(maker: dict[str, Any]) -> None:
    spec = counting_spec(native_vector=True, releases_gil=True)
    with make_vector(spec, counting, num_envs=NUM_ENVS, **maker) as vector:
        vector.reset(11)
        trajectories = play(vector, 10)
        play(vector.slice(9, 7), 5, trajectories)
        play(vector.slice(3, 8), 2, trajectories)
        play(vector, 4, trajectories)
    trajectories.assert_equal(expected())
    assert any(step[2][0, EPISODE] > 0 for step in trajectories.steps[0])  # there were resets inside
    assert sum(map(len, trajectories.episodes.values())) > NUM_ENVS


def test_trajectories_do_not_depend_on_the_number_of_envs() -> None:
    """The first 6 envs of 12 have the trajectories of the 6 envs of 6."""
    with make_vector(counting_spec(), counting, num_envs=6, groups=1, backend="inline") as vector:
        vector.reset(11)
        few = play(vector, 10)
    for env in range(6):
        for here, there in zip(few.steps[env], expected().steps[env], strict=False):
            np.testing.assert_array_equal(here[2], there[2])


def test_seeds_depend_on_seed_and_env_alone() -> None:
    seeds = env_seeds(5, 2000)
    np.testing.assert_array_equal(seeds[:10], env_seeds(5, 10))
    assert len(np.unique(seeds)) == 2000
    assert not np.isin(seeds, env_seeds(6, 2000)).any()
    assert env_seed(5, 3) == int(seeds[3])
    assert env_seed(5, 3, restarts=1) != env_seed(5, 3)
    with make_vector(counting_spec(), counting, num_envs=4, groups=2, backend="inline") as vector:
        vector.reset(5)
        shown = np.concatenate([vector.recv().observation[:, 0, SEED].copy() for _ in range(2)])
        np.testing.assert_array_equal(shown.astype(np.uint64), seeds[:4])
        np.testing.assert_array_equal(vector.seeds, seeds[:4])


def test_reset_works_in_the_middle_of_a_round() -> None:
    with make_vector(counting_spec(), counting, num_envs=12, groups=2, num_workers=2, backend="processes") as vector:
        vector.reset(99)
        play(vector, 3)
        env_slice = vector.slice(3, 4)
        env_slice.recv()
        env_slice.send(np.zeros((4, 2), np.int64))  # pending
        vector.reset(11)
        assert (vector.env_steps == 0).all()
        trajectories = play(vector, 10)
        play(vector.slice(9, 7), 5, trajectories)
        play(vector.slice(3, 8), 2, trajectories)
        play(vector, 4, trajectories).assert_equal(expected())


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_invalid_seeds_are_refused(seed: int) -> None:
    with (
        make_vector(counting_spec(), counting, num_envs=2, groups=1, backend="inline") as vector,
        pytest.raises(VectorError, match=str(seed)),
    ):
        vector.reset(seed)


def test_slices_of_batches_that_step_as_a_whole_must_be_whole() -> None:
    spec = counting_spec(partial_step=False)
    with make_vector(spec, whole, num_envs=12, groups=2, num_workers=2, backend="processes") as vector:
        vector.reset(11)
        trajectories = play(vector, 10)
        for env, steps in trajectories.steps.items():
            for here, there in zip(steps, expected().steps[env], strict=False):
                np.testing.assert_array_equal(here[2], there[2])
        with pytest.raises(VectorError, match=r"partial_step is false.*start at env 0, 3, 6, 9 and have 3 envs"):
            vector.slice(9, 7)
        before = vector.env_steps.copy()
        play(vector.slice(9, 6), 2)
        assert (vector.env_steps - before).tolist() == [2, 2, 2, 0, 0, 0, 0, 0, 0, 2, 2, 2]
