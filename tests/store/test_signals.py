"""A real training process is sent signals."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

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


# Tests may run where SIGHUP is ignored, which child processes inherit.
NOT_IGNORED = "import runpy, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_DFL); sys.argv = sys.argv[1:];"
RUN_MODULE = "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
CONTROLLED_BY_STDIN = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"


def start(command, **options):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "SLEEP": "0.1", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(command, env=environment, **options)


@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP"])
def test_signal_finishes_the_step_saves_and_prints_how_to_resume(tmp_path, name):
    command = [sys.executable, "-c", NOT_IGNORED + RUN_MODULE, "tests.support.tiny_training", str(tmp_path)]
    with start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.strip() == "12":
                break
        process.send_signal(signal.Signals[name])
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert f"{name}: finishing this step, then saving." in err
    assert_stopped(tmp_path / tiny_training.NAME, name, out.splitlines())


def test_hangup_does_not_stop_a_run_under_nohup(tmp_path):
    command = ["nohup", sys.executable, "-m", "tests.support.tiny_training", str(tmp_path)]
    with start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if line.strip() == "12":
                break
        process.send_signal(signal.SIGHUP)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "SIGHUP" not in out + err
    assert read_status(tmp_path / tiny_training.NAME).state == "finished"


def test_run_with_worker_processes_saves_and_stops_when_its_terminal_is_closed(tmp_path):
    settings = ["vector.backend=processes", "trainer.num_workers=2", "trainer.num_envs=8", "trainer.async_factor=1",
                "trainer.bptt_horizon=8", "trainer.batch_size=192", "trainer.minibatch_size=192", "eval.interval=null",
                "policy.hidden_size=16", "eval.episodes=1", "checkpoint.interval=null"]  # fmt: skip
    arguments = ["millpond", "train", "grid", *settings, "--run", "hung"]
    program = CONTROLLED_BY_STDIN + NOT_IGNORED + RUN_MODULE
    terminal, side = os.openpty()
    command = [sys.executable, "-c", program, *arguments]
    process = start(command, stdin=side, stdout=side, stderr=side, cwd=tmp_path, start_new_session=True)
    os.close(side)
    run, deadline = tmp_path / "runs" / "hung", time.monotonic() + 90
    metrics = run / "metrics.jsonl"
    os.set_blocking(terminal, False)
    printed = b""
    while not (metrics.is_file() and metrics.stat().st_size) and time.monotonic() < deadline:
        assert process.poll() is None, printed
        try:
            printed += os.read(terminal, 1 << 16)
        except BlockingIOError:
            time.sleep(0.05)
    os.close(
        terminal
    )  # writing to it fails from now on, and the kernel sends SIGHUP to the first process of the session,
    os.killpg(process.pid, signal.SIGHUP)  # as a shell does to all processes of its jobs
    assert process.wait(60) == 0
    status = read_status(run)
    assert (status.state, status.note) == ("stopped", "SIGHUP")
    (updates,) = Checkpoints(run / "checkpoints").updates()
    assert json.loads(metrics.read_text().splitlines()[-1])["updates"] == updates
