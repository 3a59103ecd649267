"""A real training process is killed with SIGKILL, at random moments and while it saves, and then resumed."""

import json
import random
import shutil
import signal
import time

import pytest
import torch

from millpond.record import COUNTERS, read_records
from millpond.store import Checkpoints, read_status
from millpond.store.checkpoint import read_checkpoint
from tests.support import tiny_training
from tests.support.training_process import Training


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
    """Last checkpoint and records of a run that was not killed."""
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
        assert "died without an error message" in read_status(root / tiny_training.NAME).note
    assert Training(root, resume=resume).wait() == 0
    assert_same_outcome(root, uncut)
    return deaths


def test_run_killed_at_random_moments_resumes_exactly(tmp_path, uncut):
    rng = random.Random(5)
    deaths = sum(killed_and_resumed(tmp_path / str(trial), rng, uncut, first_kills=2) for trial in range(3))
    assert deaths >= 5


# The moment, and the folder that it leaves among the checkpoints, which the next start removes.
MOMENTS = [
    ("before rename .writing 1", ".writing-000000000005"),  # the first checkpoint, all synced but not in its place
    ("after rename .writing 1", None),  # in its place, the name not yet synced
    ("half write weights 2", ".writing-000000000010"),
    ("half write state.pt 3", ".writing-000000000015"),
    ("before fsync manifest 4", ".writing-000000000020"),
    ("half write manifest 5", ".writing-000000000025"),
    ("after fsync .writing 3", ".writing-000000000015"),  # the folder with the files' names
    ("after rename 0000 4", ".deleting-000000000005"),  # one that is no longer kept
    ("half write metrics 4", None),
    ("before fsync metrics 4", None),
]


@pytest.mark.parametrize(("moment", "left_behind"), MOMENTS)
def test_run_killed_during_a_write_resumes_exactly(tmp_path, uncut, moment, left_behind):
    assert Training(tmp_path, die=moment).wait() == -signal.SIGKILL
    names = [path.name for path in (tmp_path / tiny_training.NAME / "checkpoints").iterdir()]
    assert [name for name in names if name.startswith(".")] == ([left_behind] if left_behind else [])
    assert Training(tmp_path, resume=True).wait() == 0
    assert_same_outcome(tmp_path, uncut)


def test_of_two_simultaneous_resumes_one_trains(tmp_path, uncut):
    """Five times, two processes resume the same run; the one that trains is killed, and the last one finishes."""
    assert Training(tmp_path).kill_at(12, 0.0) == -signal.SIGKILL
    folder = tmp_path / tiny_training.NAME
    for trial in range(5):
        output = [tmp_path / f"{trial}-{number}" for number in range(2)]
        both = [Training(tmp_path, resume=True, batch_sleep=0.02, output=path) for path in output]
        while all(training.process.is_alive() for training in both):
            time.sleep(0.005)
        loser = next(number for number in range(2) if not both[number].process.is_alive())
        winner = both[1 - loser]
        assert winner.process.is_alive()
        assert both[loser].wait() == 1
        refused = output[loser].read_text().splitlines()[-1]
        assert f"run 'tiny' is running (process {winner.process.pid} on " in refused
        assert "and cannot be resumed; stop it first" in refused
        if trial < 4:
            assert winner.kill_at(16 + 8 * trial, 0.0) == -signal.SIGKILL
        else:
            assert winner.wait() == 0
    assert len(json.loads((folder / "host.json").read_text())["resumes"]) == 5  # those that were refused left no trace
    assert_same_outcome(tmp_path, uncut)


def test_run_that_lost_its_checkpoints_is_refused_and_unchanged(tmp_path, uncut):
    assert Training(tmp_path).kill_at(22, 0.0) == -signal.SIGKILL
    folder, copy = tmp_path / tiny_training.NAME, tmp_path / "copy"
    (folder / "checkpoints").rename(copy)
    unchanged = [(folder / name).read_bytes() for name in ("state.json", "host.json", "metrics.jsonl")]
    assert Training(tmp_path, resume=True, output=tmp_path / "output").wait() == 1
    newest = (
        f"{json.loads(unchanged[0])['checkpoint']:012d}"  # one that was being written at the kill is not recorded yet
    )
    refused = (tmp_path / "output").read_text().splitlines()[-1]
    assert f"run 'tiny' has lost its checkpoints: {newest} was written, and there is none in" in refused
    assert "Restore it from a copy and resume again, or start a new run" in refused
    assert unchanged == [(folder / name).read_bytes() for name in ("state.json", "host.json", "metrics.jsonl")]
    assert not (folder / "checkpoints").exists()
    copy.rename(folder / "checkpoints")
    assert Training(tmp_path, resume=True).wait() == 0
    assert json.loads((folder / "state.json").read_text())["checkpoint"] == 60
    assert_same_outcome(tmp_path, uncut)


def test_run_killed_before_it_saved_and_one_without_the_record_start_again(tmp_path, uncut):
    assert Training(tmp_path, batch_sleep=0.02).kill_at(2, 0.0) == -signal.SIGKILL
    folder = tmp_path / tiny_training.NAME
    assert "checkpoint" not in json.loads((folder / "state.json").read_text())
    assert Training(tmp_path, resume=True).kill_at(22, 0.0) == -signal.SIGKILL
    state = json.loads((folder / "state.json").read_text())
    del state["checkpoint"]  # as Millpond 0.2 wrote it
    (folder / "state.json").write_text(json.dumps(state))
    for path in (folder / "checkpoints").iterdir():
        shutil.rmtree(path)
    assert Training(tmp_path, resume=True).wait() == 0
    assert_same_outcome(tmp_path, uncut)


@pytest.mark.slow
def test_run_killed_fifty_times_resumes_exactly(tmp_path, uncut):
    rng = random.Random(6)
    deaths = trial = 0
    while deaths < 25:
        deaths += killed_and_resumed(tmp_path / str(trial), rng, uncut, first_kills=3)
        trial += 1
    files = ("weights", "state.pt", "values", "manifest")
    moments = [f"{when} fsync {file} {rng.randint(1, 12)}" for when in ("before", "after") for file in files]
    moments += [f"half write {file} {rng.randint(1, 12)}" for file in (*files, "metrics") for _ in range(2)]
    moments += [f"{when} rename .writing {rng.randint(1, 12)}" for when in ("before", "after") for _ in range(3)]
    moments.append(f"before fsync checkpoints {rng.randint(1, 12)}")
    assert len(moments) == 25
    for number, moment in enumerate(moments):
        root = tmp_path / f"moment{number}"
        assert Training(root, die=moment).wait() == -signal.SIGKILL, moment
        assert Training(root, resume=(root / tiny_training.NAME).exists()).wait() == 0
        assert_same_outcome(root, uncut)
