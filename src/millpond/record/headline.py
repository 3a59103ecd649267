"""The one figure that a run is judged by: its return, or what takes its place where nobody acts."""

from __future__ import annotations

import json
from pathlib import Path

RETURNS = ("eval/episode_return", "episode_return")  # an evaluation counts more than the episodes of training
HELD_OUT = ("step_pearson", "voc", "success_auc", "return_pearson")  # of a learned reward; the first there is
HEADLINES = (*RETURNS, *(f"held_out/{name}" for name in HELD_OUT), "R_loss")


def newest_headline(path: Path) -> tuple[str, float] | None:
    """Return name and newest value of the first headline that a `metrics.jsonl` has; not every record has one."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return None
    for name in HEADLINES:
        quoted = json.dumps(name).encode()
        for line in reversed(lines):
            if quoted in line:
                try:
                    return name, float(json.loads(line)[name])
                except (ValueError, KeyError, TypeError):
                    continue  # a line half written, or one that is no record
    return None
