from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from millpond.vector import Vector, VectorError, make_vector
from tests.support.playing import Trajectories, act, play
from tests.support.vector_envs import counting, counting_spec, cut_off

BACKENDS: list[dict[str, Any]] = [
    {"backend": "inline"},
    {"backend": "threads", "threads": 2},
    {"backend": "processes", "num_workers": 2},
    {"backend": "processes", "num_workers": 2, "trainer_share": 0.2},
]


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
