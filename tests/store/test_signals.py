"""A real training process is sent signals."""

import os
import signal
import subprocess
import sys
import time

from millpond.store import Checkpoints, read_status
from tests.support import tiny_training
from tests.support.training_process import Training


def weights(run_folder):
    last = Checkpoints(run_folder / "checkpoints").load(60).weights["model"]
    return {name: tensor.tolist() for name, tensor in last.items()}


def assert_stopped(folder, name, lines):
    assert lines[-1].startswith(f"stopped ({name}) before epoch 0 cycle 1 iteration 0 batch ")
    assert lines[-1].endswith(f"; resume with: millpond train --resume {folder}")
    status = read_status(folder)
    assert (status.state, status.note) == ("stopped", name)
    # the save of the stop is the only one that is not at the end of an iteration
    (updates,) = [updates for updates in Checkpoints(folder / "checkpoints").updates() if updates % 5]
    assert 13 <= updates < 20


def test_interrupt_finishes_the_step_saves_and_prints_how_to_resume(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "SLEEP": "0.1", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "tests.support.tiny_training", str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        for line in process.stdout:
            if line.strip() == "12":
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "SIGINT: finishing this step, then saving." in err
    assert_stopped(tmp_path / tiny_training.NAME, "SIGINT", out.splitlines())


def test_run_stopped_by_sigterm_resumes_exactly(tmp_path):
    output = tmp_path / "output"
    training = Training(tmp_path, batch_sleep=0.1, output=output)
    training.send_at(12, signal.SIGTERM)
    assert training.wait(60) == 0
    assert_stopped(tmp_path / tiny_training.NAME, "SIGTERM", output.read_text().splitlines())
    assert Training(tmp_path, resume=True).wait() == 0
    assert Training(tmp_path / "uncut").wait() == 0
    assert weights(tmp_path / tiny_training.NAME) == weights(tmp_path / "uncut" / tiny_training.NAME)


def test_second_interrupt_stops_at_once(tmp_path):
    output = tmp_path / "output"
    training = Training(tmp_path, batch_sleep=60.0, output=output)
    training.send_at(0, signal.SIGINT, delay=0.3)  # it now sleeps for a minute within its first step
    while "finishing this step" not in output.read_text():
        time.sleep(0.01)
    os.kill(training.process.pid, signal.SIGINT)
    assert training.wait(30) == 1  # a traceback of KeyboardInterrupt, from which the command line makes its exit code
    assert "KeyboardInterrupt" in output.read_text()
    status = read_status(tmp_path / tiny_training.NAME)
    assert status.state == "stopped"
    assert "interrupted within a step" in status.note
