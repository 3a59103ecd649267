import time

import pytest

from millpond.record import Timer


def test_phases_nest_and_take_resets_them():
    timer = Timer()
    for _ in range(3):
        with timer("train"):
            time.sleep(0.002)
            with timer("backward"):
                time.sleep(0.002)
    with timer("backward"):
        pass
    first = timer.take()
    assert list(first) == ["time/train", "time/train/backward", "time/backward"]
    assert first["time/train"] >= first["time/train/backward"] + 0.006
    assert first["time/train/backward"] >= 0.006
    assert set(timer.take().values()) == {0.0}


def test_open_phase_counts_up_to_now():
    timer = Timer()
    with timer("collect"):
        time.sleep(0.002)
        assert timer.take()["time/collect"] >= 0.002
        time.sleep(0.002)
    assert timer.take()["time/collect"] >= 0.002
    assert timer.take()["time/collect"] == 0.0


def test_shares_sum_to_one():
    timer = Timer()
    with timer("a"), timer("inner"):
        time.sleep(0.002)
    with timer("b"):
        time.sleep(0.001)
    shares = timer.shares()
    assert list(shares) == ["a", "b", "other"]
    assert sum(shares.values()) == pytest.approx(1.0)


def test_exception_ends_the_phase():
    timer = Timer()
    with pytest.raises(KeyError), timer("a"), timer("b"):
        raise KeyError
    with timer("c"):
        pass
    assert list(timer.take()) == ["time/a", "time/a/b", "time/c"]
