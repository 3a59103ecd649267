"""Captured output, in a process with a terminal of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs pseudo-terminals")
if os.name == "posix":
    import fcntl
    import pty
    import struct
    import termios


def run(code: str, *, rows: int = 24, columns: int = 100) -> str:
    """Run a program on a new terminal, and return what it shows there."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm"}
    child = subprocess.Popen([sys.executable, "-c", code], stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert child.wait() == 0, shown.decode()
    return shown.decode()


OUTPUT = """
import os, subprocess, sys
from millpond.record import captured_output
from millpond.record.capture import active_capture, CapturedTerminal
with captured_output():
    capture, lines = active_capture(), []
    assert not os.isatty(1)
    assert CapturedTerminal(file=capture.file).size == (100, 24)
    print("unchanged", flush=True)
    subprocess.run([sys.executable, "-c", "print('from a child')"])
    os.write(2, b"from C\\n")
    subprocess.run(["sleep", "0.1"])
    capture.show = lambda text: lines.append(text)
    print("shown", flush=True)
    subprocess.run(["sleep", "0.1"])
    capture.show = None
assert active_capture() is None and os.isatty(1) and os.isatty(2)
print(lines)
"""


def test_output_of_this_process_its_children_and_c_is_captured_and_the_terminal_restored():
    assert run(OUTPUT).splitlines() == ["unchanged", "from a child", "from C", "['shown']"]


def test_the_rest_is_passed_on_at_the_end_also_without_a_line_break():
    code = "from millpond.record import captured_output\nwith captured_output():\n    print('rest', end='')\n"
    assert run(code) == "rest"


def test_an_error_restores_the_terminal():
    code = (
        "import os\nfrom millpond.record import captured_output\ntry:\n    with captured_output():\n"
        "        raise ValueError\nexcept ValueError:\n    print(os.isatty(1), os.isatty(2))\n"
    )
    assert run(code).split() == ["True", "True"]


def test_nothing_is_captured_without_a_terminal():
    code = "import os\nfrom millpond.record import captured_output\nwith captured_output():\n    print(os.fstat(1).st_ino)\n"
    first, second = (
        subprocess.run([sys.executable, "-c", c], capture_output=True, text=True, check=True).stdout
        for c in (code, "print(1)")
    )
    assert first.strip().isdigit()
    assert second == "1\n"


DISPLAY = """
import os, subprocess, sys, time
from millpond.loop import Loop
from millpond.record import Console, Counters, Timer, captured_output
with captured_output():
    console = Console(Loop(batch=2), Counters(), Timer(), "updates", title="the title")
    console.open([])
    subprocess.run([sys.executable, "-c", "print('from a worker')"])
    time.sleep(0.2)
    console.close()
print("after")
"""


def test_what_workers_print_appears_above_the_display():
    shown = run(DISPLAY)
    worker = shown.index("from a worker")
    assert shown.index("the title") < worker < shown.rindex("the title")  # drawn again below it
    assert shown.endswith("after\r\n")
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l")
