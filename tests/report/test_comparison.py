"""Comparison of runs, whose folders are written by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from millpond.errors import MillpondError
from millpond.report.chart import Point
from millpond.report.comparison import Interval, compare_runs, mean_interval, show_runs_compared
from millpond.report.comparison_picture import GRID, SMOOTH_FROM, draw_curves, on_one_grid

COUNTERS = {"updates": 0, "env_steps": 0, "frames": 0, "episodes": 0}


def write_run(root: Path, name: str, returns: list[float], *, config: str = "", metric: str = "episode_return") -> Path:
    """Write a run with a return every 1,000 agent steps, a second each."""
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(f"kind: ppo\nenv:\n  id: grid\n{config}")
    (folder / "host.json").write_text("{}")
    (folder / "plan.json").write_text('{"kind": "ppo"}')
    lines = [
        {**COUNTERS, "agent_steps": 1000 * k, "seconds": float(k), metric: value} for k, value in enumerate(returns, 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_seeds_of_a_config_are_one_group_with_the_interval_of_their_mean(tmp_path: Path) -> None:
    folders = [write_run(tmp_path, f"a{k}", [0.0, 1.0 + k], config=f"seed: {k}\n") for k in range(3)]
    folders.append(write_run(tmp_path, "b", [0.5, 9.0, 4.0], config="seed: 0\nppo:\n  learning_rate: 0.1\n"))
    comparison = compare_runs(folders)
    first, second = comparison.groups
    assert (first.label, second.label) == ("a0 (3 seeds)", "b")
    assert first.final is not None
    # 1, 2, 3: mean 2, deviation 1, t of 2 degrees of freedom 4.303
    assert first.final.value == 2.0
    assert (first.final.low, first.final.high) == pytest.approx((2 - 4.303 / 3**0.5, 2 + 4.303 / 3**0.5))
    assert second.final == Interval(4.0)
    assert second.best == Interval(9.0)
    lines = show_runs_compared(comparison).splitlines()
    assert lines[0] == "episode_return of 4 runs"
    row = next(line for line in lines if line.startswith("  b "))
    assert row.split() == ["b", "4", "9", "3,000", "3s", "1,000/s"]
    assert "  a0 1, a1 2, a2 3" in lines
    assert max(map(len, lines)) <= 80


def test_settings_that_differ_are_listed(tmp_path: Path) -> None:
    folders = [
        write_run(tmp_path, name, [1.0], config=f"seed: {k}\nppo:\n  gamma: {gamma}\nlog:\n  wandb: {name}\n")
        for k, (name, gamma) in enumerate((("a", 0.9), ("b", 0.99)))
    ]
    comparison = compare_runs(folders)
    assert comparison.differences == (("seed", (0, 1)), ("ppo.gamma", (0.9, 0.99)))
    assert "  ppo.gamma: 0.9 in a; 0.99 in b" in show_runs_compared(comparison).splitlines()


def test_other_environments_are_pointed_out(tmp_path: Path) -> None:
    folders = [write_run(tmp_path, "a", [1.0]), write_run(tmp_path, "b", [1.0])]
    (folders[1] / "config.yaml").write_text("kind: ppo\nenv:\n  id: recall\n")
    assert compare_runs(folders).alerts == ("the environments differ (grid, recall): their returns cannot be compared",)


def test_evaluations_are_compared_if_all_runs_have_enough(tmp_path: Path) -> None:
    for name, count in (("few", 2), ("many", 5)):
        folders = [write_run(tmp_path / name, run, [1.0] * 5) for run in ("a", "b")]
        for folder in folders:
            lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
            for line in lines[:count]:
                line |= {"eval/episode_return": 2.0, "eval/episode_return_low": 1.5, "eval/episode_return_high": 2.5}
            (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        comparison = compare_runs(folders)
        assert comparison.metric == ("episode_return" if name == "few" else "eval/episode_return")
    assert comparison.groups[0].runs[0].final == Interval(2.0, 1.5, 2.5)


def test_a_loss_is_better_if_it_is_lower(tmp_path: Path) -> None:
    folders = [write_run(tmp_path, name, [3.0, 1.0, 2.0], metric="R_loss") for name in ("a", "b")]
    comparison = compare_runs(folders)
    assert comparison.metric == "R_loss"
    assert comparison.groups[0].best is not None
    assert comparison.groups[0].best.value == 1.0
    assert "lowest" in show_runs_compared(comparison)


def test_a_metric_that_no_run_has_is_an_error_that_names_those_they_have(tmp_path: Path) -> None:
    folders = [write_run(tmp_path, name, [1.0]) for name in ("a", "b")]
    with pytest.raises(MillpondError, match=r"'entropy'; they have .*episode_return"):
        compare_runs(folders, "entropy")


def test_a_run_without_the_metric_is_a_problem_and_has_no_figures(tmp_path: Path) -> None:
    folders = [write_run(tmp_path, "a", [1.0]), write_run(tmp_path, "b", [], config="seed: 3\nppo:\n  gamma: 0.5\n")]
    comparison = compare_runs(folders)
    assert comparison.problems == ("b has not recorded episode_return yet",)
    assert comparison.groups[1].final is None
    assert json.loads(json.dumps(comparison.to_json()))["groups"][1]["final"] is None


def test_picture_has_a_line_for_every_group(tmp_path: Path) -> None:
    folders = [write_run(tmp_path, f"a{k}", [float(k)] * 40, config=f"seed: {k}\n") for k in range(2)]
    folders.append(write_run(tmp_path, "b", [5.0] * 40, config="ppo:\n  gamma: 0.5\n"))
    path = tmp_path / "deep" / "curves.png"
    assert draw_curves(compare_runs(folders), path)
    with Image.open(path) as picture:
        colours = {colour for _, colour in picture.convert("RGB").getcolors(1 << 20)}
    assert {(0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)} <= colours
    with pytest.raises(MillpondError, match=r"curves\.nothing cannot be written"):
        draw_curves(compare_runs(folders), tmp_path / "curves.nothing")


def test_mean_interval_narrows_with_the_number_of_runs() -> None:
    assert mean_interval([3.0]) == Interval(3.0)
    few, many = mean_interval([0.0, 2.0]), mean_interval([0.0, 2.0] * 10)
    assert few.value == many.value == 1.0
    assert few.low == pytest.approx(1 - 12.706)
    assert many.low is not None
    assert many.low > 0.4


def test_the_mean_of_several_runs_ends_at_their_last_values_unless_they_have_many() -> None:
    def curve(count: int, scale: float) -> list[Point]:
        return [Point(float(x), scale * x, 0.0, 0.0, 1) for x in range(1, count + 1)]

    grid, values = on_one_grid([curve(5, 10.0), curve(4, 20.0)])
    assert (grid[0], grid[-1], values.shape) == (1.0, 4.0, (2, GRID))
    assert values[:, -1].tolist() == [40.0, 80.0], "few points are not smoothed, as for a single run"
    grid, values = on_one_grid([curve(SMOOTH_FROM, 10.0)] * 2)
    assert values[0, -1] == 10.0 * (SMOOTH_FROM - 0.5), "the mean of the last two"
