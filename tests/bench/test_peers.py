"""The arithmetic of comparisons with other trainers, on numbers that can be checked by hand."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

PEERS = Path(__file__).parents[2] / "benchmarks" / "peers"
sys.path.append(str(PEERS))

from table import table, table_rows  # noqa: E402
from trained import Ratio, Trained, against  # noqa: E402


def training(collect: float, train: float, level: list[float | None]) -> Trained:
    """Its first two iterations take a hundred times as long."""
    times = [100 if k < 2 else 1 for k in range(len(level))]
    return Trained("x", {}, {}, 1_000, [collect * k for k in times], [train * k for k in times], level)


def test_the_first_two_iterations_do_not_count() -> None:
    assert training(1.0, 3.0, [0.0] * 6).steps_per_second == 250
    assert training(1.0, 3.0, [0.0] * 6).to_json()["train_steps_per_second"] == pytest.approx(1_000 / 3)


def test_ratio_is_the_median_of_paired_rounds() -> None:
    assert Ratio.of([2.0, 6.0, 3.0], [1.0, 2.0, 3.0]) == Ratio(2.0, 1.0, 3.0)
    assert str(Ratio(2.0, 1.0, 3.0)) == "2.00 (1.00 to 3.00)"


def test_levels_at_equal_steps_and_at_equal_time() -> None:
    quick = training(0.5, 0.5, [None, *(float(k) for k in range(1, 40))])  # 200 s, then 1 s each: 238 s
    slow = training(0.6, 0.6, [2.0 * k for k in range(20)])  # 240 s, then 1.2 s each: 261.6 s
    level = against([quick], [slow])["levels"][0]
    assert level["steps"] == 20_000
    assert level["ours_after_steps"] == sum(range(10, 20)) / 10
    assert level["theirs_after_steps"] == sum(range(20, 40, 2)) / 10
    assert level["seconds"] == pytest.approx(238)
    assert level["ours_after_seconds"] == sum(range(30, 40)) / 10
    assert level["theirs_after_seconds"] == 0.0  # one iteration, of 120 s


def test_all_tasks_are_in_one_table() -> None:
    quick, slow = training(0.5, 0.5, [1.0] * 6), training(1.0, 1.0, [1.0] * 6)
    results = {
        "forage": {"peers": {"puffer": against([quick, quick], [slow, quick])}},
        "lake": {"warm": {"beside": "torchrl", "ours": [300.0, 100.0, 200.0], "theirs": [100.0, 100.0, 100.0]}},
        "reward": {"ours": [900.0, 950.0], "bare": [1_000.0, 1_000.0], "ratios": [0.9, 0.95]},
    }
    forage, lake, reward = table_rows(results)
    assert (forage[:2], forage[2:4], forage[-1]) == (("forage", "puffer"), (1_000.0, 750.0), Ratio(1.5, 1.0, 2.0))
    assert (lake[0], lake[2:5], lake[-1]) == ("lake, warm", (200.0, 100.0, "transitions/s"), Ratio(2.0, 1.0, 3.0))
    assert (reward[2:4], reward[-1]) == ((925.0, 1_000.0), Ratio(pytest.approx(0.925), 0.9, 0.95))
    lines = table(results)
    assert len(lines) == 2 + 3
    assert lines[3].split("  ")[0] == "lake, warm"
    assert lines[3].endswith("2.00 (1.00 to 3.00)")
