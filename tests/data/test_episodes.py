"""A file larger than the memory limit is read when it is sampled, and memory use does not grow with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

MB = 1 << 20
ALLOWED = 40 * MB  # a few batches of images, and caches of the libraries

DRAW = """
import sys
import numpy as np
from millpond.data import audit, open_episodes

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) << 10

open_episodes("lift").read(0)  # imports the libraries
before = peak()
data = open_episodes(sys.argv[1], images=True, memory_bytes=1 << 20)
assert data.in_memory == ("action", "vector"), data.in_memory
rng = np.random.default_rng(0)
for _ in range(40):
    episodes = rng.integers(0, len(data), 2)
    drawn = data.gather(episodes, rng.integers(0, 50, (2, 16)))
assert drawn.observation["view"].shape == (2, 16, 128, 128, 3)
audit(data)
print(peak() - before)
"""


def write(path: Path, megabytes: int, chunked: bool) -> None:
    """Episodes of 50 steps with one image each, written one at a time."""
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (50, 128, 128, 3), dtype=np.uint8)
    with h5py.File(path, "w") as file:
        for number in range(megabytes * MB // frames.nbytes):
            demo = file.create_group(f"data/demo_{number}")
            demo["actions"] = rng.uniform(-1, 1, (50, 7))
            demo["obs/position"] = rng.normal(size=(50, 3))
            demo.create_dataset("obs/view", data=frames, chunks=(8, 128, 128, 3) if chunked else None)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("megabytes", [100, pytest.param(500, marks=pytest.mark.slow)])
def test_memory_does_not_grow_with_the_file(megabytes: int, chunked: bool, tmp_path: Path) -> None:
    path = tmp_path / "large.hdf5"
    write(path, megabytes, chunked)
    run = subprocess.run([sys.executable, "-c", DRAW, str(path)], capture_output=True, text=True, check=False)
    path.unlink()
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < ALLOWED, f"{int(run.stdout) / MB:.0f} MB more for a file of {megabytes} MB"
