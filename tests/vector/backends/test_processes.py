"""Forked worker processes: no CPU while idle, no torch, and nothing of them outlives the trainer."""

from __future__ import annotations

import functools
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millpond.vector import Vector, VectorError, make_vector
from tests.support.playing import act, play
from tests.support.vector_envs import TORCH, counting, counting_spec, modules, process_ids

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="worker processes as Linux has them; test_spawned.py is for other systems"
)
ROOT = Path(__file__).parents[3]


def make(num_workers: int = 2) -> Vector:
    return make_vector(counting_spec(), counting, num_envs=8, backend="processes", num_workers=num_workers)


def cpu_ticks(pid: int) -> int:
    """Return user and system time of a process in clock ticks."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def exists(pid: int) -> bool:
    """True if it runs, or is a zombie that is not yet reaped."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def shared_files(pid: int) -> set[str]:
    """Return the files that a process has mapped as shared."""
    fields = (line.split(maxsplit=5) for line in Path(f"/proc/{pid}/maps").read_text().splitlines())
    return {field[5] for field in fields if field[1].endswith("s") and len(field) > 5}


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 10.0
    while left := [pid for pid in pids if exists(pid)]:
        assert time.monotonic() < deadline, f"still there: {left}"
        time.sleep(0.01)


def test_an_idle_vector_uses_no_cpu() -> None:
    with make() as vector:
        vector.reset(0)
        play(vector, 3)
        vector.send(act(vector.recv()))
        time.sleep(0.3)  # for what was sent to be done
        before = [cpu_ticks(pid) for pid in vector.pids]
        switches = [voluntary_switches(pid) for pid in vector.pids]
        time.sleep(1.0)
        assert [cpu_ticks(pid) for pid in vector.pids] == before
        assert [voluntary_switches(pid) for pid in vector.pids] == switches  # they did not even wake


def voluntary_switches(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))


def test_workers_do_not_load_torch() -> None:
    import torch

    assert torch.__name__ in sys.modules
    for backend, loaded in (("processes", False), ("inline", True)):
        with make_vector(counting_spec(), modules, num_envs=8, backend=backend, num_workers=2) as vector:
            vector.reset(0)
            assert (vector.recv().observation[:, :, TORCH] == loaded).all()


def test_the_package_does_not_load_torch() -> None:
    subprocess.run([sys.executable, "-c", "import millpond.vector, sys; assert 'torch' not in sys.modules"], check=True)


def test_nothing_stays_open() -> None:
    def descriptors() -> int:
        gc.collect()  # views of the shared memory keep it
        return len(os.listdir("/proc/self/fd"))

    with make() as vector:
        vector.reset(0)
    before = descriptors()
    for _ in range(3):
        with make() as vector:
            vector.reset(0)
            play(vector, 2)
    assert descriptors() == before


def test_garbage_collected_vector_ends_its_workers() -> None:
    vector = make()
    vector.reset(0)
    pids = list(vector.pids)
    del vector
    gc.collect()
    wait_until_gone(pids)


def test_forked_copy_of_the_trainer_does_not_end_the_workers() -> None:
    """For example a data loader that forks and ends while the vector is open, and one that is alive when it closes."""
    with make() as vector:
        vector.reset(0)
        for stays in (False, True):
            ready, tell = os.pipe()
            copy = os.fork()
            if copy == 0:
                os.write(tell, b"x")
                if stays:
                    signal.pause()
                vector.close()
                vector._fleet.pool._fork_server.close()  # as the finaliser does when the copy's interpreter ends
                os._exit(0)
            os.read(ready, 1)
            os.close(ready), os.close(tell)
            if not stays:
                os.waitpid(copy, 0)
                play(vector, 2)
        pids = list(vector.pids)
    try:
        wait_until_gone(pids)
    finally:
        os.kill(copy, signal.SIGKILL)
        os.waitpid(copy, 0)


TRAINER = """
    import sys, time
    sys.path.insert(0, {root!r})
    import numpy as np
    from tests.support.vector_envs import counting_spec, faulty, FaultyEnvs
    from millpond.vector import make_vector

    vector = make_vector(counting_spec(), faulty, num_envs=12, backend="processes", num_workers=3)
    vector.reset(0)
    actions = np.zeros((6, 2), int)
    vector.recv(), vector.send(actions)
    vector.recv()
    if {hang}:
        actions[0] = FaultyEnvs.HANG
    vector.send(actions)
    print(*vector.pids, flush=True)
    {then}
"""


def run_trainer(then: str, hang: bool = False) -> tuple[subprocess.Popen[str], list[int]]:
    code = textwrap.dedent(TRAINER).format(root=str(ROOT), then=then, hang=hang)
    trainer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    pids = [int(pid) for pid in trainer.stdout.readline().split()]
    assert len(pids) == 4
    return trainer, pids


@pytest.mark.parametrize("hang", [False, True], ids=["idle workers", "a worker that hangs"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_workers_end_when_the_trainer_is_killed(number: signal.Signals, hang: bool) -> None:
    trainer, pids = run_trainer("time.sleep(60)", hang)
    assert all(map(exists, pids))
    for pid in (trainer.pid, *pids[:-1]):
        assert "/memfd:millpond-vector (deleted)" in shared_files(pid)
    named = {path for pid in (trainer.pid, *pids) for path in shared_files(pid) if path.startswith("/dev/shm")}
    with trainer:
        trainer.send_signal(number)
        trainer.wait()
        wait_until_gone(pids)
    assert not named


def test_workers_end_when_the_trainer_is_killed_and_a_forked_copy_of_it_lives() -> None:
    """The copy holds every pipe open, so that no end of file is read: the exit itself must be detected."""
    then = "import os\ncopy = os.fork()\nif copy:\n    print(copy, flush=True)\ntime.sleep(60)\nos._exit(0)"
    trainer, pids = run_trainer(then)
    assert trainer.stdout is not None
    copy = int(trainer.stdout.readline())
    with trainer:
        trainer.kill()
        trainer.wait()
        try:
            wait_until_gone(pids)
        finally:
            os.kill(copy, signal.SIGKILL)


@pytest.mark.parametrize("then", ["", "raise SystemExit(3)", "1 / 0", "import os; os._exit(1)"])
def test_workers_end_when_the_trainer_exits_without_closing(then: str) -> None:
    trainer, pids = run_trainer(then)
    with trainer:
        trainer.wait()
        wait_until_gone(pids)


def test_ctrl_c_in_a_terminal_does_not_kill_the_workers() -> None:
    """A terminal signals the whole process group; workers must not die of it before the trainer has closed them."""
    first = "import signal; signals = []; signal.signal(signal.SIGINT, lambda *_: signals.append(1))\n"
    code = first + textwrap.dedent(TRAINER).format(
        root=str(ROOT), hang=False, then="while not signals:\n    time.sleep(0.01)"
    )
    code += textwrap.dedent("""
        for _ in range(6):
            vector.recv(), vector.send(np.zeros((6, 2), int))
        vector.close()
        print("went on")
    """)
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as trainer:
        assert trainer.stdout is not None
        pids = [int(pid) for pid in trainer.stdout.readline().split()]
        os.killpg(trainer.pid, signal.SIGINT)
        assert trainer.stdout.read() == "went on\n"
        assert trainer.wait() == 0
        wait_until_gone(pids)


def test_make_env_batch_that_cannot_be_pickled_is_refused() -> None:
    with pytest.raises(VectorError, match=r"cannot be pickled.*functools\.partial"):
        make_vector(counting_spec(), lambda *_: None, num_envs=2, backend="processes")
    with make_vector(counting_spec(), lambda *sizes: counting(*sizes), num_envs=8, num_workers=2) as vector:
        assert vector.backend == "inline"
        assert "cannot be pickled" in vector.reason


def test_make_env_batch_of_the_main_script_is_refused() -> None:
    code = f"""if True:
        import sys; sys.path.insert(0, {str(ROOT)!r})
        from tests.support.vector_envs import *
        from millpond.vector import make_vector, VectorError
        def mine(*sizes): return counting(*sizes)
        try: make_vector(counting_spec(), mine, num_envs=4, backend="processes")
        except VectorError as error: print(error)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "move it into a module" in done.stdout


def test_module_that_workers_cannot_import_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "vanishing_env.py"
    module.write_text("def make(*sizes): raise AssertionError\n")
    monkeypatch.syspath_prepend(tmp_path)
    import vanishing_env

    module.write_text("raise RuntimeError('not here')\n")
    with pytest.raises(VectorError, match=r"cannot load make_env_batch(.|\n)*RuntimeError: not here"):
        make_vector(counting_spec(), vanishing_env.make, num_envs=4, backend="processes", num_workers=2)


def test_fork_server_ends_with_the_trainer_even_while_it_imports(tmp_path: Path) -> None:
    (tmp_path / "slow_env.py").write_text(
        "import os, sys, time\n"
        "if sys.argv[0] == '-c' and len(sys.argv) > 3:\n"  # in the fork server
        "    print(os.getpid(), flush=True)\n"
        "    time.sleep(60)\n"
        "def make(*sizes): raise AssertionError\n"
    )
    code = f"""if True:
        import sys; sys.path[:0] = [{str(ROOT)!r}, {str(tmp_path)!r}]
        from tests.support.vector_envs import counting_spec
        from slow_env import make
        from millpond.vector import make_vector
        make_vector(counting_spec(), make, num_envs=4, backend="processes")
    """
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        fork_server = int(trainer.stdout.readline())
        assert exists(fork_server)
        trainer.kill()
        wait_until_gone([fork_server])


def test_the_thread_that_made_the_vector_may_end() -> None:
    vectors: list[Vector] = []
    thread = threading.Thread(target=lambda: vectors.append(make()))
    thread.start()
    thread.join()
    time.sleep(0.1)
    with vectors[0] as vector:
        vector.reset(0)
        play(vector, 3)


def test_large_states_are_sent_and_received() -> None:
    """States of many megabytes pass through sockets that buffer far less."""
    with make_vector(counting_spec(), counting, num_envs=20_000, backend="processes", num_workers=2) as vector:
        vector.reset(0)
        state = vector.save_state()
        assert sum(array.nbytes for array in state.values()) > 4_000_000
        first = vector.recv().observation.copy()
        vector.send(np.zeros((10_000, 2), int))
        vector.load_state(state)
        np.testing.assert_array_equal(vector.recv().observation, first)


def test_options_are_passed_by_functools_partial() -> None:
    spec = counting_spec(id="renamed")
    with make_vector(
        spec, functools.partial(counting_named, spec=spec), num_envs=4, backend="processes", num_workers=2
    ) as vector:
        vector.reset(0)
        play(vector, 1)


def counting_named(num_envs, buffers, first_env, spec):
    from tests.support.vector_envs import CountingEnvs

    assert spec.id == "renamed"
    return CountingEnvs(num_envs, buffers, first_env, spec)


def test_the_trainer_steps_its_own_share() -> None:
    """The observation holds the id of the process in which the env steps."""
    with make_vector(counting_spec(), process_ids, num_envs=20, backend="processes", trainer_share=0.25) as vector:
        vector.reset(0)
        play(vector, 2)
        own = [vector.recv().observation[:, 0, TORCH].copy() for _ in range(2)]
        assert "the trainer steps 3 of the 10 envs of a group itself" in vector.reason
        (worker, _) = vector.pids
    for pids in own:
        assert pids.tolist() == [worker] * 7 + [os.getpid()] * 3


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"backend": "inline", "trainer_share": 0.1}, "vector.trainer_share=0.1 is for vector.backend=processes"),
        ({"backend": "processes", "trainer_share": 1.0}, "must be at least 0 and less than 1"),
        ({"backend": "processes", "trainer_share": 0.9, "num_workers": 2}, "which leaves 0 for 2 workers"),
    ],
)
def test_invalid_trainer_shares_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(VectorError, match=says):
        make_vector(counting_spec(), counting, num_envs=8, **options)


def test_trainer_share_without_worker_processes_is_reported_as_unused() -> None:
    spec = counting_spec(id="grid", releases_gil=True)
    with make_vector(spec, counting, num_envs=8, threads=2, trainer_share=0.1) as vector:
        assert vector.backend == "threads"
        assert vector.reason.endswith("vector.trainer_share has no effect")
