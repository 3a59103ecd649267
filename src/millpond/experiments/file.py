"""The file of an experiment: methods x worlds x seeds, as YAML. Packaged files have names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from millpond.config import load
from millpond.config.load import parse_override
from millpond.config.recipe import ConfigSection, Count, Switch
from millpond.config.rules import as_override, show
from millpond.config.yaml import read_mapping
from millpond.errors import MillpondError
from millpond.experiments.jobs import TrainingJob
from millpond.experiments.mixture_budget import MixtureBudget, equal_budget

FIRST_SEED = 1


class Method(ConfigSection):
    """One of the things that are compared: overrides, and a recipe if it is not that of the experiment."""

    label: str = Field("", description="What it is called in sentences; by default its name.")
    recipe: str = Field("", description="Its recipe, if it differs from that of the experiment.")
    overrides: dict[str, Any] = Field(default_factory=dict, description="Overrides of its runs.")
    on_request: Switch = Field(False, description="Runs only if --methods names it.")


class ExperimentFile(ConfigSection):
    """The content of an experiment's file."""

    description: str = Field("", description="The question, in a sentence.")
    recipe: str = Field(description="Recipe of all methods: a name, an env id, or a file.")
    worlds: list[str] | dict[str, dict[str, Any]] = Field(
        default_factory=list, description="Env ids, or names with overrides; empty: the env of the recipe."
    )
    seeds: Count = Field(5, description="Runs per method and world.")
    episodes: Count = Field(100, description="Episodes that score a run, on seeds that no training uses.")
    baseline: str = Field("", description="Method that the others are compared with; by default the first.")
    claim: str = Field("", description="Method that the conclusion is about; by default each one but the baseline.")
    random_player: Switch = Field(
        True, description="Play at random, too: the zero of the common scale of several worlds."
    )
    overrides: dict[str, Any] = Field(default_factory=dict, description="Overrides of all runs.")
    mixture_budget: MixtureBudget | None = Field(
        None, description="For recipes of kind mixture: the same frames, rounds and gradient steps for all methods."
    )
    methods: dict[str, Method] = Field(min_length=1, description="The methods, by name.")
    threshold: float | None = Field(
        None, description="Return for which sample- and time-efficiency are measured; by default half of the best mean."
    )


def packaged_experiments() -> list[str]:
    """Return the names of the experiments that come with Millpond."""
    folder = resources.files("millpond.experiments")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def read_checked(model: type[BaseModel], values: Mapping[str, Any], source: str) -> Any:
    """Return values as a model; an error names each wrong key with its value and the rule."""
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise MillpondError(
            "\n  ".join([f"{source} is not valid:", *dict.fromkeys(map(_problem(model), error.errors()))])
        ) from None


def _problem(model: type[BaseModel]) -> Any:
    def describe(entry: Any) -> str:
        key = ".".join(str(part) for part in entry["loc"] if not str(part).startswith(("list[", "dict[")))
        if entry["type"] == "extra_forbidden":
            known = list(model.model_fields)
            near = difflib.get_close_matches(key.rpartition(".")[2], known, n=1)
            return f"{key} is not a known key; " + (
                f"did you mean {near[0]}?" if near else f"keys are {', '.join(known)}"
            )
        if entry["type"] == "missing":
            return f"{key} is missing: {_description(model, key)}"
        message = entry["msg"].removeprefix("Value error, ")
        return f"{key}={show(entry['input'])}: {message[0].lower()}{message[1:]}"

    return describe


def _description(model: type[BaseModel], key: str) -> str:
    field = model.model_fields.get(key)
    text = (field.description if field is not None else "") or "it has no default"
    return f"{text[0].lower()}{text[1:]}"


@dataclass(frozen=True)
class Experiment:
    """An experiment to run: a file, and what the command line changes."""

    name: str
    file: ExperimentFile
    methods: tuple[str, ...]
    worlds: tuple[str, ...]
    overrides: tuple[tuple[str, Any], ...] = ()  # of the command line

    @property
    def baseline(self) -> str:
        return self.file.baseline or self.methods[0]

    @property
    def seeds(self) -> range:
        return range(FIRST_SEED, FIRST_SEED + self.file.seeds)

    def label(self, method: str) -> str:
        """Return what a method is called in sentences."""
        return self.file.methods[method].label or method

    def recipe_of(self, method: str) -> str:
        return self.file.methods[method].recipe or self.file.recipe

    @cached_property
    def shared(self) -> dict[str, Any]:
        """Overrides of all runs."""
        return {**self.file.overrides, **dict(self.overrides)}

    def world_overrides(self, world: str) -> dict[str, Any]:
        """Overrides of all runs in a world."""
        worlds = self.file.worlds
        own = worlds.get(world) if isinstance(worlds, Mapping) else None
        if own is None:
            own = {"env.id": world} if world != "" else {}
        return {**self.shared, **own}

    def run_overrides(self, world: str, method: str, seed: int) -> dict[str, Any]:
        """All overrides of one run."""
        changes = {**self.world_overrides(world), **self.file.methods[method].overrides}
        if self.file.mixture_budget is not None:
            changes |= equal_budget(
                self.file.mixture_budget, self.recipe_of(method), self.world_overrides(world), changes
            )
        return {**changes, "seed": seed}

    def run_name(self, world: str, method: str, seed: int) -> str:
        place = f"{world.replace(':', '-').replace('/', '-')}." if world else ""
        return f"{place}{method}.seed{seed}"

    def jobs(self) -> list[TrainingJob]:
        """All runs, seed by seed, so that an interrupted experiment can be analysed for the seeds that are complete."""
        return [
            TrainingJob(
                self.run_name(world, method, seed),
                self.recipe_of(method),
                tuple(as_override(key, value) for key, value in self.run_overrides(world, method, seed).items()),
            )
            for seed in self.seeds
            for world in self.worlds
            for method in self.methods
        ]

    def check(self) -> None:
        """Refuse runs that cannot start, before anything runs."""
        for world in self.worlds:
            for method in self.methods:
                try:
                    load(self.recipe_of(method), self.run_overrides(world, method, FIRST_SEED))
                except MillpondError as error:
                    where = f"method {method}" + (f" in {world}" if world else "")
                    raise MillpondError(f"{where}: {error}") from None

    def to_json(self) -> dict[str, Any]:
        """Return everything that decides what the runs are, for comparison with what a folder has."""
        return {
            "format": 2,
            "name": self.name,
            "recipe": self.file.recipe,
            "worlds": {world: self.world_overrides(world) for world in self.worlds},
            "methods": {
                name: {"recipe": self.recipe_of(name), "overrides": self.file.methods[name].overrides}
                for name in self.methods
            },
            "mixture_budget": None if self.file.mixture_budget is None else self.file.mixture_budget.model_dump(),
            "seeds": self.file.seeds,
            "episodes": self.file.episodes,
        }


def read_experiment(
    name: str,
    overrides: Iterable[str] = (),
    *,
    seeds: int | None = None,
    worlds: Iterable[str] | None = None,
    methods: Iterable[str] | None = None,
    episodes: int | None = None,
    recipe: str | None = None,
    budget: Mapping[str, Any] | None = None,
) -> Experiment:
    """Read an experiment by the name or path of its file; the other arguments replace what the file says."""
    path = _locate(name)
    values: dict[str, Any] = read_mapping(path)
    replaced = {"seeds": seeds, "episodes": episodes, "recipe": recipe}
    values |= {key: value for key, value in replaced.items() if value is not None}
    changes = {key: value for key, value in (budget or {}).items() if value is not None}
    if changes:
        if not isinstance(values.get("mixture_budget"), Mapping):
            options = ", ".join(f"--{key.replace('_', '-')}" for key in changes)
            raise MillpondError(f"{options}: {name} has no mixture_budget; set the length with an override")
        values["mixture_budget"] = {**values["mixture_budget"], **changes}
    file: ExperimentFile = read_checked(ExperimentFile, values, name if path.parent == _folder() else str(path))
    chosen = tuple(methods) if methods is not None else tuple(n for n, m in file.methods.items() if not m.on_request)
    for what, one in (*(("methods", method) for method in chosen), ("baseline", file.baseline), ("claim", file.claim)):
        if one and one not in file.methods:
            raise MillpondError(f"{what}={one} is unknown; there are {', '.join(file.methods)}")
    if worlds is not None and isinstance(file.worlds, Mapping):
        unknown = [world for world in worlds if world not in file.worlds]
        if unknown:
            raise MillpondError(f"worlds={','.join(unknown)} are unknown; {name} has {', '.join(file.worlds)}")
    places = tuple(worlds) if worlds is not None else tuple(file.worlds) or ("",)
    if not chosen or not places:
        raise MillpondError(f"{name}: an experiment needs at least one method and one world")
    experiment = Experiment(path.stem, file, chosen, places, tuple(parse_override(text) for text in overrides))
    return replace(experiment, file=file.model_copy(update={"baseline": _baseline(experiment)}))


def _baseline(experiment: Experiment) -> str:
    """Return the baseline; the first method if that of the file was not asked for."""
    return experiment.baseline if experiment.baseline in experiment.methods else experiment.methods[0]


def _folder() -> Path:
    return Path(str(resources.files("millpond.experiments")))


def _locate(name: str) -> Path:
    packaged = packaged_experiments()
    if name in packaged:
        return _folder() / f"{name}.yaml"
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        return path
    near = difflib.get_close_matches(name, packaged, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(packaged)}, or a path to a YAML file"
    raise MillpondError(f"there is no experiment {name!r}; {hint}")
