"""Interfaces that each kind of recipe implements for the planner: plan, advice, ranks, text.

The table in `millpond.kinds` names the implementations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from millpond.config import Loaded, Recipe, RecipeSource
from millpond.config.check import check, find_fix, flatten, overlay, written
from millpond.config.rules import ConfigError, as_overrides
from millpond.envs.spec import EnvSpec

if TYPE_CHECKING:
    from millpond.planner.estimate import Host, Measured, TimeEstimate
    from millpond.planner.planned import Planned
    from millpond.planner.reward.numbers import Dataset

RecipeT = TypeVar("RecipeT", bound=Recipe)


class Plan(ABC):
    """All numbers of a run, derived once. Each kind has its own frozen dataclass."""

    @property
    @abstractmethod
    def updates_in_run(self) -> int:
        """Gradient updates of the whole run."""

    @property
    @abstractmethod
    def env_steps_in_run(self) -> int:
        """Env steps of the whole run."""

    def to_json(self) -> dict[str, Any]:
        """Return the numbers as one flat object."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    def with_agents(self, agents: int) -> str:
        """Describe how the plan changes if an env has another number of agents; empty if it does not."""
        return ""


@dataclass(frozen=True)
class PlanInputs:
    """Inputs of a plan besides the recipe."""

    spec: EnvSpec | None  # None if describing the environment would run its code
    host: Host | None  # None: for any machine
    measured: tuple[Measured, ...] = ()
    dataset: Dataset | None = None


@dataclass(frozen=True)
class Advice:
    """A reason to change something, and the overrides that do it; these may be empty."""

    topic: str
    reason: str
    overrides: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return f"{self.topic}: {self.reason}" + (f" -> {as_overrides(dict(self.overrides))}" if self.overrides else "")


class Adviser(Generic[RecipeT]):
    """Makes advice about one recipe. `find_problems` returns the topics in which a recipe has a problem.

    Overrides are checked before they are shown: the config stays valid, the problem is solved, and no new problem appears.
    """

    def __init__(self, recipe: RecipeT, find_problems: Callable[[RecipeT], set[str]]) -> None:
        self._recipe = recipe
        self._flat, self._written = flatten(recipe), written(recipe)
        self._values = recipe.model_dump(exclude_unset=True)
        self._find_problems = find_problems
        self._problems = find_problems(recipe)

    def __call__(self, topic: str, reason: str, overrides: Mapping[str, Any]) -> Iterator[Advice]:
        """Yield the advice with its overrides completed until they are valid; nothing if they cause other problems."""
        whole = find_fix(self._flat, self._written, overrides)
        if whole is None:
            return
        try:
            changed = check(overlay(self._values, whole))
        except ConfigError:
            return
        after = self._find_problems(changed)  # type: ignore[arg-type]
        if not after - self._problems and topic not in after:
            yield Advice(topic, reason, tuple(whole.items()))


@dataclass(frozen=True)
class Draft:
    """A plan with advice, notes and alerts."""

    plan: Plan
    advice: list[Advice]
    notes: tuple[str, ...] = ()
    alerts: tuple[str, ...] = ()


@dataclass(frozen=True)
class ComparisonRow:
    """One line of a comparison's table; a row without values is a heading."""

    label: str
    a: Any = None
    b: Any = None
    note: str = ""
    heading: bool = False


def _no_preset_notes(recipe: RecipeSource, overrides: Any, preset: str) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True)
class KindRanks:
    """Division of a run of one kind among ranks."""

    share: Callable[[Loaded, int], Loaded]  # config and number of ranks -> config of one rank
    total: Callable[[Planned, Loaded, int], Planned]  # plan of one process, config of one rank, ranks -> plan of all


@dataclass(frozen=True)
class KindPlanner:
    """The arithmetic of one kind. Arguments are recipes and plans of that kind."""

    draft: Callable[[Any, PlanInputs], Draft]
    stacked_observations: bool  # the plan counts whole stacks of frames, not the single frames that replay stores
    speed_settings: Callable[[Any], dict[str, Any]]  # the settings that decide how long a step takes
    estimate: Callable[[Any, Measured], TimeEstimate]
    ranks: KindRanks | None = None  # None: trained by one process
    preset_notes: Callable[[RecipeSource, Any, str], tuple[str, ...]] = _no_preset_notes


def _no_remarks(plan: Any, own: Any) -> list[str]:
    return []


@dataclass(frozen=True)
class KindText:
    """Plans of one kind in words."""

    show: Callable[[Any, Any], list[str]]  # recipe and plan
    compare_rows: Callable[[Planned, Planned], list[ComparisonRow]]
    differences: Callable[[Planned, Planned], Iterator[str]]
    better_for: Callable[[Planned, Planned], Iterator[str]]  # reasons to choose the first
    in_table: tuple[str, ...]  # settings that the comparison's rows already show
    scale_header: tuple[str, ...]
    scale_columns: Callable[[Any], list[str]]
    scale_remarks: Callable[[Any, Any], list[str]] = _no_remarks  # a plan against that of the recipe's own value
