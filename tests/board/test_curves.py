"""Curves of several runs, and trends."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.board.curves import describe_progress, group_curve, run_curve, trend_of
from millpond.board.records import RunRecords
from millpond.report.comparison import mean_interval
from tests.support.board import append, record_at


def read(folder: Path, rows: list[dict[str, float]]) -> RunRecords:
    folder.mkdir()
    append(folder, rows)
    records = RunRecords(folder / "metrics.jsonl")
    records.update()
    return records


def test_trend_compares_the_last_quarter_with_the_one_before() -> None:
    #                         before          last       means 1.5, 3.5; errors small
    assert trend_of([0, 0, 0, 0, 1, 2, 1, 2, 1.4, 1.6, 1.4, 1.6, 3.4, 3.6, 3.4, 3.6]) == (
        "improving",
        pytest.approx(2.0),
    )
    assert trend_of([5.0 - 0.1 * k for k in range(20)])[0] == "worse"
    assert trend_of([5.0 - 0.1 * k for k in range(20)], lower_is_better=True)[0] == "improving"
    assert trend_of([1.0] * 20) == ("flat", 0.0)
    assert trend_of([0.0, 1.0] * 20)[0] == "flat"  # noise
    assert trend_of([0.0, 9.0])[0] == "new"


def test_group_curve_is_the_mean_with_the_interval_of_student_t(tmp_path: Path) -> None:
    rows = [[{"updates": k, "loss": level + k} for k in range(101)] for level in (0.0, 1.0, 5.0)]
    runs = [read(tmp_path / str(number), each) for number, each in enumerate(rows)]
    curve = group_curve(runs, "updates", "loss")
    expected = mean_interval([0.0, 1.0, 5.0])
    assert curve["seeds"] == 3
    assert curve["x"][0] == 0
    assert curve["x"][-1] == 100
    found = (curve["y"][0], curve["low"][0], curve["high"][0])
    assert found == pytest.approx((expected.value, expected.low, expected.high), abs=1e-4)
    assert curve["y"][-1] == pytest.approx(102.0)


def test_group_curve_ends_where_the_shortest_run_ends(tmp_path: Path) -> None:
    runs = [read(tmp_path / str(count), [record_at(k) for k in range(count)]) for count in (20, 60)]
    assert group_curve(runs, "agent_steps", "episode_return")["x"][-1] == 2000


def test_curve_is_thinned_and_keeps_its_extremes(tmp_path: Path) -> None:
    rows = [{"updates": k, "loss": 50.0 if k == 777 else 0.0} for k in range(1900)]
    curve = run_curve(read(tmp_path / "run", rows), "updates", "loss")
    assert len(curve["x"]) <= 400
    assert max(curve["high"]) == 50.0


def test_hours_are_the_unit_of_time(tmp_path: Path) -> None:
    curve = run_curve(read(tmp_path / "run", [{"seconds": 7200.0, "loss": 1.0}]), "seconds", "loss")
    assert curve["x"] == [2.0]


def test_progress_of_a_run_without_returns_is_that_of_its_headline(tmp_path: Path) -> None:
    append(tmp_path, [{"updates": k, "R_loss": 9.0 - 0.1 * k} for k in range(64)])
    progress = describe_progress(tmp_path / "metrics.jsonl", "R_loss")
    assert progress is not None
    assert (progress.metric, progress.trend) == ("R_loss", "improving")
    assert len(progress.points) <= 24
    assert describe_progress(tmp_path / "missing.jsonl", "R_loss") is None
