"""Starting a run, taking one up again, and which settings may differ then."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import yaml

from millpond.config import Loaded, load
from millpond.config.check import flatten
from millpond.envs.families import FAMILIES, family_of
from millpond.planner import plan_loaded
from millpond.store import Run, RunError, check_changes, find_run
from millpond.store.durable import replace_file

# Lengths and logging: what was learned so far stays right when these change.
MAY_CHANGE = {
    "trainer.total_iterations", "trainer.total_timesteps", "trainer.max_seconds", "mixture.total_frames", "reward.epochs",
    "reward.save_freq", "reward.log_batches", "vector.timeout", "vector.on_crash", "run_dir", "description", "presets",
}  # fmt: skip
MAY_CHANGE_IN = ("checkpoint.", "eval.", "log.")


def may_change(key: str) -> bool:
    """Whether a run can be resumed with another value of this key."""
    return key in MAY_CHANGE or key.startswith(MAY_CHANGE_IN)


def config_text(loaded: Loaded) -> str:
    """The whole config as YAML, defaults included, so that a run folder explains itself."""
    values = loaded.recipe.model_dump(mode="json")
    family = family_of(loaded.recipe.env.id)
    for other in FAMILIES:  # settings of other worlds would be refused when this is read again
        if family is None or other != family.name:
            values["env"].pop(other, None)
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def start_run(loaded: Loaded, name: str | None, *, overwrite: bool = False) -> Run:
    """A new run's folder. Without a name it is called after the recipe, with the next free number."""
    root = Path(loaded.recipe.run_dir)
    plan = plan_loaded(loaded).to_json()
    if name is not None:
        return Run.start(root, name, config_yaml=config_text(loaded), plan=plan, overwrite=overwrite)
    stem = Path(loaded.name).stem
    number = 1
    while (root / f"{stem}-{number}").exists():
        number += 1
    return Run.start(root, f"{stem}-{number}", config_yaml=config_text(loaded), plan=plan)


def resume_run(name: str, overrides: Iterable[str], run_dir: str = "runs") -> tuple[Loaded, Run]:
    """A run to go on with, and its config with those changes that a resumed run may have."""
    folder = find_run(Path(run_dir), name)
    before = load(folder / "config.yaml")
    after = load(folder / "config.yaml", overrides)
    changes = check_changes(flatten(before.recipe), flatten(after.recipe), may_change)
    run = Run.resume(folder.parent, folder.name)
    if changes:
        replace_file(run.config_path, config_text(after).encode())
    return after, run


def open_run(name: str, run_dir: str = "runs") -> tuple[Loaded, Run]:
    """A run to read from, with its config."""
    run = Run.open(Path(run_dir), name)
    if not run.config_path.is_file():
        raise RunError(f"{run.folder} has no config.yaml, so it is not a run that can be read")
    return load(run.config_path), run
