"""What a bench found, as plain values."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from millpond.bench.limits import Limits
from millpond.bench.timing import Spread


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
