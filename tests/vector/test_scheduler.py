"""Groups and slices step in turn: each env exactly when it should, with its own action."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.vector import Batch, RoundRobin, Vector, VectorError, make_vector
from tests.support.playing import act, play
from tests.support.vector_envs import AGENT, ENV_STEPS, IDENTITY, LAST_ACTION, counting, counting_spec, sleeping


def check_identity(batch: Batch, env_steps: np.ndarray) -> None:
    """Check that every row belongs to the expected env, at the expected step."""
    envs = np.arange(batch.first, batch.last)
    assert batch.num_envs == len(batch.observation) == len(batch.reward) == len(batch.restarted)
    np.testing.assert_array_equal(batch.observation[:, 0, IDENTITY], envs)
    np.testing.assert_array_equal(batch.observation[:, 1, AGENT], 1)
    np.testing.assert_array_equal(batch.observation[:, 0, ENV_STEPS], env_steps[envs])
    ended = (batch.terminated | batch.truncated)[:, 0]
    np.testing.assert_array_equal(batch.final_observation[ended][:, 0, ENV_STEPS], env_steps[envs][ended])
    assert sorted(episode.env for episode in batch.episodes) == envs[ended].tolist()


def check_round(envs: Vector | RoundRobin, ranges: list[tuple[int, int]], rounds: int, env_steps: np.ndarray) -> None:
    """Check that a round steps the envs of `ranges`, in their order, and no others."""
    sent: dict[int, np.ndarray] = {}
    for env_step in range(rounds + 1):
        for index, (first, last) in enumerate(ranges):
            batch = envs.recv()
            assert (batch.group, batch.first, batch.last) == (index, first, last)
            assert batch.stepped == (env_step > 0)
            if batch.stepped:
                env_steps[first:last] += 1
                np.testing.assert_array_equal(batch.observation[:, :, LAST_ACTION], sent[index])
            else:
                assert not (batch.reward.any())
                assert not (batch.terminated.any())
                assert not (batch.truncated.any())
                assert not (batch.episodes)
            check_identity(batch, env_steps)
            if env_step < rounds:
                sent[index] = act(batch)
                envs.send(sent[index])
    envs.end_round()


def expected_ranges(num_envs: int, first: int, count: int) -> list[tuple[int, int]]:
    """Computed differently from the code: split the list of envs where it is not consecutive."""
    envs = [(first + offset) % num_envs for offset in range(count)]
    cuts = [0] + [place for place in range(1, count) if envs[place] != envs[place - 1] + 1] + [count]
    return [(envs[low], envs[high - 1] + 1) for low, high in itertools.pairwise(cuts)]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_groups_and_slices_step_exactly_their_envs(data: st.DataObject) -> None:
    groups = data.draw(st.integers(1, 4), "groups")
    size = data.draw(st.integers(1, 6), "envs in a group")
    threads = data.draw(st.integers(1, size), "threads")
    backend = data.draw(st.sampled_from(["inline", "threads"]), "backend")
    num_envs = groups * size
    env_steps = np.zeros(num_envs, np.int64)
    group_ranges = [(group * size, (group + 1) * size) for group in range(groups)]
    spec = counting_spec()
    with make_vector(spec, counting, num_envs=num_envs, groups=groups, backend=backend, threads=threads) as vector:
        vector.reset(data.draw(st.integers(0, 2**63 - 1), "seed"))
        for _ in range(data.draw(st.integers(1, 4), "rounds")):
            steps = data.draw(st.integers(0, 4), "env steps")
            if data.draw(st.booleans(), "a slice"):
                first, count = data.draw(st.integers(0, num_envs - 1)), data.draw(st.integers(1, num_envs))
                env_slice = vector.slice(first, count)
                assert env_slice.num_envs == count
                check_round(env_slice, expected_ranges(num_envs, first, count), steps, env_steps)
            else:
                check_round(vector, group_ranges, steps, env_steps)
            np.testing.assert_array_equal(vector.env_steps, env_steps)


def test_slices_across_worker_processes_step_exactly_their_envs() -> None:
    """Slices cut through env batches of 3 workers and 2 groups, across groups and around the end."""
    env_steps = np.zeros(20, np.int64)
    groups = [(0, 10), (10, 20)]
    with make_vector(counting_spec(), counting, num_envs=20, num_workers=3, backend="processes") as vector:
        vector.reset(1)
        check_round(vector, groups, 4, env_steps)
        check_round(vector.slice(8, 7), [(8, 15)], 3, env_steps)
        check_round(vector.slice(15, 9), [(15, 20), (0, 4)], 3, env_steps)
        check_round(vector, groups, 2, env_steps)
        assert vector.env_steps.tolist() == env_steps.tolist() == [9] * 4 + [6] * 4 + [9] * 12


def test_top_up_rotation_covers_every_env_alike() -> None:
    """The full-size run divided by 17: 160 envs, of which 2 top up, in rotation."""
    with make_vector(counting_spec(), counting, num_envs=160, backend="inline") as vector:
        vector.reset(0)
        first = 0
        for _ in range(80):
            play(vector.slice(first, 2), 1)
            first = (first + 2) % 160
        assert vector.env_steps.tolist() == [1] * 160


def test_groups_are_received_in_turn_even_if_another_is_ready_first() -> None:
    """Group B is ready while A sleeps, and A is received first."""
    with make_vector(counting_spec(), sleeping, num_envs=4, backend="threads", threads=1) as vector:
        vector.reset(0)
        order = []
        for _ in range(6):
            batch = vector.recv()
            order.append(batch.group)
            vector.send(act(batch))
        assert order == [0, 1, 0, 1, 0, 1]


def test_both_groups_may_be_received_and_are_sent_in_order() -> None:
    with make_vector(counting_spec(), counting, num_envs=4, num_workers=2, backend="processes") as vector:
        vector.reset(0)
        for steps in range(3):
            batches = [vector.recv(), vector.recv()]
            assert [batch.observation[:, 0, ENV_STEPS].tolist() for batch in batches] == [[steps] * 2] * 2
            for batch in batches:
                vector.send(act(batch))


def test_actions_can_be_written_in_place() -> None:
    with make_vector(counting_spec(), counting, num_envs=4, groups=1, backend="inline") as vector:
        vector.reset(0)
        vector.recv().action[...] = [[5, 6]] * 4
        vector.send()
        assert vector.recv().observation[:, :, LAST_ACTION].tolist() == [[5, 6]] * 4


def test_views_are_made_once_and_batches_are_the_same_object() -> None:
    with make_vector(counting_spec(), counting, num_envs=4, groups=1, backend="inline") as vector:
        vector.reset(0)
        batch = vector.recv()
        observation = batch.observation
        vector.send(act(batch))
        assert vector.recv() is batch
        assert batch.observation is observation


@pytest.fixture
def vector():
    with make_vector(counting_spec(), counting, num_envs=4, backend="inline") as vector:
        yield vector


def test_recv_before_reset_is_refused(vector: Vector) -> None:
    with pytest.raises(VectorError, match="reset"):
        vector.recv()


def test_recv_twice_without_send_is_refused(vector: Vector) -> None:
    vector.reset(0)
    vector.recv(), vector.recv()
    with pytest.raises(VectorError, match="group A was received and not sent"):
        vector.recv()


def test_send_without_recv_is_refused(vector: Vector) -> None:
    vector.reset(0)
    with pytest.raises(VectorError, match="group A is next to be sent and was not received"):
        vector.send(np.zeros((2, 2), int))


def test_end_round_with_unreceived_results_is_refused(vector: Vector) -> None:
    vector.reset(0)
    vector.send(act(vector.recv()))
    with pytest.raises(VectorError, match="group A was sent and not received"):
        vector.end_round()


def test_slice_and_vector_cannot_step_at_the_same_time(vector: Vector) -> None:
    vector.reset(0)
    vector.send(act(vector.recv()))
    env_slice = vector.slice(0, 1)
    with pytest.raises(VectorError, match="middle of a round"):
        env_slice.recv()
    vector.recv(), vector.recv(), vector.end_round()
    env_slice.send(act(env_slice.recv()))
    with pytest.raises(VectorError, match="middle of a round"):
        vector.recv()
    env_slice.recv(), env_slice.end_round()
    assert vector.recv().observation[:, 0, ENV_STEPS].tolist() == [2, 1]


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (np.zeros((2, 1), int), r"shape \(2, 1\).*\(2, 2\)"),
        (np.zeros((2, 2)), "float64.*int32"),
        ([[0, 1], [2, 3.5]], "float64.*int32"),
    ],
)
def test_invalid_actions_are_refused(vector: Vector, actions: object, message: str) -> None:
    vector.reset(0)
    vector.recv()
    with pytest.raises(VectorError, match=message):
        vector.send(actions)
    vector.send([[0, 1], [2, 3]])  # and nothing is spoilt


@pytest.mark.parametrize(("first", "count"), [(-1, 2), (4, 1), (0, 0), (0, 5)])
def test_slices_out_of_range_are_refused(vector: Vector, first: int, count: int) -> None:
    with pytest.raises(VectorError, match=r"first must be in 0\.\.3 and count in 1\.\.4"):
        vector.slice(first, count)


def test_closed_vector_refuses_every_call(vector: Vector) -> None:
    vector.reset(0)
    batch = vector.recv()
    vector.close()
    vector.close()
    assert batch.observation[0, 0, IDENTITY] == 0  # views outlive it
    for call in (vector.recv, vector.send, lambda: vector.reset(0), lambda: vector.slice(0, 1), vector.save_state):
        with pytest.raises(VectorError, match="closed"):
            call()
