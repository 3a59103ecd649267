"""The result of one training by any trainer, and the comparison of two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import mean, median
from typing import Any

WARM_UP = 2  # iterations that do not count, on all sides
WINDOW = 10  # number of iterations that a level is averaged over


@dataclass(frozen=True)
class Trained:
    """One training: seconds of each iteration without evaluation, and the level that each reached.

    A level is the reward per agent step (forage) or the mean episode return; None if no episode ended.
    """

    party: str
    versions: dict[str, str]
    settings: dict[str, Any]
    steps: int  # of one iteration
    collect: list[float]
    train: list[float]
    level: list[float | None]

    @property
    def steps_per_second(self) -> float:
        counted = len(self.collect) - WARM_UP
        return counted * self.steps / (sum(self.collect[WARM_UP:]) + sum(self.train[WARM_UP:]))

    @property
    def seconds(self) -> list[float]:
        """Seconds since the start, at the end of each iteration."""
        passed, moments = 0.0, []
        for collect, train in zip(self.collect, self.train, strict=True):
            passed += collect + train
            moments.append(passed)
        return moments

    def shares(self) -> dict[str, float]:
        """Return the shares of collecting and training in the iterations that count."""
        collect, train = sum(self.collect[WARM_UP:]), sum(self.train[WARM_UP:])
        return {"collect": collect / (collect + train), "train": train / (collect + train)}

    def level_after_steps(self, steps: int) -> float | None:
        return self._level(min(len(self.level), steps // self.steps))

    def level_after_seconds(self, seconds: float) -> float | None:
        return self._level(sum(1 for moment in self.seconds if moment <= seconds))

    def _level(self, iterations: int) -> float | None:
        known = [level for level in self.level[max(0, iterations - WINDOW) : iterations] if level is not None]
        return mean(known) if known else None

    def to_json(self) -> dict[str, Any]:
        counted = slice(WARM_UP, None)
        whole = (len(self.collect) - WARM_UP) * self.steps
        return {
            **asdict(self),
            "steps_per_second": self.steps_per_second,
            "collect_steps_per_second": whole / sum(self.collect[counted]),
            "train_steps_per_second": whole / sum(self.train[counted]),
        }


@dataclass(frozen=True)
class Ratio:
    """Ratio of ours to theirs, over rounds."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
        each = [a / b for a, b in zip(ours, theirs, strict=True)]
        return Ratio(median(each), min(each), max(each))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


def against(ours: list[Trained], theirs: list[Trained]) -> dict[str, Any]:
    """Return ratios of alternating rounds, and levels at equal steps and at equal time."""
    comparison: dict[str, Any] = {
        "ours": median(one.steps_per_second for one in ours),
        "theirs": median(one.steps_per_second for one in theirs),
        "ratio": asdict(Ratio.of([one.steps_per_second for one in ours], [one.steps_per_second for one in theirs])),
        "levels": [],
    }
    for own, other in zip(ours, theirs, strict=True):
        steps = min(len(own.level) * own.steps, len(other.level) * other.steps)
        seconds = min(own.seconds[-1], other.seconds[-1])
        comparison["levels"].append(
            {
                "steps": steps,
                "ours_after_steps": own.level_after_steps(steps),
                "theirs_after_steps": other.level_after_steps(steps),
                "seconds": seconds,
                "ours_after_seconds": own.level_after_seconds(seconds),
                "theirs_after_seconds": other.level_after_seconds(seconds),
            }
        )
    return comparison
