"""The result of a bench as plain values, and the description of a kind's bench."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from millpond.bench.limits import Limits
from millpond.bench.timing import Effort, Progress, Spread
from millpond.config import Loaded


@dataclass(frozen=True)
class Stage:
    """A stage, measured alone. Seconds are per iteration (round, cycle), or per call if the stage is not part of one."""

    name: str
    alone: float  # seconds
    amount: float  # units in that time
    unit: str
    limit: str  # what bounds it; empty if nothing does
    at_best: float | None  # seconds at its limit
    together: float | None = None  # seconds within a real iteration, if timed there
    in_iteration: bool = True

    @property
    def rate(self) -> float:
        return self.amount / self.alone

    @property
    def of_limit(self) -> float | None:
        return None if self.at_best is None else self.at_best / self.alone


@dataclass(frozen=True)
class Arithmetic:
    """Seconds of a network for one iteration: acting on all steps, and all updates."""

    inference: Spread
    training: Spread

    @property
    def seconds(self) -> float:
        return self.inference.median + self.training.median


@dataclass(frozen=True)
class Iteration:
    """Real iterations (of a mixture rounds, of reward learning cycles).

    For PPO also the bare arithmetic of its network and that of plain ones, measured between the iterations.
    """

    seconds: Spread
    phases: dict[str, float]  # medians, nested ones as `collect/step`; "other" is the time outside of all
    bare: Arithmetic | None = None
    ratio: Spread | None = None  # real to bare, iteration by iteration
    references: dict[str, Arithmetic] = field(default_factory=dict)  # plain networks, by encoding and precision
    reference_ratios: dict[str, Spread] = field(default_factory=dict)  # bare to plain, iteration by iteration


@dataclass(frozen=True)
class Measurement:
    """The part of a bench that a kind measures."""

    iteration: Iteration
    stages: tuple[Stage, ...]
    precision: str
    vector: str  # backend and workers
    sizes: dict[str, int]


@dataclass(frozen=True)
class Bench:
    """Result of a bench. Its fields are the keys of `bench --json`."""

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
        """Return the stage's share of a real iteration: as timed there, else as measured alone."""
        if not stage.in_iteration:
            return None
        return (stage.alone if stage.together is None else stage.together) / self.iteration.seconds.median


class Measure(Protocol):
    """Run `timed`, a shorter version of the `requested` recipe, and measure. Everything is written to `folder`."""

    def __call__(
        self, requested: Loaded, timed: Loaded, limits: Limits | None, effort: Effort, folder: Path, progress: Progress
    ) -> Measurement: ...


@dataclass(frozen=True)
class KindBench:
    """The bench of one kind of recipe, and its texts."""

    level: str  # what is measured: iteration, round or cycle
    phases: dict[str, str]  # timed phases in order -> name that is shown
    stages: dict[str, str]  # shown name of a phase -> stage that does the same work alone
    notes: str
    settings: Callable[[Loaded, Effort], dict[str, Any]]  # overrides of the run that is timed
    measure: Measure
    # sizes and seconds that plans estimate from
    for_plans: Callable[[Bench], tuple[dict[str, float], dict[str, float]]]
    describe: Callable[[dict[str, int], str, str], str]  # sizes, vector and precision in a sentence
    size: tuple[str, str]  # the main size and its unit, for the title of the picture
    show_empty_phases: bool = False
