"""Measure torchrl's LazyMemmapStorage on the frames of `lake.py`. Runs in a separate virtual environment; prints JSON.

Two layouts. `stacks as stored`: observation and next observation, each a stack of four, in every entry, as torchrl's
users store them (56 KB per transition; 60,000 transitions, so that all fit into memory, in its favour).
`single frames`: each frame once, five indices per transition, stacked after the gather.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from tensordict import TensorDict
from torchrl.data import LazyMemmapStorage

BATCH, STACK = 256, 4
TRANSITIONS = 60_000
libc = ctypes.CDLL(None)


def median_speed(work, batches, before=None):
    rng, spent = np.random.default_rng(0), []
    for _ in range(batches):
        if before:
            before()
        began = time.perf_counter()
        work(rng)
        spent.append(time.perf_counter() - began)
    return BATCH / float(np.median(spent))


def evict(folder, tensors):
    """Remove a file from the page cache; mapped pages have to be released from the map first."""
    for tensor in tensors:
        begin = tensor.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
        length = tensor.data_ptr() + tensor.numel() * tensor.element_size() - begin
        libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(length), mmap.MADV_DONTNEED)
    for path in Path(folder).rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def main():
    torch.set_num_threads(1)
    frames = torch.from_numpy(np.load(sys.argv[1]))
    count = int(sys.argv[2])
    result = {}
    with tempfile.TemporaryDirectory(dir=Path(sys.argv[1]).parent) as folder:
        stored = min(count, TRANSITIONS)
        storage = LazyMemmapStorage(stored, scratch_dir=folder)
        for begin in range(0, stored, 1_000):
            at = (torch.arange(begin, min(begin + 1_000, stored)) % (len(frames) - STACK)).unsqueeze(1)
            now, then = frames[at + torch.arange(STACK)], frames[at + torch.arange(1, STACK + 1)]
            entries = TensorDict({"observation": now, "next": {"observation": then}}, [len(at)])
            storage.set(torch.arange(begin, begin + len(at)), entries)

        def sample(rng):
            return storage.get(torch.from_numpy(rng.integers(0, stored, BATCH))).to_tensordict()

        median_speed(sample, 10)
        result["warm, stacks as stored"] = median_speed(sample, 60)
        tensors = list(storage._storage.values(True, True))
        result["cold, stacks as stored"] = median_speed(sample, 5, lambda: evict(folder, tensors))
    with tempfile.TemporaryDirectory(dir=Path(sys.argv[1]).parent) as folder:
        storage = LazyMemmapStorage(count, scratch_dir=folder)
        for begin in range(0, count, len(frames)):
            part = frames[: min(len(frames), count - begin)]
            storage.set(torch.arange(begin, begin + len(part)), TensorDict({"frame": part}, [len(part)]))
        window = np.arange(STACK + 1)

        def sample_frames(rng):
            at = rng.integers(0, count - STACK, BATCH)[:, None] + window
            return storage.get(torch.from_numpy(at.reshape(-1))).to_tensordict()

        median_speed(sample_frames, 10)
        result["warm, single frames"] = median_speed(sample_frames, 60)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
