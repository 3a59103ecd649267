import os
import subprocess
import sys
import time

import pytest

from millpond.record.usage import UsageMeter, descendants

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_a_busy_process_uses_processor_time():
    meter = UsageMeter()
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    assert meter().cores > 0
    assert meter().cores >= 0


@linux
def test_memory_includes_that_of_children():
    meter = UsageMeter()
    before = meter().memory
    code = "import sys; block = bytearray(1 << 27); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        assert child.pid in descendants(os.getpid())
        assert meter().memory - before > 1 << 26
        child.stdin.close()
    assert child.pid not in descendants(os.getpid())
