"""Equal seeds give equal trajectories with every backend and number of envs, groups and workers; saved states continue them."""

from __future__ import annotations

import functools
import json
from typing import Any

import numpy as np
import pytest

from millpond.vector import Vector, VectorError, env_seed, env_seeds, make_vector
from tests.support.playing import Trajectories, act, play
from tests.support.vector_envs import EPISODE, SEED, counting, counting_spec, cut_off, whole

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
BACKENDS: list[dict[str, Any]] = [
    {"backend": "inline"},
    {"backend": "threads", "threads": 2},
    {"backend": "processes", "num_workers": 2},
    {"backend": "processes", "num_workers": 2, "trainer_share": 0.2},
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


def make(**options: Any) -> Vector:
    return make_vector(counting_spec(), counting, num_envs=12, **options)


def turn(vector: Vector, trajectories: Trajectories) -> None:
    batch = vector.recv()
    trajectories.record(batch)
    vector.send(act(batch))


@pytest.mark.parametrize("options", BACKENDS, ids=lambda options: options["backend"])
@pytest.mark.parametrize("moment", ["idle", "stepping", "received"])
def test_continuing_from_a_state_repeats(options: dict[str, Any], moment: str) -> None:
    with make(**options) as vector:
        vector.reset(4)
        play(vector, 7)
        if moment != "idle":
            for _ in range(5):
                turn(vector, Trajectories())
        if moment == "held":
            vector.recv()
        state = vector.save_state()
        assert all(isinstance(array, np.ndarray) and array.dtype != object for array in state.values())
        kept = {name: array.copy() for name, array in state.items()}

        def go_on(vector: Vector) -> Trajectories:
            trajectories = Trajectories()
            if moment == "held":
                vector.send(np.full((6, 2), 3))
            for _ in range(9):
                turn(vector, trajectories)
            return trajectories

        expected = go_on(vector)
        for name, array in state.items():
            np.testing.assert_array_equal(array, kept[name])  # a copy, not a view of what lives on
        vector.load_state(state)  # into the vector it came from
        go_on(vector).assert_equal(expected)
        assert sum(map(len, expected.episodes.values())) > 5
    with make(**options) as vector:
        vector.load_state(state)  # into a new one, without a reset
        go_on(vector).assert_equal(expected)


def test_keys_of_a_state_stay_readable_by_other_versions() -> None:
    with make(backend="inline") as vector:
        vector.reset(4)
        keys = set(vector.save_state())
    own = {"layout", "seed", "position", "status", "episodes", "seeds", "env_steps", "restarts", "unreported"}
    own |= {"episode_start"}  # not in states of version 0.2
    assert own <= keys
    assert {key.split("/")[0] for key in keys - own} == {"buffers", "world"}
    assert {key.split("/")[1] for key in keys if key.startswith("world/")} == {"0", "1"}


def test_state_holds_episodes_not_yet_received() -> None:
    with make(backend="threads", threads=1) as vector, make(backend="threads", threads=1) as other:
        vector.reset(4)
        waiting: list[list[Any]] = []
        while not any(waiting):
            turn(vector, Trajectories())
            state = vector.save_state()
            waiting = json.loads(state["episodes"].tobytes())
        other.load_state(state)
        received = [[batch.episodes for batch in (each.recv(), each.recv())] for each in (vector, other)]
        assert received[0] == received[1]
        assert sum(map(len, received[0])) == sum(map(len, waiting))


def test_episodes_that_were_cut_off_do_not_count_as_ended() -> None:
    with make_vector(counting_spec(), cut_off, num_envs=4, backend="inline") as vector:
        vector.reset(4)
        state = vector.save_state()
        trajectories = play(vector, 5)
        vector.load_state(state)
        play(vector, 5, trajectories)
    lengths = [length for episodes in trajectories.episodes.values() for _, length, _ in episodes]
    assert lengths
    assert min(lengths) > 0


def test_save_in_the_middle_of_a_slice_is_refused() -> None:
    with make(backend="inline") as vector:
        vector.reset(4)
        env_slice = vector.slice(2, 3)
        env_slice.send(act(env_slice.recv()))
        with pytest.raises(VectorError, match="a slice is in the middle of its round"):
            vector.save_state()
        env_slice.recv(), env_slice.end_round()
        state = vector.save_state()
        expected = play(vector, 3)
        vector.load_state(state)
        play(vector, 3).assert_equal(expected)


def test_saving_an_unsavable_env_is_refused() -> None:
    spec = counting_spec(savable=False)
    with make_vector(spec, counting, num_envs=2, backend="inline") as vector:
        vector.reset(0)
        with pytest.raises(VectorError, match="counting cannot save its state"):
            vector.save_state()
    with make(backend="inline") as vector, pytest.raises(VectorError, match="nothing to save before reset"):
        vector.save_state()


def test_state_of_other_sizes_is_refused() -> None:
    with make(backend="inline") as vector, make(backend="threads", threads=3) as other:
        vector.reset(0)
        with pytest.raises(
            VectorError, match="12 envs in 2 groups and 1 worker, and this vector has 12 envs in 2 groups and 3 workers"
        ):
            other.load_state(vector.save_state())


def test_state_of_another_trainer_share_is_refused() -> None:
    sizes = "12 envs in 2 groups and 1 worker, of which the trainer steps 2 of each group"
    with make(backend="processes", trainer_share=0.3) as vector, make(backend="inline") as other:
        for one, another in ((vector, other), (other, vector)):
            one.reset(0)
            with pytest.raises(VectorError, match=sizes):
                another.load_state(one.save_state())
