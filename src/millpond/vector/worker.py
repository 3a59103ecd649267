"""The life of a worker process: sleep until the bell rings, obey, tell, sleep."""

from __future__ import annotations

import faulthandler
import os
import pickle
import select
import signal
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import replace

from millpond.vector.bell import hush, ring
from millpond.vector.crash import Failure
from millpond.vector.crew import Command, Crew, Job, Op
from millpond.vector.lifeline import end_with
from millpond.vector.memory import Arena

COMMAND = struct.Struct("=6q")  # op, shard, first, last, ticket, bytes of payload that follow on the data socket
REPLY = struct.Struct("=2q")  # ticket, bytes of payload that follow on the data socket


def work(job: Job, memory: int, nursery: int, fds: list[int]) -> None:
    """Obey until the trainer closes the pipe of commands.

    `fds`: the pipe of commands and its bell, the pipe of replies (all workers write to one, in packets below PIPE_BUF
    and so never torn) and its bell, the socket for what does not fit in these, and the pipe for last words.
    """
    command_pipe, command_bell, reply_pipe, reply_bell, data_socket, last_words = fds
    end_with(nursery)
    # Written by the C handler even where Python is stuck: on a fatal signal, and when the trainer asks a silent worker.
    faulthandler.enable(last_words)
    faulthandler.register(signal.SIGUSR1, last_words)
    data = socket.socket(fileno=data_socket)
    arena = Arena.attach(memory, job.spec, job.layout)
    crew = Crew(job, arena)
    for order in orders(command_pipe, command_bell, job.awake_seconds):
        op, shard, first, last, ticket, nbytes = COMMAND.unpack(order)
        payload = pickle.loads(receive(data, nbytes)) if nbytes else None
        command = Command(Op(op), shard, first, last)
        try:
            result = crew.run(command, payload)
            blob = b"" if result is None else pickle.dumps(result, pickle.HIGHEST_PROTOCOL)
        except BaseException as error:  # SystemExit of an env, too: whatever it is, the trainer is waiting to hear it
            blob = pickle.dumps(replace(Failure.of(error, command.op.name.lower()), pid=os.getpid()))
        os.write(reply_pipe, REPLY.pack(ticket, len(blob)))
        ring(reply_bell)
        if blob:
            data.sendall(blob)


def orders(command_pipe: int, bell: int, awake_seconds: float) -> Iterator[bytes]:
    """Commands as they come, until the other end of the pipe is closed.

    Between two commands of a rollout it stays awake for a while: to be woken on a core that has gone to sleep takes
    about as long as a step of a quick environment.
    """
    os.set_blocking(command_pipe, False)
    poll = select.poll()
    poll.register(bell, select.POLLIN)
    poll.register(command_pipe, 0)  # only its end: what is written to it must not wake anybody
    sleep_from = 0.0
    while True:
        hush(bell)
        try:
            while order := os.read(command_pipe, COMMAND.size):
                yield order
                sleep_from = time.monotonic() + awake_seconds
            return
        except BlockingIOError:
            if time.monotonic() >= sleep_from:
                poll.poll()


def receive(data: socket.socket, nbytes: int) -> bytearray:
    """Exactly `nbytes`; EOFError where the other side goes away, TimeoutError where it falls silent."""
    blob = bytearray(nbytes)
    view = memoryview(blob)
    while view:
        count = data.recv_into(view)
        if not count:
            raise EOFError(f"the other side ended with {len(view):,} of {nbytes:,} bytes to come")
        view = view[count:]
    return blob
