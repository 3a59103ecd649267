import subprocess
import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from millpond.record import Counters, Recorder, TensorBoard


def curve(folder, tag):
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def write(recorder, counters, numbers, offset=0.0):
    for number in numbers:
        counters.updates, counters.agent_steps = number * 10, number * 1000
        recorder.write({"R_loss": number / 4 + offset})


@pytest.mark.parametrize(("axis", "unit"), [("updates", 10), ("agent_steps", 1000)])
@pytest.mark.parametrize("torn", [0, 11])
def test_resumed_run_writes_one_curve(tmp_path, axis, unit, torn):
    folder, path, counters = tmp_path / "tensorboard", tmp_path / "metrics.jsonl", Counters()
    recorder = Recorder(path, counters, [TensorBoard(folder, axis)])
    write(recorder, counters, range(3))
    state = recorder.state_dict()
    write(recorder, counters, range(3, 8), offset=50.0)  # these are after the checkpoint: a kill loses them
    (events,) = folder.iterdir()
    if torn:
        events.write_bytes(events.read_bytes()[:-torn])

    resumed = Recorder(path, counters, [TensorBoard(folder, axis)])
    resumed.load_state_dict(state)
    write(resumed, counters, range(3, 6))
    resumed.close()
    assert curve(folder, "R_loss") == [(number * unit, number / 4) for number in range(6)]
    assert [step for step, _ in curve(folder, "episodes")] == [number * unit for number in range(6)]


def test_wall_time_is_the_clock_of_the_run(tmp_path):
    counters = Counters()
    counters.load_state_dict({**counters.as_dict(), "seconds": 5000.0})
    recorder = Recorder(tmp_path / "metrics.jsonl", counters, [TensorBoard(tmp_path / "tb", "updates")])
    recorder.write({"x": 1.0})
    second = recorder.write({"x": 2.0})
    recorder.close()
    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    one, two = events.Scalars("seconds")
    assert two.value == pytest.approx(second["seconds"])
    assert 0 <= two.wall_time - one.wall_time < 100


def test_tensorflow_and_torch_are_not_imported(tmp_path):
    code = """
import pathlib, sys
from millpond.record import Counters, Recorder, TensorBoard
folder = pathlib.Path(sys.argv[1])
recorder = Recorder(folder / "metrics.jsonl", Counters(), [TensorBoard(folder, "updates")])
recorder.write({"x": 1.0})
sys.exit("tensorflow" in sys.modules or "torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 0
