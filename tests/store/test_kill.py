"""A real training process is killed with SIGKILL, at random moments and while it saves, and then resumed."""

import multiprocessing
import os
import random
import signal
import time

import pytest
import tiny_training
import torch

from millpond.record import COUNTERS, read_records
from millpond.store import Checkpoints, read_status
from millpond.store.checkpoint import read_checkpoint

# A server with torch loaded forks each training process, so that a test need not wait for the import each time.
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    ["torch", "torch._dynamo", "numpy", "safetensors.torch", "tensorboard.summary.writer.record_writer"]
)


def child(root, resume, die, connection):
    if die is not None:
        os.environ["DIE"] = die
        tiny_training.die_as_told()
    tiny_training.train(root, resume=resume, report=connection.send)


class Training:
    """A training process; `steps` reads what it reports."""

    def __init__(self, root, *, resume=False, die=None):
        self.reports, send = context.Pipe(duplex=False)
        self.process = context.Process(target=child, args=(root, resume, die, send))
        self.process.start()
        send.close()

    def kill_at(self, count, delay):
        """Kill it a moment after it has reported a step; false when it ended before."""
        try:
            while self.reports.recv() < count:
                pass
        except EOFError:
            pass
        time.sleep(delay)
        os.kill(self.process.pid, signal.SIGKILL)
        return self.wait()

    def wait(self):
        self.process.join()
        self.reports.close()
        return self.process.exitcode


def without_times(record):
    return {name: value for name, value in record.items() if name != "seconds" and not name.startswith("time/")}


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool((one == other).all()) if hasattr(one, "all") else one == other


@pytest.fixture(scope="module")
def uncut(tmp_path_factory):
    """The run that nobody killed: its last checkpoint and its records."""
    root = tmp_path_factory.mktemp("uncut")
    assert Training(root).wait() == 0
    return outcome(root)


def outcome(root):
    folder = root / tiny_training.NAME
    checkpoints = Checkpoints(folder / "checkpoints")
    last = read_checkpoint(checkpoints.path(checkpoints.updates()[-1]))
    values = {**last.values, "counters": without_times(last.values["counters"])}
    records = [without_times(record) for record in read_records(folder / "metrics.jsonl")]
    return (last.updates, last.best, last.score, values, dict(last.weights), dict(last.state)), records


def assert_same_outcome(root, uncut):
    state, records = outcome(root)
    assert records == uncut[1]
    assert len(records) == 12
    assert set(COUNTERS) - set(records[0]) == {"seconds"}
    assert same(state, uncut[0])
    folder = root / tiny_training.NAME
    assert read_status(folder).state == "finished"
    assert not [path.name for path in (folder / "checkpoints").iterdir() if not path.name.isdigit()]


def killed_and_resumed(root, rng, uncut, first_kills):
    """Kill a run several times at random moments, resume it to its end, and compare."""
    resume, deaths = False, 0
    for _ in range(first_kills):
        training = Training(root, resume=resume)
        deaths += training.kill_at(rng.randint(1, 58), rng.uniform(0.0, 0.004)) == -signal.SIGKILL
        resume = (root / tiny_training.NAME).exists()
    if resume and read_status(root / tiny_training.NAME).state != "finished":
        assert "died without a word" in read_status(root / tiny_training.NAME).note
    assert Training(root, resume=resume).wait() == 0
    assert_same_outcome(root, uncut)
    return deaths


def test_killed_at_random_moments(tmp_path, uncut):
    rng = random.Random(5)
    deaths = sum(killed_and_resumed(tmp_path / str(trial), rng, uncut, first_kills=2) for trial in range(3))
    assert deaths >= 5


# A checkpoint is four files, each written and synced, then two folders synced around a rename. The first checkpoint
# begins after the folder of the run was made, so these moments fall into the second to the fifth.
MOMENTS = [
    "before fsync 20",
    "after fsync 27",
    "before rename 4",
    "after rename 4",
    "after rename 7",
    "half write 26",
    "half write 31",
]


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_inside_the_write_of_a_checkpoint(tmp_path, uncut, moment):
    assert Training(tmp_path, die=moment).wait() == -signal.SIGKILL
    assert Training(tmp_path, resume=True).wait() == 0
    assert_same_outcome(tmp_path, uncut)


@pytest.mark.slow
def test_killed_fifty_times(tmp_path, uncut):
    rng = random.Random(6)
    deaths = trial = 0
    while deaths < 25:
        deaths += killed_and_resumed(tmp_path / str(trial), rng, uncut, first_kills=3)
        trial += 1
    moments = [
        f"{when} {name} {rng.randint(12, 90)}" for when in ("before", "after") for name in ("fsync",) for _ in range(8)
    ]
    moments += [f"half write {rng.randint(14, 60)}" for _ in range(5)]
    moments += [f"{when} rename {number}" for when in ("before", "after") for number in (3, 5)]
    for number, moment in enumerate(moments):
        root = tmp_path / f"moment{number}"
        assert Training(root, die=moment).wait() == -signal.SIGKILL, moment
        assert Training(root, resume=(root / tiny_training.NAME).exists()).wait() == 0
        assert_same_outcome(root, uncut)
