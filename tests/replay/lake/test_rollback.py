"""Rollback of appends: after a crash in the middle the stream is a valid prefix, and the rollback can be repeated."""

from __future__ import annotations

import os
import random
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from millpond.replay import Lake
from millpond.replay.tools import verify
from tests.support.lake_crashes import (
    LANES,
    acknowledged_until_death,
    append_number,
    assert_holds,
    die_at_call,
    in_child,
)
from tests.support.naive_lake import FRAME


def grow(folder: Path, commits: int) -> None:
    with Lake(folder) as lake, lake.writer("a", LANES, continue_episodes=True) as writer:
        while writer.position < commits:
            writer.append(append_number(writer.position))


def test_rollback_accepts_positions_of_the_lake(tmp_path: Path) -> None:
    with Lake.create(tmp_path, FRAME) as lake:
        assert lake.positions() == {}
        for name, count in (("a", 3), ("b", 1)):
            with lake.writer(name, LANES) as writer:
                for number in range(count):
                    writer.append(append_number(number))
        lake.refresh()
        assert lake.positions() == {"a": 3, "b": 1}
        with lake.writer("a", LANES, continue_episodes=True) as writer:
            writer.append(append_number(3))
            assert writer.rollback(lake.positions()["a"]) == 1
        lake.refresh()
        assert lake.positions() == {"a": 3, "b": 1}


def test_rollback_can_be_repeated_after_death_at_every_system_call(tmp_path: Path) -> None:
    """Files are unlinked, truncated and synced one by one; the process dies after each call, and the next one continues."""
    folder, target = tmp_path / "lake", 4
    Lake.create(folder, FRAME, segment_bytes=6_000).close()
    survived = False
    for call in range(1, 80):
        grow(folder, 12)

        def work(pipe: int, call: int = call) -> None:
            lake = Lake(folder)
            writer = lake.writer("a", LANES, continue_episodes=True)
            die_at_call(call, half=False)
            writer.rollback(target)
            os.write(pipe, f"{writer.position}\n".encode())

        acks = acknowledged_until_death(*in_child(work))
        with Lake(folder) as lake, lake.writer("a", LANES, continue_episodes=True) as writer:
            assert writer.position in ((target,) if acks else (target, 12))
            writer.rollback(target)
            assert writer.position == target
        assert_holds(folder, target)
        survived = bool(acks)
        if survived:
            break
    assert survived, "a rollback has more calls than were tried"
    grow(folder, 12)
    assert_holds(folder, 12)
    assert verify(folder).good


def append_and_roll_back_forever(folder: Path) -> Callable[[int], None]:
    def work(pipe: int) -> None:
        chance = random.Random(os.getpid())
        writer = Lake(folder).writer("a", LANES, continue_episodes=True)
        while True:
            for _ in range(chance.randrange(6)):
                writer.append(append_number(writer.position))
            writer.rollback(chance.randrange(writer.position // 2, writer.position + 1))
            os.write(pipe, f"{writer.position}\n".encode())

    return work


@pytest.mark.timeout(120)
def test_kill_during_appends_and_rollbacks_leaves_a_valid_prefix(tmp_path: Path) -> None:
    folder, chance = tmp_path / "lake", random.Random(5)
    Lake.create(folder, FRAME, segment_bytes=20_000).close()
    grow(folder, 30)
    for _ in range(12):
        child, pipe = in_child(append_and_roll_back_forever(folder))
        select.select([pipe], [], [], 60)
        time.sleep(chance.uniform(0, 0.06))
        os.kill(child, signal.SIGKILL)
        acknowledged_until_death(child, pipe)
        with Lake(folder) as lake, lake.writer("a", LANES, continue_episodes=True) as writer:
            held = writer.position
        assert_holds(folder, held)  # every append is a function of its number, so a prefix is all there can be
        grow(folder, held + 20)
    assert verify(folder).good
