"""Systems without the calls that only Linux, or only Unix, has: simulated by removing them before anything is imported.

What /proc says cannot be taken away here; neither can differences of file systems.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import millpond

SOURCE = Path(millpond.__file__).parents[1]

# Python runs this module by itself when it starts, so worker processes have it, too.
SITECUSTOMIZE = """
import faulthandler, os, signal, sys

for name in (
    "memfd_create eventfd eventfd_read eventfd_write pidfd_open fork forkpty sched_getaffinity "
    "sched_setaffinity posix_fallocate posix_fadvise fdatasync pread preadv pwrite pwritev readv "
    "O_CLOEXEC O_DIRECTORY RWF_NOWAIT"
).split():
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGUSR1", "SIGUSR2", "SIGHUP"):
    delattr(signal, name)
del faulthandler.register
for name in ("fcntl", "resource", "pwd", "grp"):
    sys.modules[name] = None  # importing it raises ImportError
"""


@pytest.fixture
def bare_system(tmp_path: Path) -> dict[str, str]:
    """Return the environment variables of a Python without these calls."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE)
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(SOURCE))), "OMP_NUM_THREADS": "1"}


def run(code: str, environment: dict[str, str], folder: Path) -> str:
    """Run a script that is also a module, so that worker processes can import from it."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(code))
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_imports(bare_system: dict[str, str], tmp_path: Path) -> None:
    code = """
        import importlib, os, pkgutil
        import millpond

        names = [module.name for module in pkgutil.walk_packages(millpond.__path__, "millpond.")]
        for name in names:
            if not name.endswith("__main__"):
                importlib.import_module(name)
        assert not hasattr(os, "memfd_create")
        del os.sysconf  # not earlier: Python's own asyncio needs it on Unix
        assert millpond.cpu.memory_bytes() == 0
        print(len(names))
    """
    assert int(run(code, bare_system, tmp_path)) > 100


def millpond_command(folder: Path, environment: dict[str, str], *words: str) -> None:
    command = [sys.executable, "-m", "millpond", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_run_with_worker_processes_resumes_bit_for_bit(bare_system: dict[str, str], tmp_path: Path) -> None:
    """The run without the calls stops after one iteration and resumes; the run with all calls does both at once."""
    this_system = {**bare_system, "PYTHONPATH": str(SOURCE)}
    train = ("train", "grid", "--debug", "vector.backend=processes", "trainer.num_workers=2")
    millpond_command(tmp_path, bare_system, *train, "trainer.total_iterations=1", "--run", "bare")
    millpond_command(tmp_path, bare_system, "train", "--resume", "bare", "trainer.total_iterations=2")
    millpond_command(tmp_path, this_system, *train, "trainer.total_iterations=2", "--run", "whole")
    bare, whole = (tmp_path / "runs" / name / "checkpoints" for name in ("bare", "whole"))
    last = max(path.name for path in whole.iterdir())
    assert (bare / last / "weights.safetensors").read_bytes() == (whole / last / "weights.safetensors").read_bytes()


LAKE = """
    import os, subprocess, sys
    import llvmlite.binding
    import numpy as np

    # The lz4 package's builds for Windows export no functions.
    find = llvmlite.binding.address_of_symbol
    llvmlite.binding.address_of_symbol = lambda name: None if name.startswith("LZ4") else find(name)

    from millpond.replay import Field, Lake, LakeBusy, Schema, Steps
    from millpond.replay.lake import codec
    from millpond.replay.tools import compact, verify

    PICTURES = Schema((Field("observation", (40, 40), "uint8", "lz4"),), Field("action", (), "int32"))

    def append(writer, value):
        shape = (50, 2)
        noise = np.random.default_rng(0).integers(0, 256, (40, 40), np.uint8)  # several together compress, one does not
        noise[0, 0] = value
        observation = np.broadcast_to(noise, (*shape, 40, 40))
        never = np.zeros(shape, bool)
        writer.append(Steps(observation, np.zeros(shape, np.int64), np.ones(shape), never, never))

    assert len(codec._callbacks) == 2
    if __name__ == "__main__":
        with Lake.create("lake", PICTURES, segment_bytes=20_000) as lake, lake.writer("a", 2) as writer:
            append(writer, 1)
            try:
                Lake("lake").writer("a", 2)
            except LakeBusy as busy:
                assert str(os.getpid()) in str(busy), busy
            else:
                raise AssertionError("two writers of one stream")
        # A writer that dies leaves no lock.
        dies = "import os, script; w = script.Lake('lake').writer('a', 2); script.append(w, 2); os._exit(9)"
        assert subprocess.run([sys.executable, "-c", dies]).returncode == 9
        with Lake("lake") as lake, lake.writer("a", 2) as writer:
            append(writer, 3)

        def show():
            with Lake("lake") as lake:
                values = set(lake.sample(400, np.random.default_rng(0)).observation[:, 0, 0].tolist())
            print(sorted(values), verify("lake").good)

        show()
        assert compact("lake").segments > 0
        show()
"""


def test_lake_is_written_reopened_locked_and_compacted(bare_system: dict[str, str], tmp_path: Path) -> None:
    shown = run(LAKE, bare_system, tmp_path).splitlines()
    assert shown == ["[1, 2, 3] True"] * 2
