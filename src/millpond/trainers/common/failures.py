"""The end of a run by a number that is not finite: its cause, a dump, the last good checkpoint and the command to go on."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from millpond.config import Recipe
from millpond.formatting import plural
from millpond.loop import NonFiniteError
from millpond.record import Counters
from millpond.store import Run
from millpond.store.checkpoints import Checkpoints
from millpond.store.non_finite import remove_batch, save_batch, save_facts
from millpond.vector import NonFiniteEnvError


@dataclass(frozen=True)
class Learning:
    """The update that gave a number that is not finite, as its trainer knows it.

    `metrics`: of that update; `before`: of the last update before it whose metrics were all finite.
    """

    section: str  # of the config that has `learning_rate` and, if gradients are clipped, `max_grad_norm`
    rate: float  # the current learning rate
    update: str  # its number, "update 12", or a range of them
    metrics: Mapping[str, float] = field(default_factory=dict)
    before: Mapping[str, float] = field(default_factory=dict)
    before_update: str = ""
    batch: Mapping[str, Any] = field(default_factory=dict)


Diagnose = Callable[[NonFiniteError], Learning]


@contextmanager
def explaining_failures(
    recipe: Recipe, run: Run, checkpoints: Checkpoints, counters: Counters, diagnose: Diagnose, *, first: bool = True
) -> Iterator[None]:
    """Within this context, a number that is not finite ends the run with a dump and a message that names its cause.

    `first`: this is rank 0, which writes for all; an env's error is written by the rank that has the env.
    """
    try:
        yield
    except NonFiniteEnvError as error:
        _extend(error, partial(_explain_env, run, checkpoints, counters, error))
        raise
    except NonFiniteError as error:
        if first:
            _extend(error, partial(_explain, recipe, run, checkpoints, counters, error, diagnose))
        else:
            error.quiet = True
        raise


def _explain_env(run: Run, checkpoints: Checkpoints, counters: Counters, error: NonFiniteEnvError) -> list[str]:
    save_batch(run.folder, error.trace, str(error))
    folder = save_facts(run.folder, _facts_of_env(error, counters))
    return [
        f"the steps of this env, metrics and config are in {shown(run, folder)}",
        last_checkpoint(run, checkpoints),
        f"fix the environment, then go on with: {run.resume_command}",
    ]


def _explain(
    recipe: Recipe,
    run: Run,
    checkpoints: Checkpoints,
    counters: Counters,
    error: NonFiniteError,
    diagnose: Diagnose,
) -> list[str]:
    if not error.name.startswith("env/"):
        return _explain_learning(recipe, run, checkpoints, counters, error, diagnose(error))
    remove_batch(run.folder)
    folder = save_facts(run.folder, _facts(error, counters, {}))
    return [
        f"an env reported this number in its infos; metrics and config are in {shown(run, folder)}",
        last_checkpoint(run, checkpoints),
        f"fix the environment, then go on with: {run.resume_command}",
    ]


def _explain_learning(
    recipe: Recipe, run: Run, checkpoints: Checkpoints, counters: Counters, error: NonFiniteError, learning: Learning
) -> list[str]:
    if learning.batch:
        error.batch_path = save_batch(run.folder, learning.batch, str(error))
    elif error.batch_path is None:
        remove_batch(run.folder)  # of an earlier failure
    settings = getattr(recipe, learning.section)
    facts = {
        "update": learning.update,
        "learning_rate": learning.rate,
        "metrics": dict(learning.metrics),
        "last_finite": {"update": learning.before_update, **learning.before},
    }
    folder = save_facts(run.folder, _facts(error, counters, facts))
    bad = [name for name, value in learning.metrics.items() if not math.isfinite(value)]
    key, rate = f"{learning.section}.learning_rate", float(settings.learning_rate)
    default = float(type(settings).model_fields["learning_rate"].default)
    smaller = f"{min(rate / 10, default):.3g}"
    return [
        f"learning diverged in {learning.update}" + (f"; not finite: {', '.join(bad)}" if bad else ""),
        f"learning rate {learning.rate:.4g} ({key}={rate:g}); {_gradient(learning, settings)}",
        f"{'metrics' if error.batch_path is None else 'the batch, metrics'} and config are in {shown(run, folder)}",
        last_checkpoint(run, checkpoints),
        f"go on in a new run with a smaller learning rate: {new_run_command(run, checkpoints, f'{key}={smaller}')}",
    ]


def _gradient(learning: Learning, settings: Any) -> str:
    known = ((learning.metrics, learning.update), (learning.before, learning.before_update))
    finite = [(metrics, name) for metrics, name in known if all(map(math.isfinite, metrics.values()))]
    measured = next(((metrics["grad_norm"], name) for metrics, name in finite if "grad_norm" in metrics), None)
    if measured is None:
        return "gradient norm: not measured before"
    limit = getattr(settings, "max_grad_norm", None)
    clipped = "not clipped" if limit is None else f"clipped to {learning.section}.max_grad_norm={limit:g}"
    text = f"gradient norm of the last finite update ({measured[1]}): {measured[0]:.4g}, {clipped}"
    return text + _ratio(learning)


def _ratio(learning: Learning) -> str:
    for metrics, name in ((learning.metrics, learning.update), (learning.before, learning.before_update)):
        if "approx_kl" in metrics and math.isfinite(metrics["approx_kl"]):
            return f"; in {name} the largest probability ratio was at least {largest_factor(metrics['approx_kl']):.4g}"
    return ""


def largest_factor(approx_kl: float) -> float:
    """Return the least that the largest of the ratios r and 1 / r can be, if mean(r - 1 - log r) is this.

    It solves f - 1 - log f = approx_kl for f >= 1: the term of a ratio 1 / f is smaller than that of f.
    """
    low, high = 1.0, max(4.0, 2 * approx_kl + 4)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if middle - 1 - math.log(middle) < approx_kl else (low, middle)
    return low


def last_checkpoint(run: Run, checkpoints: Checkpoints) -> str:
    """Describe the newest checkpoint, which is from before the number: weights and metrics are read before it is written."""
    saved = checkpoints.updates()
    if not saved:
        return "last good checkpoint: none was written yet"
    return f"last good checkpoint: {shown(run, checkpoints.path(saved[-1]))}, after {plural(saved[-1], 'update')}"


def new_run_command(run: Run, checkpoints: Checkpoints, override: str) -> str:
    """Return the command that starts a new run with the settings of this one, one of them changed, and its weights."""
    number = 2
    while (run.folder.parent / f"{run.name}-{number}").exists():
        number += 1
    weights = f" --from {shlex.quote(run.reference)}" if checkpoints.updates() else ""
    config = shlex.quote(str(run.shown / run.config_path.name))
    return f"{run.launcher}millpond train {config}{weights} --run {run.name}-{number} {override}"


def shown(run: Run, path: Path) -> Path:
    """Return a path in the run's folder as messages show it."""
    return run.shown / path.relative_to(run.folder)


def _facts_of_env(error: NonFiniteEnvError, counters: Counters) -> dict[str, Any]:
    bad = error.bad
    return {
        "cause": "env",
        "message": str(error),
        "env_id": error.env_id,
        "env": bad.env,
        "agent": bad.agent,
        "field": bad.field,
        "part": bad.part,
        "value": bad.value,
        "episode_step": error.episode_step,
        "env_steps": bad.env_steps,
        "seed": error.seed,
        "worker": error.worker,
        "counters": counters.as_dict(),
    }


def _facts(error: NonFiniteError, counters: Counters, facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "cause": "env info" if error.name.startswith("env/") else "learning",
        "message": str(error),
        "position": str(error.address),
        "name": error.name,
        "value": error.value,
        "counters": counters.as_dict(),
        **facts,
    }


def _extend(error: Exception, explain: Callable[[], list[str]]) -> None:
    """Add lines to an error's message. If they cannot be found, it is raised without them: it matters more."""
    try:
        error.args = ("\n  ".join([str(error), *explain()]),)
    except Exception as failure:
        error.add_note(f"the dump could not be written: {type(failure).__name__}: {failure}")


def as_numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return metrics as numbers; tensors are read from their device."""
    return {name: float(value) for name, value in metrics.items()}
