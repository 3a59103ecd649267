"""Scores and what `rliable` makes of them, stored for tests. Runs in a separate virtual environment.

    python -m venv VENV && VENV/bin/pip install rliable==1.2.0 "pandas<3"
    VENV/bin/python benchmarks/peers/rliable_statistics.py tests/data/rliable.json

The test `tests/experiments/test_rliable.py` compares Millpond's statistics with the stored numbers, without rliable. Figures
are exact; intervals are those of a bootstrap with `REPETITIONS` resamples, so they differ by the noise of resampling.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from rliable import library, metrics

REPETITIONS = 50_000
THRESHOLDS = [-0.5, 0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 3.0]


def cases(rng: np.random.Generator) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the scores of two methods, [runs, worlds]."""
    skewed = rng.lognormal(-0.5, 0.8, (7, 3)) * [1.0, 0.5, 2.0]
    return {
        "one world": (rng.normal(0.8, 0.4, (5, 1)), rng.normal(0.5, 0.2, (5, 1))),
        "three skewed worlds": (skewed, rng.lognormal(-0.7, 0.6, (7, 3))),
        "ties": (rng.integers(0, 4, (10, 5)) / 4, rng.integers(0, 4, (10, 5)) / 4),
        "unequal numbers of runs": (rng.normal(1.0, 1.0, (6, 4)), rng.normal(0.6, 1.5, (9, 4))),
        "many runs": (rng.normal(0.4, 1.0, (40, 2)), rng.normal(0.2, 1.0, (40, 2))),
    }


def figures(x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Return rliable's aggregates of x, their intervals, its profile, and the probability that x improves on y."""

    def aggregates(scores: np.ndarray) -> np.ndarray:
        return np.array(
            [
                metrics.aggregate_mean(scores),
                metrics.aggregate_iqm(scores),
                metrics.aggregate_optimality_gap(scores),
            ]
        )

    values, intervals = library.get_interval_estimates({"x": x}, aggregates, reps=REPETITIONS)
    pair = {"x": [x, y]}
    improvement, improvement_interval = library.get_interval_estimates(
        pair, metrics.probability_of_improvement, reps=REPETITIONS // 10
    )
    profile, bands = library.create_performance_profile({"x": x}, np.array(THRESHOLDS), reps=REPETITIONS // 10)
    names = ("mean", "interquartile_mean", "optimality_gap")
    return {
        **{name: [float(values["x"][k]), *intervals["x"][:, k].tolist()] for k, name in enumerate(names)},
        "probability_of_improvement": [float(improvement["x"]), *improvement_interval["x"].reshape(-1).tolist()],
        "profile": [profile["x"].tolist(), *bands["x"].tolist()],
    }


def main() -> None:
    np.random.seed(0)  # noqa: NPY002  rliable draws from the global generator
    stored = {
        "rliable": version("rliable"),
        "thresholds": THRESHOLDS,
        "cases": {
            name: {"x": x.tolist(), "y": y.tolist(), **figures(x, y)}
            for name, (x, y) in cases(np.random.default_rng(0)).items()
        },
    }
    Path(sys.argv[1]).write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    main()
