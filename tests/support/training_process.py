"""Real training processes for tests, to be killed or sent signals."""

import multiprocessing
import os
import signal
import time

from tests.support import tiny_training

# A server with torch loaded forks each process, so that a test need not wait for the import each time.
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    ["torch", "torch._dynamo", "numpy", "safetensors.torch", "tensorboard.summary.writer.record_writer"]
)


def child(root, resume, die, batch_sleep, output, connection):
    if output is not None:
        for stream in (1, 2):
            os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), stream)
    if die is not None:
        os.environ["DIE"] = die
        tiny_training.die_as_configured()
    tiny_training.train(root, resume=resume, report=connection.send, batch_sleep=batch_sleep)


class Training:
    """A process that trains under `root`; what it prints goes to the file `output`."""

    def __init__(self, root, *, resume=False, die=None, batch_sleep=0.0, output=None):
        self.reports, send = context.Pipe(duplex=False)
        self.process = context.Process(target=child, args=(root, resume, die, batch_sleep, output, send))
        self.process.start()
        send.close()

    def send_at(self, count, number, delay=0.0):
        """Send a signal a moment after a step has been reported, or the process has ended."""
        try:
            while self.reports.recv() < count:
                pass
        except EOFError:
            pass
        time.sleep(delay)
        os.kill(self.process.pid, number)

    def kill_at(self, count, delay):
        self.send_at(count, signal.SIGKILL, delay)
        return self.wait()

    def wait(self, timeout=None):
        self.process.join(timeout)
        self.reports.close()
        return self.process.exitcode
