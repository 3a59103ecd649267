"""A writer that dies at any moment loses nothing that it acknowledged. Real processes, real kill -9."""

from __future__ import annotations

import os
import random
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from millpond.replay import Lake, LakeBusy
from millpond.replay.tools import verify
from tests.support.lake_crashes import (
    LANES,
    acknowledged_until_death,
    append_number,
    assert_holds,
    die_at_call,
    in_child,
)
from tests.support.naive_lake import FRAME, NaiveLake, numbers_of

SEGMENT_BYTES = 30_000


def append_forever(folder: Path, start: int) -> Callable[[int], None]:
    def work(pipe: int) -> None:
        lake = Lake(folder)
        writer = lake.writer("a", LANES, continue_episodes=True)
        number = writer.position
        assert number >= start
        os.write(pipe, f"{number}\n".encode())
        while True:
            ack = writer.append(append_number(number))
            number += 1
            assert ack.commits == number
            os.write(pipe, f"{number}\n".encode())

    return work


def kill_repeatedly(folder: Path, times: int, longest: float) -> None:
    chance = random.Random(11)
    with Lake.create(folder, FRAME, segment_bytes=SEGMENT_BYTES) as lake, lake.writer("a", LANES) as writer:
        held = writer.append(append_number(0)).commits  # and everything is compiled before the first child
    for _ in range(times):
        child, pipe = in_child(append_forever(folder, held))
        select.select([pipe], [], [], 60)  # it has opened the stream; dying before that is tested call by call
        time.sleep(chance.uniform(0, longest))
        os.kill(child, signal.SIGKILL)
        acks = acknowledged_until_death(child, pipe)
        acked = acks[-1]
        with Lake(folder) as lake, lake.writer("a", LANES, continue_episodes=True) as writer:
            assert acked <= writer.position <= acked + 1
            held = writer.position
        assert_holds(folder, held)
    assert held > times
    assert verify(folder).good


def test_acknowledged_appends_survive_kill_at_random_moments(tmp_path: Path) -> None:
    kill_repeatedly(tmp_path / "lake", 20, 0.08)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_acknowledged_appends_survive_300_kills(tmp_path: Path) -> None:
    for part in range(30):
        kill_repeatedly(tmp_path / f"lake{part}", 10, 0.15)


@pytest.mark.parametrize("half", [False, True])
def test_acknowledged_appends_survive_death_at_every_system_call(tmp_path: Path, half: bool) -> None:
    folder = tmp_path / "lake"
    with Lake.create(folder, FRAME, segment_bytes=6_000) as lake, lake.writer("a", LANES) as writer:
        for number in range(3):
            writer.append(append_number(number))
    held, survived = 3, False
    for call in range(1, 60):

        def work(pipe: int, call: int = call, held: int = held) -> None:
            lake = Lake(folder)
            die_at_call(call, half=half)
            writer = lake.writer("a", LANES, continue_episodes=True)
            os.write(pipe, f"{writer.append(append_number(writer.position)).commits}\n".encode())

        acks = acknowledged_until_death(*in_child(work))
        with Lake(folder) as lake, lake.writer("a", LANES, continue_episodes=True) as writer:
            assert (acks[-1] if acks else held) <= writer.position <= held + 1
            held = writer.position
        assert_holds(folder, held)
        survived = bool(acks)
        if survived and call > 30:
            break
    assert survived, "an append has more calls than were tried"
    assert verify(folder).good


def test_second_writer_is_refused_and_a_dead_writer_holds_no_lock(tmp_path: Path) -> None:
    with Lake.create(tmp_path, FRAME) as lake:
        child, pipe = in_child(append_forever(tmp_path, 0))
        while not os.read(pipe, 1):
            pass
        with pytest.raises(LakeBusy, match=rf"stream 'a' is held by another process \(pid {child}\)"):
            lake.writer("a", LANES)
        os.kill(child, signal.SIGKILL)
        acknowledged_until_death(child, pipe)
        with lake.writer("a", LANES) as writer:
            assert writer.append(append_number(writer.position)).commits == writer.position
            with pytest.raises(LakeBusy, match=str(os.getpid())):
                lake.writer("a", LANES)


def test_reader_follows_writer_in_another_process(tmp_path: Path) -> None:
    with Lake.create(tmp_path, FRAME, segment_bytes=SEGMENT_BYTES) as lake:
        child, pipe = in_child(append_forever(tmp_path, 0))
        try:
            rng, commits = np.random.default_rng(0), 0
            while commits < 20:
                acked = int(os.read(pipe, 1 << 16).split()[-1])
                lake.refresh()
                assert acked - 1 <= lake.reader("a").commits  # the last line of the pipe may be cut in two
                commits = lake.reader("a").commits
                if lake.transitions(2):
                    batch = lake.sample(64, rng, stack=2)
                    assert numbers_of(batch.observation[:, -1]) == batch.record["id"].tolist()
        finally:
            os.kill(child, signal.SIGKILL)
            acknowledged_until_death(child, pipe)


def test_several_processes_create_and_write_one_lake_at_once(tmp_path: Path) -> None:
    """Each in a separate process, all creating the lake at the same moment."""

    def work(name: str) -> Callable[[int], None]:
        def run(pipe: int) -> None:
            with (
                Lake.create(tmp_path / "lake", FRAME, segment_bytes=SEGMENT_BYTES) as lake,
                lake.writer(name, LANES) as writer,
            ):
                for number in range(12):
                    os.write(pipe, f"{writer.append(append_number(number)).commits}\n".encode())

        return run

    children = [in_child(work(f"agent{k}")) for k in range(3)]
    assert [acknowledged_until_death(*child)[-1] for child in children] == [12, 12, 12]
    naive = NaiveLake()
    for number in range(12):
        append_number(number, naive)
    expected = len(naive.transitions(stack=2, n_step=1, gamma=1.0, repeat=False))
    with Lake(tmp_path / "lake") as lake:
        assert [lake.view(name).transitions(2) for name in lake.streams] == [expected] * 3
    assert verify(tmp_path / "lake").good
