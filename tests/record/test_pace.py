import pytest

from millpond.loop import Loop
from millpond.record import Pace, show_seconds
from millpond.record.pace import Speed, share_done


def test_time_left_at_each_level():
    loop = Loop(epoch=4, cycle=None, batch=10)
    now = 100.0
    pace = Pace(loop, lambda: now)
    assert pace.seconds_left() == {"epoch": None, "cycle": None, "batch": None}
    for at in loop.run(until=25):
        now += 2.0
        if at["cycle"] == 1:
            loop.end("cycle")
    # In epoch 1, cycle 0, batch 5, after 50 s: 5 batches of 2 s are left. One epoch has ended in the 50 s, and how many
    # cycles this one will have is not known, so 3 epochs are left.
    assert pace.seconds_left() == {"epoch": 150.0, "cycle": None, "batch": 10.0}
    fixed = Loop(epoch=4, cycle=2, batch=10)
    pace = Pace(fixed, lambda: now)
    for _ in fixed.run(until=5):
        now += 2.0
    # 5 batches, then 1 cycle of 20 s, then 3 epochs of 40 s
    assert pace.seconds_left() == {"epoch": 150.0, "cycle": 30.0, "batch": 10.0}


def test_share_done_counts_the_position_in_every_level():
    loop = Loop(epoch=4, cycle=2, batch=10)
    assert share_done(loop) == 0.0
    for _ in loop.run(until=25):
        pass
    assert share_done(loop) == pytest.approx(25 / 80)
    for _ in loop.run():
        pass
    assert share_done(loop) == 1.0
    assert Pace(loop).progress() == Pace(loop).progress(5.0) == (1.0, 0.0)
    assert share_done(Loop(epoch=None, batch=2)) is None


def test_a_time_limit_that_ends_the_run_is_its_progress():
    loop, now = Loop(batch=100), 0.0
    pace = Pace(loop, lambda: now)
    for _ in loop.run(until=10):
        now += 1.0
    assert pace.progress() == (0.1, 90.0)
    assert pace.progress(200.0) == (0.1, 90.0)
    assert pace.progress(30.0) == (0.25, 30.0)  # 10 s of 40
    assert pace.progress(-1.0) == (1.0, 0.0)


def test_speed_is_the_mean_over_the_last_minute():
    now = 0.0
    speed = Speed(1000, lambda: now)  # a resumed run
    assert speed.per_second() is None
    for seconds, count in ((10.0, 2000), (50.0, 3000), (100.0, 8000)):
        now = seconds
        speed.add(count)
    assert speed.per_second() == pytest.approx((8000 - 2000) / 90)  # since the last record that is a minute old


def test_show_seconds():
    shown = [show_seconds(seconds) for seconds in (None, 8.4, 245, 9000, 3 * 86400 + 4 * 3600)]
    assert shown == ["?", "8s", "4m05s", "2h30m", "3d04h"]
