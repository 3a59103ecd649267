"""The bench of one recipe: limits of the machine, real iterations (rounds, cycles), every stage alone; and its result.

`KindBench` describes what each kind of recipe measures.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from millpond.bench.measure import Effort, Limits, Progress, Spread, Stage, measure_limits
from millpond.config import Loaded
from millpond.config.load import parse_override
from millpond.durable import replace_json
from millpond.kinds import KINDS
from millpond.planner.estimate import (
    Measured,
    measured_path,
    read_all_measured,
    settings_of,
    this_machine,
    with_measured,
)
from millpond.processor import can_use_bfloat16
from millpond.store import host_facts
from millpond.trainers.common.session import load_to_run, require_machine

TIMED_RUN = {  # a run without evaluations, checkpoints and TensorBoard
    "trainer.max_seconds": None,
    "eval.interval": None,
    "eval.episodes": 1,
    "checkpoint.interval": None,
    "log.tensorboard": False,
    "log.wandb": "off",
}


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
    """Real iterations (of a mixture rounds, of reward learning cycles), and the products of the networks alone.

    For PPO also the bare arithmetic of its network and that of plain ones. All are measured between the iterations.
    """

    seconds: Spread
    phases: dict[str, float]  # medians, nested ones as `collect/step`; "other" is the time outside of all
    products: dict[str, Spread]  # seconds of the networks' products alone, by phase
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


@dataclass(frozen=True)
class Unit:
    """A unit of a run's work: the phase in which it is done, and how often it was done."""

    phase: str
    count: int


class Measure(Protocol):
    """Run `timed`, a shorter version of the `requested` recipe, and measure. Everything is written to `folder`."""

    def __call__(
        self, requested: Loaded, timed: Loaded, limits: Limits | None, effort: Effort, folder: Path, progress: Progress
    ) -> Measurement: ...


@dataclass(frozen=True)
class PlannedWork:
    """The work of an iteration (round) of a plan: by unit its items, agent steps or transitions, and how often it is done."""

    units: dict[str, tuple[float, float]]
    agent_steps: int = 0  # 0: not known


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
    units: Callable[[Any], dict[str, Unit]]  # of what a trainer has done, by name
    work: Callable[[Any], PlannedWork]  # of a plan
    show_empty_phases: bool = False


def run_bench(
    recipe: str,
    overrides: Iterable[str] | Mapping[str, Any] = (),
    *,
    quick: bool = False,
    only_iteration: bool = False,
    iterations: int | None = None,
    progress: Progress = lambda description: None,
    trust: bool | None = None,
) -> Bench:
    """Measure a recipe at its own sizes, or with `quick` at those of its preset `debug`, in seconds.

    `only_iteration` skips limits and single stages. Everything is written to a temporary folder. `trust` is for code that
    a recipe file names: see `millpond.trust.require_trust`.
    """
    settings = overrides if isinstance(overrides, Mapping) else dict(parse_override(text) for text in overrides)
    preset, effort = ("debug", Effort.quick()) if quick else (None, Effort())
    effort = effort if iterations is None else replace(effort, iterations=iterations)
    can_use_bfloat16()  # before torch computes anything
    requested = load_to_run(recipe, settings, preset, trust=trust)
    require_machine(requested.recipe)
    kind = KINDS[requested.recipe.kind].bench.load()
    with tempfile.TemporaryDirectory(prefix="millpond-bench-") as name:
        folder = Path(name)
        limits = None
        if not only_iteration:
            progress("the machine's limits")
            limits = measure_limits(effort, folder)
        shorter = {**TIMED_RUN, **kind.settings(requested, effort), "run_dir": name}
        timed = load_to_run(recipe, {**settings, **shorter}, preset, trust=True)  # as trusted above
        measurement = kind.measure(requested, timed, limits, effort, folder, progress)
    facts = host_facts()
    return Bench(
        recipe=recipe,
        kind=requested.recipe.kind,
        date=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        machine=f"{facts['processor']}, {facts['cores_allowed']} cores",
        versions=facts["versions"],
        quick=quick,
        threads=torch.get_num_threads(),
        limits=limits,
        **{name: getattr(measurement, name) for name in ("precision", "vector", "sizes", "stages", "iteration")},
    )


def store_for_plans(bench: Bench, overrides: Iterable[str]) -> Path:
    """Store the speeds from which plans estimate times, and return the path. The recipe has just run, so it is trusted."""
    sizes, seconds = KINDS[bench.kind].bench.load().for_plans(bench)
    measured = Measured(
        machine=this_machine(),
        date=bench.date,
        recipe=bench.recipe,
        settings=settings_of(load_to_run(bench.recipe, list(overrides), trust=True).recipe),
        sizes=sizes,
        seconds=seconds,
    )
    path = measured_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_json(path, with_measured(measured, read_all_measured()))
    return path
