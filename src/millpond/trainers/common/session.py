"""Start, resume and open runs, connect their sinks, and make the trainer of any kind of recipe."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
import yaml

from millpond.config import Loaded, Recipe, RecipeSource, load
from millpond.config.check import check, flatten
from millpond.config.for_env import is_env_id
from millpond.config.recipe import EnvConfig
from millpond.distributed import ALONE, Ranks
from millpond.distributed.training import require_ranks
from millpond.durable import replace_file
from millpond.envs.families import FAMILIES, family_of, require_extra
from millpond.envs.objects import OBJECT
from millpond.envs.spec import EnvSpec
from millpond.errors import MillpondError
from millpond.kinds import KINDS, Kind
from millpond.loop import Loop
from millpond.planner.estimate import require_device
from millpond.planner.planned import plan_over_ranks
from millpond.record import Axis, Console, Counters, Sink, TensorBoard, Timer, Trackio, WeightsAndBiases
from millpond.store import Run, check_changes, find_run
from millpond.store.stop import StopRequests
from millpond.trainers.common.envs import make_spec
from millpond.trainers.common.health.checks import Check
from millpond.trainers.common.health.monitor import HealthSink
from millpond.trust import mark_as_own, require_trust

if TYPE_CHECKING:
    from millpond.trainers.reward.setup import RecordedData

# Lengths and logging: changing these does not affect what was learned so far.
MAY_CHANGE = {
    "trainer.total_iterations", "trainer.total_timesteps", "trainer.max_seconds", "mixture.total_frames", "reward.epochs",
    "reward.save_freq", "reward.log_batches", "vector.timeout", "vector.on_crash", "run_dir", "description",
    "expect", "presets",
}  # fmt: skip
MAY_CHANGE_IN = ("checkpoint.", "eval.", "log.")


def may_change(key: str) -> bool:
    """Return True if a run can be resumed with another value of this key."""
    return key in MAY_CHANGE or key.startswith(MAY_CHANGE_IN)


def require_machine(recipe: Recipe) -> None:
    """Raise if a recipe needs an extra or a device that this machine lacks, before anything is created for it."""
    if recipe.acts:
        require_extra(recipe.env.id)
    require_device(recipe.device)


@contextmanager
def setting_up(run: Run, ranks: Ranks) -> Iterator[None]:
    """Within this context a run is built. If that fails it is abandoned: the name of a new run is free again."""
    try:
        yield
    except BaseException as error:  # Ctrl-C, too
        if ranks.first:
            run.abandon(error)
        raise


def config_text(loaded: Loaded) -> str:
    """Return the whole config as YAML, with defaults, so that a run folder is self-contained."""
    values = loaded.recipe.model_dump(mode="json")
    family = family_of(loaded.recipe.env.id)
    for other in FAMILIES:  # settings of other environments would be refused when this is loaded
        if family is None or other != family.name:
            values["env"].pop(other, None)
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def load_to_run(
    recipe: RecipeSource,
    overrides: Iterable[str] | Mapping[str, Any] = (),
    preset: str | None = None,
    *,
    trust: bool | None = None,
    run: Path | None = None,
) -> Loaded:
    """Load a config to run it: the code that it names is trusted first, then its env is asked for what follows from it.

    `trust` is as in `require_trust`; `run` is the folder of the run that the config belongs to. The `config.yaml` of a
    run belongs to it, too, if a new run is started from it.
    """
    if run is None and isinstance(recipe, str | Path) and Path(recipe).name == "config.yaml":
        run = Path.cwd() / Path(recipe).parent

    def ask(env: EnvConfig) -> EnvSpec:
        require_extra(env.id)
        return make_spec(env, stacked=True)

    return load(recipe, overrides, preset, ask_env=ask, approve=lambda code: require_trust(code, trust, run=run))


def run_stem(recipe: str) -> str:
    """Return the first part of a run's default name: a recipe's name, a file's without its suffix, or an env id.

    gymnasium:CartPole-v1 becomes gymnasium-CartPole-v1.
    """
    name = recipe.removeprefix(f"{OBJECT}:")
    return re.sub(r"[^A-Za-z0-9._-]", "-", name) if is_env_id(recipe) else Path(name).stem


def start_run(
    loaded: Loaded,
    name: str | None,
    *,
    overwrite: bool = False,
    ranks: int = 1,
    recorded: RecordedData | None = None,
    cwd: Path | None = None,
    weights_from: Run | None = None,
) -> Run:
    """Create the folder of a new run. The default name is that of the recipe with the next free number.

    `weights_from`: the run whose weights it starts with.
    `recorded`: the episodes of a reward run, if they are already open, so that its plan does not open them again.
    `cwd`: the directory that a relative `run_dir` starts from; None is the working directory.
    """
    root = Path(loaded.recipe.run_dir)
    dataset = recorded.dataset if recorded is not None else None
    plan = {**plan_over_ranks(loaded, ranks, dataset).to_json(), "ranks": ranks}
    if name is None:
        stem = run_stem(loaded.name)
        number = 1
        while ((cwd or Path.cwd()) / root / f"{stem}-{number}").exists():
            number += 1
        name, overwrite = f"{stem}-{number}", False
    run = Run.start(
        root,
        name,
        config_yaml=config_text(loaded),
        plan=plan,
        overwrite=overwrite,
        cwd=cwd,
        weights_from=weights_from,
    )
    _mark_as_own(run, loaded)
    return run


def _mark_as_own(run: Run, loaded: Loaded) -> None:
    """Let later commands recognise a run of this user; only needed if its config names code."""
    if loaded.code:
        mark_as_own(run.folder, load(run.config_path).code)


def resume_run(
    name: str,
    overrides: Iterable[str] | Mapping[str, Any],
    run_dir: str = "runs",
    *,
    ranks: int = 1,
    trust: bool | None = None,
) -> tuple[Loaded, Run]:
    """Open a run to continue it, and return its config with the changes that a resumed run may have."""
    shown = find_run(Path(run_dir), name)
    folder = Path.cwd() / shown  # an env may change the working directory when it is asked for its agents
    require_ranks(Run(folder, resumed=False).ranks(), ranks, f"run {folder.name!r}", name)
    before = load(folder / "config.yaml")
    after = load_to_run(folder / "config.yaml", overrides, trust=trust, run=folder)
    require_machine(after.recipe)
    changes = check_changes(flatten(before.recipe), flatten(after.recipe), may_change)
    run = Run.resume(folder.parent, folder.name)
    run.shown = shown
    if changes:
        replace_file(run.config_path, config_text(after).encode())
    _mark_as_own(run, after)
    return after, run


def begin_on_all_ranks(ranks: Ranks, begin: Callable[[], tuple[Loaded, Run]]) -> tuple[Loaded, Run]:
    """Start or resume a run on rank 0, and return its config and folder on all ranks; the others write nothing."""
    started: list[tuple[Loaded, Run]] = []

    def begin_and_describe() -> dict[str, Any]:
        started.append(begin())
        loaded, run = started[0]
        return {"name": loaded.name, "config": config_text(loaded), "run": str(run.shown), "resumed": run.resumed}

    facts = ranks.run_on_first(begin_and_describe)
    if not started:
        values = yaml.safe_load(facts["config"])
        recipe = check(values, facts["name"])
        started.append((Loaded(facts["name"], recipe, values), Run(Path(facts["run"]), resumed=facts["resumed"])))
    started[0][1].launcher = ranks.place.launcher
    return started[0]


def open_run(name: str, run_dir: str = "runs") -> tuple[Loaded, Run]:
    """Open a run to read from, and return its config too."""
    run = Run.open(Path(run_dir), name)
    return load(run.config_path), run


def axis_of(recipe: Recipe) -> Axis:
    """Return the axis of curves: agent steps online, updates offline, unless the config sets another."""
    if recipe.log.axis != "auto":
        return recipe.log.axis
    return "agent_steps" if recipe.acts else "updates"


def make_sinks(
    recipe: Recipe,
    run: Run,
    loop: Loop,
    counters: Counters,
    timer: Timer,
    checks: Mapping[str, Check] | None = None,
) -> list[Sink]:
    """Create the sinks of a run: console, and TensorBoard, Weights & Biases and trackio if the config enables them.

    `checks`: warnings about its records, by cause.
    """
    axis = axis_of(recipe)
    videos = run.videos_path if recipe.log.videos else None
    console = Console(
        loop,
        counters,
        timer,
        axis,
        seconds_between_lines=recipe.log.console_seconds,
        verbose=recipe.log.verbose,
        title=" · ".join([run.name, recipe.kind, *([recipe.env.id] if recipe.acts else [])]),
        limit_left=lambda: timer.seconds_left(recipe.trainer.max_seconds),
    )
    sinks: list[Sink] = [console, StopRequests(run.folder, loop)]
    if checks:
        sinks.append(HealthSink(run.warnings_path, checks, console.warn))
    if recipe.log.tensorboard:
        sinks.append(TensorBoard(run.tensorboard_path, axis, videos=videos))
    if recipe.log.wandb != "off":
        sinks.append(
            WeightsAndBiases(
                run.folder,
                run.name,
                run.run_id,
                axis,
                project=recipe.log.wandb_project,
                mode=recipe.log.wandb,
                config=recipe.model_dump(mode="json"),
                videos=videos,
            )
        )
    if recipe.log.trackio:
        sinks.append(
            Trackio(
                run.name,
                run.run_id,
                axis,
                project=recipe.log.trackio_project,
                config=recipe.model_dump(mode="json"),
                videos=videos,
            )
        )
    return sinks


class Trainer(Protocol):
    """Everything of one run."""

    def train(self) -> None:
        """Run to the end, or to where it is stopped."""

    def close(self) -> None:
        """End workers and close files."""

    def opening(self) -> list[str]:
        """Lines to print before training."""

    def summary(self) -> list[str]:
        """Lines to print when the run is over; none where it was stopped before its end."""


@dataclass(frozen=True)
class Player:
    """The network that plays for a run, before it has its weights."""

    network: Any
    weights: str  # their name in a checkpoint
    greedy: bool  # evaluated with its best actions; else it samples them
    description: str = ""  # of what plays, if that is not the whole run after all its updates


def require_trainer(loaded: Loaded) -> RecordedData | None:
    """Refuse what cannot be trained before a folder is made for it. Return the recorded data if it was read for that."""
    require_machine(loaded.recipe)
    prepare = KINDS[loaded.recipe.kind].prepare
    return prepare.load()(loaded.recipe) if prepare is not None else None


def make_trainer(
    loaded: Loaded,
    run: Run,
    *,
    weights_from: Run | None = None,
    ranks: Ranks = ALONE,
    recorded: RecordedData | None = None,
    callbacks: tuple[Any, ...] = (),
) -> Trainer:
    """Build the trainer of a recipe of any kind. Only the modules of that kind are imported.

    `recorded` is what `require_trainer` returned, if it was called; `callbacks` are those of `as_callbacks`.
    """
    kind = KINDS[loaded.recipe.kind]
    if loaded.recipe.log.videos:
        from millpond.trainers.common.videos import EvaluationVideos  # which imports this module

        callbacks = (EvaluationVideos(), *callbacks)
    options: dict[str, Any] = {"callbacks": callbacks, **({"recorded": recorded} if kind.prepare is not None else {})}
    if _trained_by_ranks(kind):
        options["ranks"] = ranks
    elif not ranks.alone:
        several = " and ".join(other.name for other in KINDS.values() if _trained_by_ranks(other))
        raise MillpondError(
            f"{loaded.name} is of kind {kind.name}, which is trained by one process; "
            f"start it without torchrun (recipes of the kinds {several} are trained by several)"
        )
    if not getattr(loaded.recipe.trainer, "compile", False):
        import_no_compiler()
    return kind.trainer.load()(loaded, run, weights_from=weights_from, **options)


def import_no_compiler() -> None:
    """Let optimizers work without importing torch's compiler, which takes longer than all of Millpond.

    Some methods of an optimizer are excluded from torch.compile: the first call of each imports the compiler to say so, and
    stores the function to call instead. Here this is the method itself. A torch that stores it elsewhere imports its compiler.
    """
    for method in vars(torch.optim.Optimizer).values():
        plain = getattr(method, "__wrapped__", None)
        if plain is not None and not hasattr(plain, "__dynamo_disable"):
            plain.__dynamo_disable = plain


def _trained_by_ranks(kind: Kind) -> bool:
    return kind.planner.load().ranks is not None
