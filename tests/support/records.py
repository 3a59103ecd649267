"""Read the metrics of a finished run."""

from __future__ import annotations

import json
from pathlib import Path

MEASURED = ("seconds", "agent_steps_per_second", "lake/bytes")  # the lake's lock file holds a process id


def records(folder: Path) -> list[dict[str, float]]:
    """Return the records of a run without what differs between equal runs: times, speeds, bytes on disk."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [
        {k: v for k, v in json.loads(line).items() if k not in MEASURED and not k.startswith("time/")} for line in lines
    ]
