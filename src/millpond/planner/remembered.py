"""The backend that `vector.backend=auto` chose for a recipe on this machine, remembered in the user's cache folder.

A choice is valid for the same environment, policy, sizes, cores and library versions. Environments of the user's own code are
measured at each start, since a change of that code would not be noticed.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import MISSING, asdict, dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import Any

from millpond.config.recipe import Recipe
from millpond.envs.families import family_of
from millpond.formatting import plural
from millpond.planner.estimate import this_machine
from millpond.processor import cache_folder, cpu_name

FORMAT = 2
MAX_CHOICES = 500  # the oldest are dropped
AT_THE_START = "measured at the start"
# Keys, of any kind of recipe, that decide how many envs there are and how long it takes to act for them.
SETTINGS: dict[str, Any] = {
    "kind": True,
    "device": True,
    "env": True,
    "policy": True,
    "trainer": {
        "num_envs",
        "forward_pass_minibatch_target_size",
        "async_factor",
        "num_workers",
        "precision",
        "fast",
    },
    "vector": {"threads", "trainer_share", "on_crash"},
    "mixture": {"agents", "mode", "own_fraction"},
    "pqn": {"num_envs"},
    "agent": {"num_envs", "algorithm"},
}
PACKAGES = (
    "millpond",
    "torch",
    "numpy",
    "numba",
    "gymnasium",
    "mujoco",
    "Box2D",
    "ale-py",
    "mettagrid",
    "minatar",
    "pettingzoo",
)


@dataclass(frozen=True)
class RememberedBackend:
    """A choice of `vector.backend=auto`."""

    backend: str
    num_workers: int
    reason: str
    trainer_envs: int | None = (
        None  # envs of each group that the trainer steps itself; None: as vector.trainer_share says
    )

    def __str__(self) -> str:
        if self.backend == "processes":
            own = f", and {plural(self.trainer_envs, 'env')} of each group in the trainer" if self.trainer_envs else ""
            return plural(self.num_workers, "worker process") + own
        return plural(self.num_workers, "thread") if self.backend == "threads" else self.backend

    @staticmethod
    def of(values: Any) -> RememberedBackend:
        """Check values that were read from a file; raise ValueError if they are not those of a choice."""
        names = {field.name for field in fields(RememberedBackend) if field.default is MISSING}
        if not isinstance(values, dict) or not names <= values.keys():
            raise ValueError(f"expected {', '.join(sorted(names))}")
        backend, workers = values["backend"], values["num_workers"]
        if backend not in ("inline", "threads", "processes", "native"):
            raise ValueError(f"backend={backend!r} is not one of inline, threads, processes, native")
        if type(workers) is not int or workers < 1:
            raise ValueError(f"num_workers={workers!r} is not a number of workers")
        own = values.get("trainer_envs")  # absent in runs of earlier versions
        if own is not None and (type(own) is not int or own < 0):
            raise ValueError(f"trainer_envs={own!r} is not a number of envs")
        return RememberedBackend(backend, workers, str(values["reason"]), own)


def remembered_path() -> Path:
    """Return the file of all choices."""
    return cache_folder() / "vector.json"


def recall_backend(recipe: Recipe, ranks: int = 1) -> RememberedBackend | None:
    """Return what was chosen for this recipe on this machine; None if nothing is known."""
    if not can_be_remembered(recipe):
        return None
    entry = _read().get(_key(recipe, ranks))
    try:
        return RememberedBackend.of(entry) if entry is not None else None
    except ValueError:  # of another version, or damaged: it is measured again
        return None


def with_remembered(recipe: Recipe, chosen: RememberedBackend, ranks: int = 1) -> dict[str, Any]:
    """Return the contents of the file with a new choice."""
    others = sorted(_read().items(), key=lambda entry: str(entry[1].get("date", "")))[-MAX_CHOICES + 1 :]
    date = time.strftime("%Y-%m-%dT%H:%M:%S")
    new = {**asdict(chosen), "env": recipe.env.id, "date": date}
    return {"format": FORMAT, "choices": {**dict(others), _key(recipe, ranks): new}}


def can_be_remembered(recipe: Recipe) -> bool:
    """Return True unless the environment or the policy is code of the user."""
    family = family_of(recipe.env.id)
    return family is not None and family.name != "custom" and recipe.policy.target is None


def plan_vector(recipe: Recipe, *, here: bool) -> str:
    """Describe how envs are stepped, for a plan: the backend, or what `auto` does. `here`: on this machine."""
    if recipe.vector.backend != "auto":
        return recipe.vector.backend
    remembered = recall_backend(recipe) if here else None
    return AT_THE_START if remembered is None else f"{remembered}, as measured before on this machine"


def _key(recipe: Recipe, ranks: int) -> str:
    """Return a hash of everything that decides how long a turn takes."""
    facts = [
        this_machine(),
        cpu_name(),
        recipe.model_dump(mode="json", include=SETTINGS),
        ranks,
        [_version(name) for name in PACKAGES],
    ]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _read() -> dict[str, dict[str, Any]]:
    try:
        content = json.loads(remembered_path().read_text(encoding="utf-8"))
        choices = content["choices"] if content["format"] == FORMAT else {}
        return {key: value for key, value in choices.items() if isinstance(value, dict)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
