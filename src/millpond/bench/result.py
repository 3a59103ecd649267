"""What a bench found, as plain values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from millpond.bench.limits import Limits
from millpond.bench.timing import Effort, Spread, Watch
from millpond.config import Loaded


@dataclass(frozen=True)
class Stage:
    """One stage, measured alone. Seconds are those of a whole iteration (round, cycle), unless it is not a part of one."""

    name: str
    alone: float  # seconds
    amount: float  # units in that time
    unit: str
    limit: str  # what bounds it, in words; empty where nothing does
    at_best: float | None  # seconds that it would take at its limit
    together: float | None = None  # seconds in a real iteration, where its time is taken there
    in_iteration: bool = True

    @property
    def rate(self) -> float:
        return self.amount / self.alone

    @property
    def of_limit(self) -> float | None:
        return None if self.at_best is None else self.at_best / self.alone


@dataclass(frozen=True)
class Arithmetic:
    """Seconds that a network takes for the steps of an iteration: acting on all, and all updates."""

    inference: Spread
    training: Spread

    @property
    def seconds(self) -> float:
        return self.inference.median + self.training.median


@dataclass(frozen=True)
class Iteration:
    """Real iterations; of a mixture rounds, of reward learning cycles.

    Of PPO, beside each the bare arithmetic of its network and that of a plain one.
    """

    seconds: Spread
    phases: dict[str, float]  # medians, nested ones as `collect/step`; "other" is what lies outside of all
    bare: Arithmetic | None = None
    ratio: Spread | None = None  # real to bare, iteration by iteration
    references: dict[str, Arithmetic] = field(default_factory=dict)  # plain networks, by reading and precision
    reference_ratios: dict[str, Spread] = field(default_factory=dict)  # bare to plain, iteration by iteration


@dataclass(frozen=True)
class Measurement:
    """What was measured on one kind of recipe."""

    iteration: Iteration
    stages: tuple[Stage, ...]
    precision: str
    vector: str  # how envs are stepped
    sizes: dict[str, int]


@dataclass(frozen=True)
class Bench:
    """Everything."""

    recipe: str
    kind: str
    date: str
    machine: str
    versions: dict[str, str]
    quick: bool
    threads: int
    precision: str
    vector: str
    sizes: dict[str, int]
    limits: Limits | None
    stages: tuple[Stage, ...]
    iteration: Iteration

    def to_json(self) -> dict[str, Any]:
        tree = asdict(self)
        tree["stages"] = [
            {**asdict(stage), "rate": stage.rate, "of_limit": stage.of_limit, "of_iteration": self.of_iteration(stage)}
            for stage in self.stages
        ]
        if self.iteration.bare is not None:
            tree["iteration"]["bare"]["seconds"] = self.iteration.bare.seconds
        for name, reference in self.iteration.references.items():
            tree["iteration"]["references"][name]["seconds"] = reference.seconds
        return tree

    def of_iteration(self, stage: Stage) -> float | None:
        """Its share of a real iteration: as timed there, else as measured alone."""
        if not stage.in_iteration:
            return None
        return (stage.alone if stage.together is None else stage.together) / self.iteration.seconds.median


class Measure(Protocol):
    """Measure a recipe: `loaded` is what is run in place of what is `wanted`. Everything is written to `folder`."""

    def __call__(
        self, wanted: Loaded, loaded: Loaded, limits: Limits | None, effort: Effort, folder: Path, watch: Watch
    ) -> Measurement: ...


@dataclass(frozen=True)
class KindBench:
    """The bench of one kind of recipe, and the words for it."""

    whole: str  # what a run consists of
    phases: dict[str, str]  # of a run, in order, with the names that are shown
    stages: dict[str, str]  # name of a phase -> the stage that is measured alone
    notes: str
    settings: Callable[[Loaded, Effort], dict[str, Any]]  # overrides for the run that is timed
    measure: Measure
    for_plans: Callable[
        [Bench], tuple[dict[str, float], dict[str, float]]
    ]  # sizes and seconds that plans estimate from
    opening: Callable[[dict[str, int], str, str], str]  # sizes, vector and precision in a sentence
    size: tuple[str, str]  # the size that stands for the whole, and its unit
    every_phase: bool = False  # show phases that took no time, too
