"""Worker processes on systems without memfd, eventfd and pidfd. `test_failures.py` tests both kinds of process."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from millpond.vector import VectorError, make_vector
from millpond.vector.layout import Layout
from millpond.vector.shared_memory import Arena
from tests.support.playing import play
from tests.support.vector_envs import counting, counting_spec

ROOT = Path(__file__).parents[3]
LINUX_ONLY = ("memfd_create", "eventfd", "pidfd_open")


@pytest.fixture(autouse=True)
def any_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove the calls, and put temporary files into a folder of this test."""
    for name in LINUX_ONLY:
        monkeypatch.delattr(os, name, raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20.0
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("trainer_share", [0.0, 0.3])
def test_trajectories_equal_inline_ones_and_no_file_is_left(trainer_share: float, tmp_path: Path) -> None:
    with make_vector(counting_spec(), counting, num_envs=12, backend="inline") as vector:
        vector.reset(11)
        expected = play(vector, 10)
    options = {"backend": "processes", "num_workers": 2, "trainer_share": trainer_share}
    with make_vector(counting_spec(), counting, num_envs=12, **options) as vector:  # type: ignore[arg-type]
        assert len(vector.pids) == 2
        vector.reset(11)
        play(vector, 10).assert_equal(expected)
        pids = vector.pids
    assert all(map(is_gone, pids))
    assert list(tmp_path.iterdir()) == []


def test_large_states_are_sent_and_received() -> None:
    with make_vector(counting_spec(), counting, num_envs=20_000, backend="processes", num_workers=2) as vector:
        vector.reset(0)
        state = vector.save_state()
        first = vector.recv().observation.copy()
        vector.send(np.zeros((10_000, 2), int))
        vector.load_state(state)
        np.testing.assert_array_equal(vector.recv().observation, first)


def test_garbage_collected_vector_ends_its_workers() -> None:
    vector = make_vector(counting_spec(), counting, num_envs=8, backend="processes", num_workers=2)
    pids = vector.pids
    del vector
    gc.collect()
    wait_until(lambda: all(map(is_gone, pids)))


@pytest.mark.parametrize("hang", [False, True], ids=["idle", "hanging"])
def test_workers_end_and_remove_the_files_when_the_trainer_is_killed(hang: bool, tmp_path: Path) -> None:
    code = f"""
        import os, sys, time
        for name in {LINUX_ONLY!r}:
            delattr(os, name)
        sys.path.insert(0, {str(ROOT)!r})
        import numpy as np
        from tests.support.vector_envs import counting_spec, faulty, FaultyEnvs
        from millpond.vector import make_vector

        vector = make_vector(counting_spec(), faulty, num_envs=4, groups=1, backend="processes", num_workers=2)
        vector.reset(0)
        vector.recv()
        vector.send(np.full((4, 2), FaultyEnvs.HANG if {hang} else 0))
        print(*vector.pids, flush=True)
        time.sleep(60)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        pids = [int(pid) for pid in trainer.stdout.readline().split()]
        assert len(pids) == 2
        assert len(list(tmp_path.iterdir())) == 3  # the arrays, and the fault log of each worker
        trainer.send_signal(signal.SIGKILL)
    wait_until(lambda: all(map(is_gone, pids)))
    assert list(tmp_path.iterdir()) == []


def test_module_that_workers_cannot_import_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "modules"
    folder.mkdir()
    module = folder / "another_vanishing_env.py"
    module.write_text("def make(*sizes): raise AssertionError\n")
    monkeypatch.syspath_prepend(folder)
    import another_vanishing_env

    module.write_text("raise RuntimeError('not here')\n")
    with pytest.raises(VectorError, match=r"cannot load make_env_batch(.|\n)*RuntimeError: not here"):
        make_vector(counting_spec(), another_vanishing_env.make, num_envs=4, backend="processes", num_workers=2)
    assert list(tmp_path.iterdir()) == [folder]


def test_two_mappings_of_a_named_file_share_the_arrays() -> None:
    spec, layout = counting_spec(), Layout.of(6, 2, 3)
    arena = Arena.in_named_file(spec, layout)
    assert arena.file is not None
    other = Arena.attach(os.open(arena.file.path, os.O_RDWR), spec, layout)
    arena.buffers.reward[...] = 3.0
    assert (other.buffers.reward == 3.0).all()
    path = arena.file.path
    arena.close(), other.close()
    assert not path.exists()
    arena.buffers.reward[...] = 4.0  # the views live on
