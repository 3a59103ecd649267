"""Training from Python: `millpond.train` and `millpond.resume`, with envs, policies and callbacks passed as objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from millpond.config import Loaded, RecipeSource
from millpond.distributed import join
from millpond.envs.objects import binding
from millpond.record import captured_output
from millpond.store import Run
from millpond.trainers.common.callbacks import as_callbacks
from millpond.trainers.common.objects import (
    Objects,
    Passed,
    as_arguments,
    keep_objects,
    name_env,
    objects_of,
    objects_to_bind,
    settings_of,
    show_objects,
)
from millpond.trainers.common.session import (
    begin_on_all_ranks,
    load_to_run,
    make_trainer,
    open_run,
    require_trainer,
    resume_run,
    setting_up,
    start_run,
)
from millpond.trainers.reward.setup import RecordedData

DEFAULT_RECIPE = "grid"


def train_new(
    recipe: RecipeSource | None,
    settings: Mapping[str, Any],
    *,
    env: Passed = None,
    policy: Passed = None,
    callbacks: Any = (),
    preset: str | None = None,
    run: str | None = None,
    overwrite: bool = False,
    trust: bool | None = None,
    report: bool = True,
) -> Run:
    """Train a recipe to its end and return its run; see `millpond.train`. `report`: write its page at the end."""
    settings, objects = settings_of(env, policy, settings)
    if recipe is None:
        recipe = name_env(env) or DEFAULT_RECIPE
    chosen: RecipeSource = recipe
    cwd = Path.cwd()  # an env may change it, even when it is only asked for its agents

    def begin(ranks: int) -> tuple[Loaded, Run, RecordedData | None]:
        loaded = load_to_run(chosen, settings, preset, trust=trust)
        recorded = require_trainer(loaded)
        started = start_run(loaded, run, overwrite=overwrite, ranks=ranks, recorded=recorded, cwd=cwd)
        return loaded, started, recorded

    return _train(begin, objects, callbacks, show_objects(env, objects), report=report)


def resume_trained(
    run: Run | str | Path,
    settings: Mapping[str, Any],
    *,
    env: Passed = None,
    policy: Passed = None,
    callbacks: Any = (),
    trust: bool | None = None,
    report: bool = True,
) -> Run:
    """Continue a run from its newest checkpoint and return it; see `millpond.resume`."""
    if isinstance(run, Run):
        run.close()
    loaded, opened = open_run(str(run.folder) if isinstance(run, Run) else str(run))
    objects = objects_to_bind(loaded.recipe, opened.name, objects_of(opened.folder), env, policy)

    def begin(ranks: int) -> tuple[Loaded, Run, None]:
        return *resume_run(str(opened.shown), settings, ranks=ranks, trust=trust), None

    return _train(begin, objects, callbacks, [], report=report)


def _train(
    begin: Callable[[int], tuple[Loaded, Run, RecordedData | None]],
    objects: Objects,
    callbacks: Any,
    notes: list[str],
    *,
    report: bool,
) -> Run:
    """Train the run that `begin` starts or resumes, given the number of ranks."""
    called, recorded = as_callbacks(callbacks), None
    with join() as ranks, binding(objects):

        def begin_here() -> tuple[Loaded, Run]:
            nonlocal recorded
            loaded, run, recorded = begin(ranks.count)
            return loaded, run

        loaded, run = begin_on_all_ranks(ranks, begin_here)
        keep_objects(run.folder, objects)
        run.writes_report = report
        run.passed = as_arguments(loaded.recipe, objects)
        if ranks.first and notes:
            print("\n".join(notes), flush=True)
        with captured_output(enabled=ranks.first and not loaded.recipe.log.verbose):
            with setting_up(run, ranks):
                source = run.weights_source() if ranks.first and run.starts_again else None
                trainer = make_trainer(
                    loaded, run, weights_from=source, ranks=ranks, recorded=recorded, callbacks=called
                )
            try:
                trainer.train()
            finally:
                trainer.close()
    return run
