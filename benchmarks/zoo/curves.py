"""Curves of seeds in a picture: their mean as a line, from lowest to highest as a band."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.zoo.results import POINTS, Result


def digest(results: Sequence[Result]) -> str:
    """Return a digest of what a picture shows; the picture carries it."""
    drawn = [(one.task, one.party, one.seed, one.curve) for one in results]
    return hashlib.sha256(json.dumps(drawn, sort_keys=True).encode()).hexdigest()


def draw_runs(axes: Any, runs: Sequence[Result], colour: str) -> Any:
    """Draw the seeds of one party, at the same env steps for all of them; return the line."""
    curves = [np.array(one.curve).T for one in runs if one.curve]
    if not curves:  # no episode ended
        return axes.plot([], [], color=colour, linewidth=1.4)[0]
    first, last = max(curve[0][0] for curve in curves), min(curve[0][-1] for curve in curves)
    steps = np.linspace(first, last, POINTS)
    returns = np.stack([np.interp(steps, *curve) for curve in curves])
    if len(curves) > 1:
        axes.fill_between(steps, returns.min(0), returns.max(0), color=colour, alpha=0.2, linewidth=0)
    return axes.plot(steps, returns.mean(0), color=colour, linewidth=1.4)[0]


def save(figure: Any, path: Path, description: str) -> None:
    """Write a picture that carries the digest of what it shows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90, metadata={"Software": None, "Description": description})
