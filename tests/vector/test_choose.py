"""The backend of measured times, against hand-worked tables. Times are in microseconds here."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.vector.choose import (
    SHARED_CORE,
    WAKE_SECONDS,
    Candidate,
    Costs,
    Sizes,
    choose,
    explain,
    short_time,
    worker_counts,
)
from millpond.vector.choose import turn_seconds as seconds_of_turn

US = 1e-6
INLINE = Candidate("inline")


def costs(step: float, act: float, overhead: float = 15, act_beside: float | None = None) -> Costs:
    return Costs(step * US, overhead * US, act * US, (act if act_beside is None else act_beside) * US)


def turn(candidate: Candidate, sizes: Sizes, measured: Costs) -> float:
    return seconds_of_turn(candidate, sizes, measured) / US


def test_inline_takes_the_sum_of_stepping_and_acting() -> None:
    # 8 envs x 5 + 70
    assert turn(INLINE, Sizes(8, 1, 4), costs(5, 70)) == pytest.approx(110)


@pytest.mark.parametrize(
    ("envs", "groups", "workers", "step", "act", "expected"),
    [
        (100, 2, 1, 10, 400, 1015),  # the worker is slower: 100 x 10 + 15
        (100, 2, 2, 10, 400, 515),  # two workers: 50 x 10 + 15
        (101, 2, 2, 10, 400, 525),  # one of them has 51 envs
        (100, 2, 3, 10, 600, 645),  # the policy is slower: 600 + 3 x 15
        (100, 1, 2, 10, 400, 930),  # one group, so they take turns: 400 + 2 x 15 + 50 x 10
    ],
)
def test_workers_with_a_core_for_each(
    envs: int, groups: int, workers: int, step: float, act: float, expected: float
) -> None:
    predicted = turn(Candidate("processes", workers), Sizes(envs, groups, 8), costs(step, act))
    assert predicted == pytest.approx(expected)


def test_busy_cores_limit_a_turn() -> None:
    # 3 threads on 4 cores: (3000 + 100 x 10 + 2 x 3 x 15) / 4 = 1022.5; acting alone takes 3000 + 45
    assert turn(Candidate("threads", 3), Sizes(100, 2, 4), costs(10, 3000)) == pytest.approx(3045)
    # 4 threads on 2 cores: (100 + 100 x 10 + 2 x 4 x 15) / 2 = 610; a thread has 25 envs and half a core: 515
    assert turn(Candidate("threads", 4), Sizes(100, 2, 2), costs(10, 100)) == pytest.approx(610)


def test_processes_that_leave_no_core_to_the_trainer_are_slower() -> None:
    # (500 + 100 x 8 + 2 x 2 x 15) / 2 = 680
    expected = 680 * SHARED_CORE + WAKE_SECONDS / US
    assert turn(Candidate("processes", 2), Sizes(100, 2, 2), costs(8, 500)) == pytest.approx(expected)


def test_next_to_processes_the_policy_may_have_one_thread_only() -> None:
    measured = costs(1, 100, act_beside=190)
    assert turn(Candidate("processes", 1), Sizes(10, 2, 2), measured) == pytest.approx(190 + 15)
    assert turn(Candidate("processes", 1), Sizes(10, 2, 4), measured) == pytest.approx(100 + 15)
    assert turn(Candidate("threads", 1), Sizes(10, 2, 2), measured) == pytest.approx(100 + 15)


def test_trainer_share_moves_envs_from_the_workers_to_the_trainer() -> None:
    # The worker has 90 of 100 envs: 90 x 10 + 15. The trainer: 400 + 10 x 10 + 15 = 515.
    assert turn(Candidate("processes", 1, 10), Sizes(100, 2, 2), costs(10, 400)) == pytest.approx(915)


@pytest.mark.parametrize(
    ("own", "expected"), [(0, 9 + 15 + 240), (3, 9 + 15 + 150), (4, 9 + 15 + 120), (5, 9 + 15 + 150)]
)
def test_with_one_group_the_trainer_steps_its_share_while_the_workers_step(own: int, expected: float) -> None:
    assert turn(Candidate("processes", 1, own), Sizes(8, 1, 2), costs(30, 9)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("limit", "cores", "counts"),
    [(1, 2, [1]), (2, 2, [1, 2]), (8, 8, [1, 2, 4, 7, 8]), (6, 8, [1, 2, 4, 6]), (16, 4, [1, 2, 3, 4, 8, 16])],
)
def test_numbers_of_workers_to_compare(limit: int, cores: int, counts: list[int]) -> None:
    assert worker_counts(limit, cores) == counts


@pytest.mark.parametrize(
    ("sizes", "limit", "measured", "expected"),
    [
        # CartPole, 8 envs, one group: 110 inline; 4 envs in the trainer take 105, which is not 1.25 times as fast.
        (Sizes(8, 1, 2), 2, costs(5, 70), INLINE),
        # HalfCheetah, 8 envs, one group: 249 inline, 264 with one process; 144 if the trainer steps half of them.
        (Sizes(8, 1, 2), 2, costs(30, 9), Candidate("processes", 1, 4)),
        # ... and inline if it must not step any.
        (Sizes(8, 1, 2, trainer_envs=0), 2, costs(30, 9), INLINE),
        # Four cores: 3 processes and the trainer step 2 each, 114.
        (Sizes(8, 1, 4), 4, costs(30, 9), Candidate("processes", 3, 2)),
        # CartPole, 256 envs, slow policy: one process steps while the policy acts, 655 instead of 1040.
        (Sizes(128, 2, 2, trainer_envs=0), 2, costs(5, 400), Candidate("processes", 1)),
        # ... and 555 if the trainer steps 20 of 128; 24 would take 535, which is less than 5 % faster.
        (Sizes(128, 2, 2), 2, costs(5, 400), Candidate("processes", 1, 20)),
        # The same with a fast policy: 740 inline, and 655 is not 1.25 times as fast.
        (Sizes(128, 2, 2, trainer_envs=0), 2, costs(5, 100), INLINE),
        # A slow world and a fast policy: both cores step. The smallest share within 5 % of 8,115: 15 of 32, 17 x 500 + 15.
        (Sizes(32, 2, 2), 2, costs(500, 200), Candidate("processes", 1, 15)),
        (Sizes(32, 2, 2, trainer_envs=0), 2, costs(500, 200), Candidate("processes", 2)),
        # The worlds take as long as the policy: one core for each.
        (Sizes(32, 2, 2), 2, costs(500, 15_500), Candidate("processes", 1)),
        # Eight cores: more workers help until the policy is slower. 4: 4,015; 7: 2,515; 8 share a core.
        (Sizes(32, 2, 8, trainer_envs=0), 8, costs(500, 200), Candidate("processes", 7)),
        # ... and no more than help: with 4 workers, acting takes longer than stepping.
        (Sizes(32, 2, 8), 8, costs(500, 5_000), Candidate("processes", 4)),
        # No more than the limit.
        (Sizes(32, 2, 8, trainer_envs=0), 2, costs(500, 200), Candidate("processes", 2)),
        # One env per group: it still steps while the policy acts.
        (Sizes(1, 2, 2), 1, costs(2_000, 2_000), Candidate("processes", 1)),
    ],
)
def test_the_fastest_is_chosen_if_it_is_clearly_faster_than_inline(
    sizes: Sizes, limit: int, measured: Costs, expected: Candidate
) -> None:
    assert choose("processes", limit, sizes, measured) == expected


def test_threads_need_a_smaller_gain_than_processes() -> None:
    sizes, measured = Sizes(128, 2, 4), costs(1, 700, overhead=5)  # 828 inline, 705 with one worker
    assert choose("processes", 4, sizes, measured) == INLINE
    assert choose("threads", 4, sizes, measured) == Candidate("threads", 1)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            (INLINE, "processes", 2, Sizes(8, 1, 2), costs(5, 70)),
            "measured: 8 envs of a group step in 40 µs, the policy acts for them in 70 µs; both take about 110 µs inline, "
            "105 µs with 1 worker process and 4 envs in the trainer",
        ),
        (
            (Candidate("processes", 2), "processes", 2, Sizes(32, 2, 4), costs(500, 200)),
            "measured: 32 envs of a group step in 16 ms, the policy acts for them in 200 µs; both take about 8.0 ms with 2 "
            "worker processes, 16 ms inline",
        ),
    ],
)
def test_reason_names_what_was_measured_and_the_alternative(arguments: Any, text: str) -> None:
    assert explain(*arguments) == text


def test_short_times() -> None:
    assert [short_time(seconds) for seconds in (4e-7, 7.3e-5, 0.00421, 0.12, 2.5)] == [
        "0 µs", "73 µs", "4.2 ms", "120 ms", "2,500 ms"
    ]  # fmt: skip
