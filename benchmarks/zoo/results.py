"""Results of finished trainings: one small JSON file each, which counts as done."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
POINTS = 50  # of a curve
LAST = 0.1  # share of the env steps whose episodes count for the final return

Iteration = tuple[int, int, float | None]  # env steps at its end, episodes that ended in it, their mean return


@dataclass(frozen=True)
class Result:
    """One training of one party. Returns are those of training episodes, in the rewards of the env itself."""

    task: str
    party: str
    seed: int
    steps: int  # env steps that were taken
    curve: list[tuple[int, float]]  # env steps, mean return of the episodes that ended in that window
    final: float | None  # mean return of the episodes that ended in the last tenth; None if there are none
    episodes: int  # all that ended
    seconds: float
    threads: int | None  # of torch; None: its default
    machine: str
    versions: dict[str, str]
    settings: dict[str, Any]
    cpu_seconds: float | None = None  # of the whole process and its children; None: not measured
    evaluation: float | None = None  # mean return of Millpond's evaluation at the end of the run
    warnings: dict[str, int] | None = None  # number of warnings by cause, of Millpond's runs

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = path_of(folder, self.task, self.party, self.seed)
        draft = path.with_suffix(".part")
        draft.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")
        os.replace(draft, path)


def path_of(folder: Path, task: str, party: str, seed: int) -> Path:
    return folder / f"{task}-{party}-{seed}.json"


def read_results(folder: Path) -> list[Result]:
    """Return all results of a folder, in the order of their names."""
    contents = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return [Result(**{**content, "curve": [tuple(point) for point in content["curve"]]}) for content in contents]


def mean_return(iterations: Iterable[Iteration]) -> float | None:
    """Return the mean over all episodes of some iterations; None if none ended."""
    ended = [(count, mean) for _, count, mean in iterations if mean is not None and count]
    total = sum(count for count, _ in ended)
    return sum(count * mean for count, mean in ended) / total if total else None


def curve_of(iterations: Sequence[Iteration]) -> list[tuple[int, float]]:
    """Return (env steps, mean return of the episodes that ended since the point before), at most POINTS of them."""
    steps = iterations[-1][0]
    windows: dict[int, list[Iteration]] = {}
    for iteration in iterations:
        windows.setdefault((iteration[0] - 1) * POINTS // steps, []).append(iteration)
    means = [(window[-1][0], mean_return(window)) for window in windows.values()]
    return [(end, round(mean, 4)) for end, mean in means if mean is not None]


def final_return(iterations: Sequence[Iteration]) -> float | None:
    """Return the mean return of the episodes that ended in the iterations of the last tenth of the env steps."""
    start = (1 - LAST) * iterations[-1][0]
    mean = mean_return(iteration for iteration in iterations if iteration[0] > start)
    return None if mean is None else round(mean, 4)
