"""Workers that raise, die and hang, for real."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np
import pytest

from millpond.envs.registry import EnvBatchFactory, describe
from millpond.vector import Vector, VectorError, WorkerError, env_seed, make_vector
from tests.support.playing import play
from tests.support.vector_envs import (
    ENV_STEPS,
    IDENTITY,
    SEED,
    FaultyEnvs,
    counting_spec,
    faulty,
    unbuildable,
    unwatched,
)

PROCESSES: dict[str, Any] = {"backend": "processes", "num_workers": 2}
# With 8 envs in 2 groups and 2 workers, worker 1 has the envs 2, 3 (group A) and 6, 7 (group B).
OF_WORKER_1 = [2, 3, 6, 7]


def make(env_batch: Any = faulty, **options: Any) -> Vector:
    return make_vector(counting_spec(), env_batch, num_envs=8, timeout=2.0, **(PROCESSES | options))


def actions(fault: int = FaultyEnvs.FINE, row: int = 0) -> np.ndarray:
    array = np.zeros((4, 2), np.int64)
    array[row] = fault
    return array


def steps(vector: Vector, count: int, fault: int = FaultyEnvs.FINE) -> None:
    """Receive and send `count` batches."""
    for _ in range(count):
        vector.recv()
        vector.send(actions(fault))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until_gone(pids: tuple[int, ...]) -> None:
    deadline = time.monotonic() + 10.0
    while any(map(alive, pids)):
        assert time.monotonic() < deadline, f"still there: {[pid for pid in pids if alive(pid)]}"
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("fault", "kind", "message", "in_traceback"),
    [
        (FaultyEnvs.RAISE, "raised", "ValueError: env 3 does not like this", "in step_env"),
        (FaultyEnvs.KILL, "died", r"killed by signal 9 \(SIGKILL\)", ""),
        (FaultyEnvs.EXIT, "died", "exited with status 3", ""),
        (FaultyEnvs.SEGFAULT, "died", r"killed by signal 11 \(SIGSEGV\)", "in step_env"),
        (FaultyEnvs.HANG, "hung", "no reply within the timeout", "in sleep_for_a_long_time"),
    ],
)
def test_crash_stops_the_run_and_is_reported(
    system: str, fault: int, kind: str, message: str, in_traceback: str
) -> None:
    with make() as vector:
        pids = vector.pids
        assert len(pids) == (3 if system == "linux" else 2)  # the workers, and what they are forked from on Linux
        vector.reset(7)
        steps(vector, 4)
        vector.recv()
        vector.send(actions(fault, row=3))
        with pytest.raises(WorkerError, match=message) as caught:
            steps(vector, 2)
        error = caught.value
        assert (error.kind, error.doing, error.worker, error.env) == (kind, "step", 1, 3)
        assert (error.seed, error.env_steps) == (env_seed(7, 3), 2)
        assert error.pid in pids
        assert in_traceback in error.traceback
        assert f"env 3: seed {env_seed(7, 3)}, after 2 env steps" in str(error)
        assert "on_crash=restart" in str(error)
        wait_until_gone(pids)
        for call in (vector.recv, vector.send):
            with pytest.raises(VectorError, match="closed"):
                call()


@pytest.mark.parametrize("fault", [FaultyEnvs.RAISE, FaultyEnvs.KILL])
def test_error_gives_a_range_of_envs_if_the_batch_reports_no_progress(fault: int) -> None:
    with make(unwatched) as vector:
        vector.reset(7)
        vector.recv()
        vector.send(actions(fault, row=3))
        with pytest.raises(WorkerError, match="one of the envs 2 to 3; env 2: seed") as caught:
            steps(vector, 2)
        assert (caught.value.env, caught.value.first_env, caught.value.last_env) == (None, 2, 4)
        assert caught.value.seed == env_seed(7, 2)


OWN_PROCESS: list[dict[str, Any]] = [
    {"backend": "inline"},
    {"backend": "threads", "threads": 2},
    {"num_workers": 1, "trainer_share": 0.5},
]


@pytest.mark.parametrize("options", OWN_PROCESS, ids=str)
def test_env_that_raises_in_the_trainers_process_is_named(options: dict[str, Any]) -> None:
    with make(**options) as vector:
        vector.reset(7)
        steps(vector, 4)
        vector.recv()
        vector.send(actions(FaultyEnvs.RAISE, row=2))
        with pytest.raises(WorkerError, match="ValueError: env 2 does not like this") as caught:
            steps(vector, 2)
        assert isinstance(caught.value.__cause__, ValueError)
        assert (caught.value.env, caught.value.env_steps, caught.value.seed) == (2, 2, env_seed(7, 2))


@pytest.mark.parametrize("on_crash", ["stop", "restart"])
def test_thread_that_hangs_is_reported(on_crash: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be ended, so it cannot be restarted either."""
    import threading

    from tests.support import vector_envs

    wake = threading.Event()
    monkeypatch.setattr(vector_envs, "sleep_for_a_long_time", lambda: wake.wait(60))
    with make(backend="threads", threads=2, on_crash=on_crash) as vector:
        vector.reset(7)
        vector.recv()
        vector.send(actions(FaultyEnvs.HANG, row=1))
        vector.recv()
        with pytest.raises(WorkerError, match="hung during step") as caught:
            vector.recv()
        assert caught.value.env == 1
        assert "step_env" in caught.value.traceback
        wake.set()


@pytest.mark.parametrize("fault", [FaultyEnvs.KILL, FaultyEnvs.HANG], ids=["killed", "hanging"])
def test_a_lost_worker_is_replaced_and_its_envs_restart(system: str, fault: int) -> None:
    with make(on_crash="restart") as vector:
        pids = vector.pids
        vector.reset(7)
        steps(vector, 4)  # every env has taken 1 step and is taking its second
        vector.recv()
        vector.send(actions(fault, row=3))
        b = vector.recv()
        assert b.stepped
        assert not b.restarted.any()
        vector.send(actions())
        a = vector.recv()
        assert a.restarted.tolist() == [False, False, True, True]
        assert a.observation[:, 0, IDENTITY].tolist() == [0, 1, 2, 3]
        assert a.observation[:, 0, ENV_STEPS].tolist() == [3, 3, 0, 0]
        assert a.reward[:2].all()
        assert not (a.reward[2:].any())
        assert not (a.terminated[2:].any())
        assert not (a.truncated[2:].any())
        vector.send(actions())
        b = vector.recv()  # the same worker had envs of group B, whose step was pending
        assert b.restarted.tolist() == [False, False, True, True]
        assert b.observation[:, 0, ENV_STEPS].tolist() == [3, 3, 0, 0]
        vector.send(actions())
        a = vector.recv()
        assert not a.restarted.any()
        assert a.observation[:, 0, ENV_STEPS].tolist() == [4, 4, 1, 1]
        seeds = [env_seed(7, env, restarts=int(env in OF_WORKER_1)) for env in range(8)]
        assert vector.seeds.tolist() == seeds
        assert a.observation[:, 0, SEED].astype(np.uint64).tolist() == seeds[:4]
        assert vector.restarts.tolist() == [int(env in OF_WORKER_1) for env in range(8)]
        assert vector.env_steps.tolist() == [4, 4, 1, 1, 3, 3, 0, 0]
        wait_until_gone((pids[1],))
        assert len(vector.pids) == len(pids)
        assert vector.pids[0] == pids[0]
        assert vector.pids[1] != pids[1]


@pytest.mark.parametrize("options", [{"backend": "inline"}, {"backend": "threads", "threads": 2}, PROCESSES], ids=str)
def test_batch_that_raises_restarts_alone(options: dict[str, Any]) -> None:
    """The worker is alive: its envs of the other group continue."""
    with make(on_crash="restart", **options) as vector:
        vector.reset(7)
        pids = vector.pids
        steps(vector, 4)
        vector.recv()
        vector.send(actions(FaultyEnvs.RAISE, row=3))
        steps(vector, 1)
        a = vector.recv()
        lost = [2, 3] if vector.num_workers == 2 else [0, 1, 2, 3]
        assert np.flatnonzero(a.restarted).tolist() == lost
        assert (a.reward[lost] == 0).all()  # 77 was written before it raised
        vector.send(actions())
        b = vector.recv()
        assert not b.restarted.any()
        assert b.observation[:, 0, ENV_STEPS].tolist() == [3] * 4
        vector.send(actions())
        a = vector.recv()
        assert not a.restarted.any()
        assert vector.pids == pids


def test_restart_does_not_affect_envs_of_other_workers(system: str) -> None:
    """Envs of the other worker have the same trajectories as without the crash."""
    with make(on_crash="restart") as vector:
        vector.reset(7)
        expected = play(vector, 6)
        vector.reset(7)
        os.kill(vector.pids[1], signal.SIGKILL)
        trajectories = play(vector, 6)
    for env in (0, 1, 4, 5):
        for here, there in zip(trajectories.steps[env], expected.steps[env], strict=True):
            np.testing.assert_array_equal(here[2], there[2])
    for env in OF_WORKER_1:
        assert [bool(step[-1]) for step in trajectories.steps[env]].count(True) == 1


def test_actions_for_a_worker_that_died_after_recv_are_not_taken(system: str) -> None:
    """The actions answer observations of the old envs, so they are dropped and the batch reports the restart."""
    with make(on_crash="restart") as vector:
        vector.reset(7)
        steps(vector, 4)
        vector.recv(), vector.recv()
        os.kill(vector.pids[1], signal.SIGKILL)
        vector.send(actions()), vector.send(actions())
        for _ in range(2):
            batch = vector.recv()
            assert batch.restarted.tolist() == [False, False, True, True]
            assert batch.observation[:, 0, ENV_STEPS].tolist() == [3, 3, 0, 0]
        vector.send(actions()), vector.send(actions())
        for _ in range(2):
            batch = vector.recv()
            assert not batch.restarted.any()
            assert batch.observation[:, 0, ENV_STEPS].tolist() == [4, 4, 1, 1]


def test_actions_of_a_group_received_before_a_restart_are_not_taken(system: str) -> None:
    """The restart comes between recv and send of group B, so these actions must not reach the new envs."""
    with make(on_crash="restart") as vector:
        vector.reset(7)
        steps(vector, 4)
        vector.recv(), vector.recv()
        vector.send(actions(FaultyEnvs.KILL, row=2))
        assert vector.recv().restarted.tolist() == [False, False, True, True]
        vector.send(actions())
        batch = vector.recv()
        assert batch.restarted.tolist() == [False, False, True, True]
        assert batch.observation[:, 0, ENV_STEPS].tolist() == [3, 3, 0, 0]
        assert vector.env_steps.tolist() == [3, 3, 0, 0, 3, 3, 0, 0]


@pytest.mark.parametrize("options", [{"backend": "inline"}, {"backend": "threads", "threads": 1}, PROCESSES], ids=str)
def test_pending_steps_of_a_batch_that_raised_are_discarded(options: dict[str, Any]) -> None:
    """Replies to discarded steps are not taken for replies to later ones."""
    options = PROCESSES | options | {"groups": 1, "num_workers": 1}
    with make(on_crash="restart", **options) as vector:
        vector.reset(7)
        for restarts in range(1, 9):
            play(vector, 1)
            env_slice = vector.slice(6, 4)  # the envs 6, 7 and 0, 1
            env_slice.recv(), env_slice.recv()
            env_slice.send(np.full((2, 2), FaultyEnvs.RAISE))
            env_slice.send(np.zeros((2, 2), int))
            for envs in ([6, 7], [0, 1]):
                batch = env_slice.recv()
                assert batch.restarted.all()
                assert batch.observation[:, 0, IDENTITY].tolist() == envs
                assert batch.observation[:, 0, ENV_STEPS].tolist() == [0, 0]
            env_slice.end_round()
            assert vector.restarts.tolist() == [restarts] * 8
            assert vector.env_steps.tolist() == [0] * 8


def test_worker_killed_between_rounds_is_replaced() -> None:
    """A slice reports the restart of its own envs, and the vector's next round that of the others."""
    with make(on_crash="restart") as vector:
        vector.reset(7)
        play(vector, 3)
        os.kill(vector.pids[1], signal.SIGKILL)
        env_slice = vector.slice(3, 2)
        env_slice.recv()
        env_slice.send(np.zeros((2, 2), int))
        batch = env_slice.recv()
        assert batch.restarted.tolist() == [True, False]
        assert batch.observation[:, 0, ENV_STEPS].tolist() == [0, 4]
        env_slice.end_round()
        assert vector.recv().restarted.tolist() == [False, False, True, False]
        assert vector.recv().restarted.tolist() == [False, False, True, True]
        vector.end_round()
        assert not vector.recv().restarted.any()


@pytest.mark.parametrize("call", ["save_state", "reset"])
def test_worker_killed_before_save_or_reset_is_replaced(call: str) -> None:
    with make(on_crash="restart") as vector:
        vector.reset(7)
        play(vector, 3)
        os.kill(vector.pids[1], signal.SIGKILL)
        if call == "save_state":
            vector.load_state(vector.save_state())
        else:
            vector.reset(8)
        assert vector.recv().restarted.tolist() == [False, False, True, True]
        vector.send(actions())


def test_workers_are_replaced_if_the_fork_server_is_killed() -> None:
    """All workers end with it, and all are replaced."""
    with make(on_crash="restart") as vector:
        vector.reset(7)
        play(vector, 3)
        pids = vector.pids
        os.kill(pids[-1], signal.SIGKILL)
        wait_until_gone(pids[:-1])
        trajectories = play(vector, 3)
        assert not set(pids) & set(vector.pids)
        assert len(vector.pids) == 3
    for env in range(8):
        assert any(step[-1] for step in trajectories.steps[env])


def test_repeated_crashes_without_a_step_stop_the_run() -> None:
    with make(on_crash="restart") as vector:
        vector.reset(7)
        with pytest.raises(WorkerError, match="restarted 3 times and never took a step"):
            steps(vector, 20, FaultyEnvs.RAISE)
        assert (vector.restarts[:2] == 3).all()


@pytest.mark.parametrize("options", [*OWN_PROCESS, PROCESSES], ids=str)
def test_error_while_envs_are_made_is_reported(options: dict[str, Any]) -> None:
    with pytest.raises(WorkerError, match=r"raised during build: RuntimeError: no map for env 0") as caught:
        make(unbuildable, **options)
    assert "in unbuildable" in caught.value.traceback


@pytest.mark.parametrize("options", [*OWN_PROCESS, PROCESSES], ids=str)
def test_env_that_calls_sys_exit_does_not_end_the_trainer(options: dict[str, Any]) -> None:
    with make(**options) as vector:
        vector.reset(7)
        vector.recv()
        vector.send(actions(FaultyEnvs.GIVE_UP, row=3))
        with pytest.raises(WorkerError, match="raised during step: SystemExit: no more") as caught:
            steps(vector, 2)
        assert caught.value.env == 3
        if "trainer_share" in options:
            assert str(caught.value).startswith("the trainer, with its share of the envs, raised")
            assert "with vector.backend=inline vector.trainer_share=0 repeats it" in str(caught.value)


def test_trainers_share_and_workers_restart_independently() -> None:
    """The trainer steps two of the four envs of a group: 2, 3 and 6, 7."""
    with make(num_workers=1, trainer_share=0.5, on_crash="restart") as vector:
        vector.reset(7)
        steps(vector, 4)
        for fault, row, lost in ((FaultyEnvs.RAISE, 3, [2, 3]), (FaultyEnvs.KILL, 0, [0, 1, 4, 5])):
            vector.recv()
            vector.send(actions(fault, row=row))
            restarted = set[int]()
            for _ in range(4):
                batch = vector.recv()
                restarted |= set((batch.first + np.flatnonzero(batch.restarted)).tolist())
                vector.send(actions())
            assert sorted(restarted) == lost
            steps(vector, 1)


def step_often(vector: Vector) -> None:
    for _ in range(100):
        for _ in range(len(vector)):
            batch = vector.recv()
            vector.send(batch.action * 0)


@pytest.mark.parametrize("options", [{}, {"reward_scale": 2.0}])
def test_the_env_that_raised_is_named(options: dict[str, Any]) -> None:
    env_id = "tests.support.raising_env:make_env"
    vector = make_vector(
        describe(env_id, options),
        EnvBatchFactory(env_id, options),
        num_envs=8,
        groups=2,
        num_workers=2,
        backend="processes",
    )
    with vector:
        vector.reset(3)
        seeds = vector.seeds.copy()
        with pytest.raises(WorkerError) as caught:
            step_often(vector)
    error = caught.value
    assert error.env is not None
    assert error.seed == seeds[error.env]
    assert "this env is tired" in str(error)
    assert "raising_env.py" in str(error)
