from __future__ import annotations

from typing import Any

import pytest

from millpond.envs.env_batch import Buffers
from millpond.envs.registry import describe
from millpond.vector import BackendChoice, VectorError, WorkerError, choose_backend, make_vector
from tests.support.vector_envs import CountingEnvs, counting, counting_spec


def chosen(*, backend: str = "auto", workers: int = 16, threads: int | None = None, **changes: Any) -> BackendChoice:
    machine = {"cores": changes.pop("cores", 4), "envs_per_group": changes.pop("envs_per_group", 100)}
    why_not = changes.pop("why_not_processes", "")
    spec = counting_spec(**changes)
    return choose_backend(
        spec, backend=backend, num_workers=workers, threads=threads, why_not_processes=why_not, **machine
    )


@pytest.mark.parametrize(
    ("changes", "backend", "count", "reason"),
    [
        ({"id": "grid", "releases_gil": True}, "threads", 4, "releases the GIL; 4 threads"),
        ({"id": "grid", "releases_gil": True, "threads": 3}, "threads", 3, "3 threads"),
        ({"id": "grid", "releases_gil": True, "envs_per_group": 2}, "threads", 2, "2 threads"),
        ({"id": "grid", "releases_gil": True, "native_vector": True}, "threads", 4, "4 threads"),
        ({"id": "mine:Envs", "releases_gil": True}, "processes", 4, "a crash in a thread cannot be caught; 4 worker"),
        ({"id": "mine:grid", "releases_gil": True, "threads": 3}, "processes", 4, "not part of Millpond"),
        ({"id": "gymnasium:grid", "releases_gil": True}, "processes", 4, "not part of Millpond"),
        ({"releases_gil": True, "native_vector": True}, "processes", 4, "counting is not part of Millpond"),
        ({"releases_gil": True, "workers": 1}, "inline", 1, "cannot be caught and one worker was requested"),
        ({"releases_gil": True, "why_not_processes": "it is a lambda"}, "inline", 1, "not possible: it is a lambda"),
        ({"releases_gil": True, "native_vector": True, "partial_step": False}, "native", 1, "next to the policy"),
        ({"native_vector": True, "partial_step": False}, "native", 1, "in the trainer's own thread"),
        ({}, "processes", 4, "4 worker processes of the 16 requested, as there are 4 cores"),
        ({"workers": 3}, "processes", 3, "3 worker processes"),
        ({"workers": 1}, "inline", 1, "one worker was requested"),
        ({"envs_per_group": 1}, "inline", 1, "a group has one env"),
        ({"cores": 1}, "inline", 1, "one core"),
        ({"cores": 1, "releases_gil": True}, "inline", 1, "one core"),
        ({"why_not_processes": "it is a lambda"}, "inline", 1, "processes are not possible: it is a lambda"),
        ({"backend": "inline"}, "inline", 1, "as configured"),
        ({"backend": "threads"}, "threads", 4, "holds the GIL"),
        ({"backend": "threads"}, "threads", 4, "cannot be caught and ends the run"),
        ({"backend": "threads", "releases_gil": True, "threads": 9}, "threads", 9, "as configured: 9 threads"),
        ({"backend": "processes"}, "processes", 16, "as configured: 16 worker processes"),
        ({"backend": "native", "native_vector": True}, "native", 1, "as configured: one env batch per group"),
    ],
)
def test_auto_chooses_a_backend_and_says_why(changes: dict[str, Any], backend: str, count: int, reason: str) -> None:
    choice = chosen(**changes)
    assert (choice.backend, choice.num_workers) == (backend, count)
    assert reason in choice.reason


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backend": "gpu"}, "vector.backend='gpu' is not one of auto, inline, threads, processes, native"),
        ({"backend": "native"}, "counting does not"),
        ({"threads": 0}, "vector.threads=0 must be at least 1"),
    ],
)
def test_impossible_backends_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(VectorError, match=message):
        chosen(**changes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout": 0}, "vector.timeout=0 must be more than 0"),
        ({"on_crash": "ignore"}, "vector.on_crash='ignore' is not one of stop, restart"),
        ({"num_envs": 5}, "num_envs=5 is not a multiple of groups=2"),
        ({"num_workers": 0, "backend": "processes"}, "num_workers=0 must be at least 1"),
        ({"num_workers": 3, "backend": "processes"}, "num_workers=3 is more than the 2 envs of a group"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(VectorError, match=message):
        make_vector(counting_spec(), counting, **({"num_envs": 4} | options))


def test_native_has_one_env_batch_per_group() -> None:
    made = []

    def make(num_envs: int, buffers: Buffers, first_env: int) -> CountingEnvs:
        made.append((first_env, num_envs))
        return CountingEnvs(num_envs, buffers, first_env)

    spec = counting_spec(native_vector=True, releases_gil=True)
    with make_vector(spec, make, num_envs=12, groups=3, num_workers=4, threads=4, backend="native") as vector:
        assert made == [(0, 4), (4, 4), (8, 4)]
        assert (vector.backend, vector.num_workers) == ("native", 1)


def test_env_batch_with_its_own_buffers_is_refused() -> None:
    def make(num_envs: int, buffers: Buffers, first_env: int) -> CountingEnvs:
        return CountingEnvs(num_envs, Buffers.allocate(counting_spec(), num_envs), first_env)

    with pytest.raises(WorkerError, match="an env batch must write into the buffers it gets"):
        make_vector(counting_spec(), make, num_envs=4, backend="inline")


def test_env_batch_of_another_size_is_refused() -> None:
    def make(num_envs: int, buffers: Buffers, first_env: int) -> CountingEnvs:
        return CountingEnvs(num_envs + 1, buffers, first_env)

    with pytest.raises(WorkerError, match="asked for 2 envs and returned a batch of 3"):
        make_vector(counting_spec(), make, num_envs=4, backend="inline")


def test_custom_batch_with_the_spec_of_a_built_in_environment_is_not_stepped_in_threads() -> None:
    own, custom = describe("grid", {}), describe("tests.support.custom_envs:grid_envs", {})
    machine = {"backend": "auto", "envs_per_group": 8, "num_workers": 2, "threads": None, "cores": 4}
    assert own.releases_gil
    assert custom.releases_gil
    assert choose_backend(own, **machine).backend == "threads"  # type: ignore[arg-type]
    assert choose_backend(custom, **machine).backend == "processes"  # type: ignore[arg-type]
