from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.vector import VectorError
from millpond.vector.layout import Layout


@given(groups=st.integers(1, 5), size=st.integers(1, 40), data=st.data())
def test_every_env_is_in_one_shard_and_shards_are_even(groups: int, size: int, data: st.DataObject) -> None:
    workers = data.draw(st.integers(1, size))
    layout = Layout.of(groups * size, groups, workers)
    envs = [env for shard in layout.shards for env in range(shard.first, shard.last)]
    assert envs == list(range(groups * size))
    for shard in layout.shards:
        low, high = layout.group(shard.group)
        assert low <= shard.first < shard.last <= high
        assert layout.shards[shard.index] is shard
        assert shard.last - shard.first in (size // workers, -(-size // workers))


@given(groups=st.integers(1, 5), size=st.integers(2, 40), data=st.data())
def test_the_trainers_own_envs_are_the_last_of_each_group(groups: int, size: int, data: st.DataObject) -> None:
    own = data.draw(st.integers(1, size - 1))
    workers = data.draw(st.integers(1, size - own))
    layout = Layout.of(groups * size, groups, workers, own)
    assert [env for shard in layout.shards for env in range(shard.first, shard.last)] == list(range(groups * size))
    mine = [shard for shard in layout.shards if shard.worker == workers]
    assert [(shard.first, shard.last) for shard in mine] == [
        (last - own, last) for last in range(size, groups * size + 1, size)
    ]
    theirs = [shard.last - shard.first for shard in layout.shards if shard.worker < workers]
    assert set(theirs) <= {(size - own) // workers, -(-(size - own) // workers)}


@given(groups=st.integers(1, 4), size=st.integers(1, 12), data=st.data())
def test_tasks_cover_a_range_once(groups: int, size: int, data: st.DataObject) -> None:
    layout = Layout.of(groups * size, groups, data.draw(st.integers(1, size)))
    first = data.draw(st.integers(0, layout.num_envs - 1))
    last = data.draw(st.integers(first + 1, layout.num_envs))
    tasks = layout.tasks(first, last)
    assert [env for task in tasks for env in range(task.first_env, task.last_env)] == list(range(first, last))
    assert all(0 <= task.first < task.last <= task.shard.last - task.shard.first for task in tasks)


def test_layout_of_the_full_size_run() -> None:
    layout = Layout.of(2720, 2, 16)
    assert {shard.last - shard.first for shard in layout.shards} == {85}
    assert [layout.group(0), layout.group(1)] == [(0, 1360), (1360, 2720)]
    assert layout.ranges(2704, 32) == [(2704, 2720), (0, 16)]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((7, 2, 1), "num_envs=7 is not a multiple of groups=2; try 6 or 8"),
        ((1, 2, 1), "num_envs=1 is not a multiple of groups=2; try 2"),
        ((8, 2, 5), "num_workers=5 is more than the 4 envs of a group"),
        ((0, 1, 1), "num_envs=0 must be at least 1"),
        ((4, 0, 1), "groups=0 must be at least 1"),
        ((4, 1, 0), "num_workers=0 must be at least 1"),
    ],
)
def test_invalid_sizes_are_refused(sizes: tuple[int, int, int], message: str) -> None:
    with pytest.raises(VectorError, match=message):
        Layout.of(*sizes)
