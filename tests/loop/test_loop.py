import json
import sys
from fractions import Fraction
from subprocess import run as run_process

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.loop import Loop, LoopError


def drive(loop, body):
    for at in loop.run():
        body(at)


def test_importing_the_loop_does_not_import_torch():
    code = "import sys, millpond.loop, millpond.record, millpond.store; sys.exit('torch' in sys.modules)"
    assert run_process([sys.executable, "-c", code], check=False).returncode == 0


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_mean_of_uneven_batches_is_exact_at_every_level(data):
    sizes = {depth: {} for depth in range(3)}

    def size(at):
        return sizes[len(at)].setdefault(at.indices, data.draw(st.integers(1, 3)))

    loop = Loop(epoch=2, cycle=size, batch=size)
    rows = {}
    found = {}
    for level in loop.names:
        loop.at_end(level, lambda ended: found.update({ended.address.indices: ended.moments["loss"]}))
    for at in loop.run():
        value = data.draw(st.floats(-1e6, 1e6))
        weight = data.draw(st.integers(1, 50))
        rows[at.indices] = (Fraction(value), weight)
        loop.record("loss", value, weight=weight)
    prefixes = {indices[:depth] for indices in rows for depth in (1, 2, 3)}
    assert set(found) == prefixes
    for prefix in prefixes:
        below = [pair for indices, pair in rows.items() if indices[: len(prefix)] == prefix]
        total = sum(weight for _, weight in below)
        mean = sum(value * weight for value, weight in below) / total
        assert found[prefix].mean == float(mean)
        assert found[prefix].count == len(below)
        assert found[prefix].total_weight == total
    everything = sum(value * weight for value, weight in rows.values()) / sum(weight for _, weight in rows.values())
    assert loop.moments["loss"].mean == float(everything)


def test_hooks_run_inner_to_outer_before_the_save():
    loop = Loop(epoch=2, cycle=2, batch=2)
    log = []
    for level in ("epoch", "batch", "cycle"):
        loop.at_end(level, lambda ended: log.append(str(ended.address)))
    loop.at_end("cycle", lambda ended: loop.request_save(), at=[0])
    loop.on_save(lambda: log.append(f"saved at {loop.address}"))
    list(loop.run())
    assert log[:4] == [
        "epoch 0 cycle 0 batch 0",
        "epoch 0 cycle 0 batch 1",
        "epoch 0 cycle 0",
        "saved at epoch 0 cycle 1 batch 0",
    ]
    assert log[4:7] == ["epoch 0 cycle 1 batch 0", "epoch 0 cycle 1 batch 1", "epoch 0 cycle 1"]
    assert log[7] == "epoch 0"
    assert log[-2:] == ["epoch 1", "saved at epoch 2 cycle 0 batch 0"]  # the end of training always saves
    assert sum(entry.startswith("saved") for entry in log) == 2


def test_every_counts_items_over_the_whole_run():
    # every=100 batches gives 50 lines per cycle of 100 x 50 batches, though an iteration has only 50 batches
    loop = Loop(cycle=1, iteration=100, batch=50)
    lines = []
    loop.at_end("batch", lambda ended: lines.append(ended.number), every=100)
    list(loop.run())
    assert len(lines) == 50
    assert lines[:2] == [99, 199]


def test_at_selects_items_or_the_last():
    loop = Loop(epoch=3, batch=2)
    numbers = []
    loop.at_end("epoch", lambda ended: numbers.append(("every", ended.number)), every=2, at="last")
    loop.at_end("batch", lambda ended: numbers.append(("at", ended.number)), at={0, 3})
    list(loop.run())
    assert numbers == [("at", 0), ("at", 3), ("every", 1), ("every", 2)]
    with pytest.raises(LoopError, match="every=0"):
        loop.at_end("epoch", print, every=0)
    with pytest.raises(LoopError, match="at='first'"):
        loop.at_end("epoch", print, at="first")
    with pytest.raises(LoopError, match="no level 'round'"):
        loop.at_end("round", print)


def test_tensors_on_a_device_are_read_once_at_the_end_of_the_parent(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)
    loop = Loop(iteration=2, batch=5)
    reads = []
    stack = torch.stack
    monkeypatch.setattr(torch, "stack", lambda tensors: reads.append(len(tensors)) or stack(tensors))
    means = []
    loop.at_end("iteration", lambda ended: means.append(ended.means()))
    buffer = torch.zeros(())
    for at in loop.run():
        assert len(reads) == at["iteration"]
        buffer.fill_(at["batch"])  # reused in place: recorded values must not change with it
        loop.record("loss", buffer, weight=torch.tensor(2.0))
        loop.record("norm", 1.0)
    assert reads == [10, 10]
    assert means == [{"loss": 2.0, "norm": 1.0}] * 2


def test_record_accepts_floats_integers_arrays_and_tensors(recwarn):
    loop = Loop(batch=1)
    numbers = [
        2,
        2.0,
        np.float32(2),
        np.array([2]),
        torch.tensor(2),
        torch.tensor([[2.0]], requires_grad=True),
        True + 1,
    ]
    for _ in loop.run():
        for number in numbers:
            loop.record("number", number, weight=number)
    assert (loop.moments["number"].mean, loop.moments["number"].count) == (2.0, len(numbers))
    assert not recwarn.list


def test_record_refuses_what_is_not_a_number():
    loop = Loop(batch=1)
    with pytest.raises(LoopError, match=r"record\('loss'\): Tensor of shape \(2, 3\) is not one number"):
        drive(loop, lambda at: loop.record("loss", torch.zeros(2, 3)))
    with pytest.raises(LoopError, match=r"record\('loss'\): 'high' of type str"):
        drive(loop, lambda at: loop.record("loss", "high"))
    with pytest.raises(LoopError, match="outside of a step"):
        loop.record("loss", 1.0)


def test_run_until_continues_with_the_next_run():
    loop = Loop(epoch=2, cycle=2, batch=3)
    whole = [at.indices for at in Loop(epoch=2, cycle=2, batch=3).run()]
    saves = []
    loop.on_save(lambda: saves.append(loop.count))
    assert [at.indices for at in loop.run(until=4)] == whole[:4]
    assert [at.indices for at in loop.run(until={"cycle": 2})] == whole[4:6]
    assert list(loop.run(until=6)) == []
    assert [at.indices for at in loop.run(until=lambda: loop.count >= 8)] == whole[6:8]
    assert saves == []
    assert [at.indices for at in loop.run()] == whole[8:]
    assert saves == [12]


def test_step_left_by_break_or_exception_is_repeated():
    loop = Loop(epoch=1, batch=3)
    for at in loop.run():
        loop.record("loss", 100.0 if at["batch"] == 1 and loop.count == 1 else 1.0)
        if at["batch"] == 1:
            break
    assert loop.count == 1
    for _ in loop.run():
        loop.record("loss", 1.0)
    assert loop.count == 3
    assert (loop.moments["loss"].count, loop.moments["loss"].mean) == (3, 1.0)


def test_stop_finishes_the_step_and_saves():
    loop = Loop(epoch=2, batch=4)
    saves = []
    loop.on_save(lambda: saves.append(loop.count))
    for at in loop.run():
        if at["batch"] == 1:
            loop.stop("enough")
            loop.record("loss", 1.0)
    assert (loop.stopped, loop.count, saves) == ("enough", 2, [2])
    assert sum(1 for _ in loop.run()) == 6
    assert loop.stopped is None


def test_stops_and_saves_wait_for_the_boundary():
    loop = Loop(iteration=3, minibatch=4)
    loop.resumable_at("iteration")
    saves = []
    loop.on_save(lambda: saves.append(loop.count))
    for _ in loop.run():
        if loop.count == 1:
            loop.request_save()
        if loop.count == 5:
            loop.stop("SIGTERM")
    assert (loop.count, saves, loop.stopped) == (8, [4, 8], "SIGTERM")


def test_stop_requested_before_the_first_step_takes_effect():
    loop = Loop(batch=3)
    loop.stop("SIGTERM")
    assert list(loop.run()) == []
    assert loop.stopped == "SIGTERM"


def test_max_seconds_stops_and_saves():
    loop = Loop(batch=10)
    saves = []
    loop.on_save(lambda: saves.append(loop.count))
    assert sum(1 for _ in loop.run(max_seconds=0.0)) == 1
    assert (loop.stopped, saves) == ("max_seconds", [1])


class Clock:
    """A clock that is advanced by hand."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize(
    ("lengths", "max_seconds", "items"),
    [
        ([1.0] * 100, 10.5, 10),
        ([1.0] * 100, 10.0, 10),  # the tenth ends in time
        ([1.0] * 100, 9.9, 9),
        ([5.0] + [1.0] * 99, 10.5, 6),  # the first item compiles, so it is not used for the prediction
        ([1.0, 1.0, 4.0, 1.0, 1.0, 1.0] * 9, 11.0, 5),  # at 8 s the item of 4 s is still among the last three
        ([3.0] * 100, 0.5, 1),  # at least one item
    ],
)
def test_max_seconds_stops_if_the_next_item_would_end_too_late(lengths, max_seconds, items):
    loop, clock, done = Loop(iteration=100, minibatch=4), Clock(), 0
    loop.resumable_at("iteration")
    for at in loop.run(max_seconds=max_seconds, clock=clock):
        clock.now += lengths[at["iteration"]] / 4
        done += 1
    assert (done, loop.stopped) == (4 * items, "max_seconds")


def test_max_seconds_leaves_time_for_the_checkpoint():
    loop, clock, saves = Loop(batch=100), Clock(), []

    def save():
        clock.now += 2.0
        saves.append((loop.count, clock.now))

    loop.on_save(save)
    loop.at_end("batch", lambda ended: loop.request_save(), at=[1])
    for _ in loop.run(max_seconds=10.0, clock=clock):
        clock.now += 1.0
    assert saves == [(2, 4.0), (6, 10.0)]
    assert loop.stopped == "max_seconds"


def test_max_seconds_does_not_stop_a_loop_that_ends_in_time():
    loop, clock = Loop(batch=4), Clock()
    for _ in loop.run(max_seconds=4.0, clock=clock):
        clock.now += 1.0
    assert (loop.done, loop.stopped) == (True, None)


def test_state_cannot_be_saved_within_a_step():
    loop = Loop(batch=2)
    with pytest.raises(LoopError, match=r"a loop cannot be saved in its body; call request_save\(\)"):
        drive(loop, lambda at: loop.state_dict())
    loop.at_end("batch", lambda ended: loop.state_dict())
    with pytest.raises(LoopError, match="in its hooks"):
        list(loop.run())


def play(loop, log, until=None):
    for at in loop.run(until):
        loop.record("loss", loop.count * 0.1, weight=1 + at["batch"])
        if at["phase"] == 1 and at["batch"] == at["round"]:
            loop.end("batch")


def make(log):
    loop = Loop(round=3, phase=2, batch=lambda at: None if at["phase"] else 2 + at["round"])
    for level in loop.names:
        loop.at_end(level, lambda ended: log.append((str(ended.address), ended.means())))
    return loop


def test_resume_from_every_cut_with_uneven_and_open_levels():
    whole_log = []
    whole = make(whole_log)
    play(whole, whole_log)
    assert whole.count == 15
    for cut in range(whole.count + 1):
        log = []
        first = make(log)
        play(first, log, until=cut)
        second = make(log)
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        play(second, log)
        assert log == whole_log
        assert second.state_dict() == whole.state_dict()


def test_processes_agree_on_stops_at_every_boundary() -> None:
    """The reason of another process stops this one too; its own reason waits until all processes have it."""
    loop, heard = Loop(iteration=5, batch=3), []
    loop.resumable_at("iteration")

    def agree(reason: str | None) -> str | None:
        heard.append(reason)
        return "of another" if len(heard) == 4 else None

    loop.agree_on_stops(agree)
    saved: list[int] = []
    loop.on_save(lambda: saved.append(loop.count))
    for at in loop.run():
        if (at["iteration"], at["batch"]) == (1, 1):
            loop.stop("of its own")
    assert heard == [None, None, "of its own", None]  # before the first step, and after each iteration
    assert loop.stopped == "of another"
    assert saved == [9]
