"""Measuring an environment: cheap ones step inline, slow ones in processes, and failures do no harm."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from millpond.envs.registry import EnvBatchFactory, describe
from millpond.envs.spec import EnvSpec
from millpond.vector import BackendChoice, WorkerError, measure, measure_backend
from millpond.vector.worker import MakeEnvBatch
from tests.support import vector_envs
from tests.support.vector_envs import counting_spec

ACT_SECONDS = 1e-4


def measured(spec: EnvSpec, make: MakeEnvBatch, **changes: Any) -> BackendChoice:
    settings: dict[str, Any] = {
        "num_envs": 8, "groups": 2, "num_workers": 1, "threads": None, "trainer_share": 0.0, "cores": 4,
        "time_acting": lambda threads: ACT_SECONDS,
    }  # fmt: skip
    return measure_backend(spec, make, **(settings | changes))


def small_spec(**changes: Any) -> EnvSpec:
    return counting_spec(id="tests.support.vector_envs:counting", **changes)


@pytest.mark.parametrize(
    ("of_all", "of_one", "step", "overhead"),
    [
        (95e-6, 20e-6, 5e-6, 15e-6),  # 16 c + o = 95, c + o = 20
        (15e-6, 15e-6, 0.0, 15e-6),  # steps that take no time
        (14e-6, 16e-6, 0.0, 14e-6),  # one env was slower than all of them, by chance
        (160.5e-3, 70e-3, 10e-3, 0.5e-3),  # a busy machine: one env alone was slow, but a command is not
    ],
)
def test_time_of_a_step_and_of_a_command(of_all: float, of_one: float, step: float, overhead: float) -> None:
    assert measure.solve(of_all, of_one, 16) == (pytest.approx(step, abs=1e-12), pytest.approx(overhead))


def test_cheap_env_steps_inline() -> None:
    choice = measured(small_spec(), vector_envs.idle, time_acting=lambda threads: 1.0)
    assert (choice.backend, choice.num_workers) == ("inline", 1)
    assert choice.reason.startswith("measured: 4 envs of a group step in ")


def test_slow_env_that_holds_the_gil_steps_in_processes() -> None:
    choice = measured(small_spec(), vector_envs.burning)
    assert choice.backend == "processes"
    assert 2 <= choice.num_workers <= 4


def test_first_step_that_loads_something_does_not_count() -> None:
    choice = measured(small_spec(), vector_envs.slow_at_first, time_acting=lambda threads: 0.05)
    assert choice.backend == "inline"


def test_number_of_workers_is_the_limit_if_it_is_set() -> None:
    assert measured(small_spec(), vector_envs.burning, num_workers=2).num_workers == 2


def test_env_that_is_not_part_of_millpond_never_steps_in_threads() -> None:
    spec = small_spec(releases_gil=True)
    assert measured(spec, vector_envs.burning).backend in ("inline", "processes")


def test_own_env_steps_inline_or_in_threads() -> None:
    grid = describe("grid", {})
    assert measured(grid, EnvBatchFactory("grid", {}), time_acting=lambda threads: 1.0).backend == "inline"
    # Acting that takes no time leaves only the steps, which threads share; on a busy machine they may look like no time, too.
    choice = measured(
        grid, EnvBatchFactory("grid", {}), num_envs=1 << 22, cores=2, threads=2, time_acting=lambda threads: 0.0
    )
    assert (choice.backend, choice.num_workers) in (("threads", 2), ("inline", 1))


def test_env_that_raises_in_a_step_gets_processes() -> None:
    choice = measured(small_spec(), vector_envs.raising, num_workers=2)
    assert (choice.backend, choice.num_workers) == ("processes", 2)
    assert "raised in a step while it was measured" in choice.reason


def test_env_that_kills_its_process_gets_processes() -> None:
    choice = measured(small_spec(), vector_envs.killing)
    assert choice.backend == "processes"
    assert "died in a step while it was measured" in choice.reason


def test_env_that_hangs_gets_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "STEP_LIMIT", 0.2)
    choice = measured(small_spec(), vector_envs.hanging)
    assert choice.backend == "processes"
    assert "hung in a step while it was measured" in choice.reason


def test_env_that_cannot_be_made_is_an_error() -> None:
    with pytest.raises(WorkerError, match="cannot be made"):
        measured(small_spec(), vector_envs.unmakeable)


def test_env_that_cannot_be_pickled_steps_inline() -> None:
    choice = measured(small_spec(), lambda *arguments: vector_envs.counting(*arguments))
    assert choice.backend == "inline"
    assert "processes are not possible: " in choice.reason


def test_one_core_needs_no_measurement() -> None:
    choice = measured(small_spec(), vector_envs.unmakeable, cores=1)
    assert (choice.backend, choice.reason) == (
        "inline", "there is one core, so envs cannot step while the policy acts"
    )  # fmt: skip


def test_env_that_only_steps_as_a_whole_batch_can_be_measured() -> None:
    assert measured(small_spec(partial_step=False), vector_envs.burning_whole).backend == "processes"


def test_native_env_is_not_measured() -> None:
    spec = small_spec(partial_step=False, native_vector=True, releases_gil=True)
    assert measured(spec, vector_envs.unmakeable).backend == "native"


def test_measuring_draws_nothing_from_global_generators() -> None:
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    expected = random.random(), np.random.random()  # noqa: NPY002
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    measured(small_spec(), vector_envs.idle)
    assert (random.random(), np.random.random()) == expected  # noqa: NPY002
