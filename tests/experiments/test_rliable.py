"""Statistics equal to those of rliable 1.2.0 on the same scores; `benchmarks/peers/rliable_statistics.py` has stored them.

Figures agree exactly. Intervals come from a random bootstrap: with 2,000 resamples the ends of a 95 % interval have a
standard error of about 1.5 % of its width.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millpond.experiments.statistics import (
    BootstrapEstimate,
    estimate,
    estimate_improvement,
    interquartile_mean,
    mean,
    optimality_gap,
    performance_profile,
)

STORED = json.loads((Path(__file__).parents[1] / "data" / "rliable.json").read_text())
STATISTICS = {"mean": mean, "interquartile_mean": interquartile_mean, "optimality_gap": optimality_gap}
OF_THE_WIDTH = 0.06

cases = pytest.mark.parametrize("case", STORED["cases"])


def by_world(matrix: list[list[float]]) -> dict[str, list[float]]:
    """Return scores [runs, worlds] by world."""
    return {f"world {k}": list(runs) for k, runs in enumerate(zip(*matrix, strict=True))}


def assert_agree(ours: BootstrapEstimate, theirs: list[float], step: float = 0.0) -> None:
    """Compare figure and interval; `step`: the figure takes only multiples of it, and so do the ends of its interval."""
    value, low, high = theirs
    assert ours.value == pytest.approx(value, abs=1e-12)
    allowed = max(OF_THE_WIDTH * (high - low), step) + 1e-12
    assert abs(ours.low - low) <= allowed, (ours, theirs)
    assert abs(ours.high - high) <= allowed, (ours, theirs)


@cases
@pytest.mark.parametrize("name", STATISTICS)
def test_aggregates_and_their_intervals(case: str, name: str) -> None:
    stored = STORED["cases"][case]
    ours = estimate(by_world(stored["x"]), STATISTICS[name], np.random.default_rng(0))
    assert_agree(ours, stored[name])


@cases
def test_probability_of_improvement(case: str) -> None:
    stored = STORED["cases"][case]
    ours = estimate_improvement(by_world(stored["x"]), by_world(stored["y"]), np.random.default_rng(0))
    worlds = len(stored["x"][0])
    assert_agree(ours, stored["probability_of_improvement"], 1 / (len(stored["x"]) * len(stored["y"]) * worlds))


@cases
def test_performance_profile(case: str) -> None:
    stored: dict[str, Any] = STORED["cases"][case]
    profile = performance_profile(by_world(stored["x"]), STORED["thresholds"], np.random.default_rng(0))
    value, low, high = stored["profile"]
    assert [one.value for one in profile] == pytest.approx(value, abs=1e-12)
    one_run = 1 / np.size(stored["x"])  # a fraction of runs moves in such steps
    assert [one.low for one in profile] == pytest.approx(low, abs=one_run + 1e-12)
    assert [one.high for one in profile] == pytest.approx(high, abs=one_run + 1e-12)
