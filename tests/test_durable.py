"""Locks between processes: one holder, named to the others; a process that ended, or its children, never block."""

import os
import signal
import subprocess
import sys
import time

import pytest

from millpond.durable import FileLock, LockHeld, LockHolder

HOLD_AND_FORK = """
import os, pathlib, sys, time
from millpond.durable import FileLock
lock = FileLock(pathlib.Path(sys.argv[1]))
child = os.fork()
if child == 0:
    time.sleep(60)
print(child, flush=True)
time.sleep(60)
"""


def test_second_holder_is_refused_and_learns_who_holds_the_lock(tmp_path):
    lock = FileLock(tmp_path / "lock")
    with pytest.raises(LockHeld) as held:
        FileLock(tmp_path / "lock")
    assert (held.value.holder.pid, held.value.holder.host) == (os.getpid(), os.uname().nodename)
    assert abs(held.value.holder.since - time.time()) < 60
    lock.release()
    again = FileLock(tmp_path / "lock")
    assert again.previous == held.value.holder
    again.release()


@pytest.mark.parametrize(("content", "holder"), [(b"41\n", LockHolder(41)), (b"", None), (b"\0\0x", None)])
def test_content_of_older_versions_and_torn_content_are_read(tmp_path, content, holder):
    (tmp_path / "lock").write_bytes(content)
    lock = FileLock(tmp_path / "lock")
    assert lock.previous == holder
    lock.release()


def test_lock_of_a_killed_process_is_free_although_its_forked_child_lives(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLD_AND_FORK, str(tmp_path / "lock")], stdout=subprocess.PIPE)
    child = int(process.stdout.readline())
    try:
        with pytest.raises(LockHeld) as held:
            FileLock(tmp_path / "lock")
        assert held.value.holder.pid == process.pid
        process.kill()
        process.wait()
        os.kill(child, 0)  # is alive
        FileLock(tmp_path / "lock").release()
    finally:
        os.kill(child, signal.SIGKILL)
        process.kill()
        process.stdout.close()


def test_lock_of_a_file_that_was_removed_meanwhile_is_taken_again(tmp_path):
    """A process that waits for the lock of a folder gets that of the folder which is there when the wait ends."""
    code = (
        "import pathlib, sys; from millpond.durable import FileLock\n"
        "lock = FileLock(pathlib.Path(sys.argv[1]), wait=True); print('taken', flush=True); input()"
    )
    lock = FileLock(tmp_path / "lock")
    waiting = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    time.sleep(1.0)
    (tmp_path / "lock").unlink()
    lock.release()
    assert waiting.stdout.readline() == b"taken\n"
    with pytest.raises(LockHeld) as held:
        FileLock(tmp_path / "lock")
    assert held.value.holder.pid == waiting.pid
    waiting.communicate(b"\n")
