"""Start the workers of a sweep, report what they do, and write its results. The same command continues a sweep."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millpond.config.draft import load_draft
from millpond.config.load import code_of, parse_override
from millpond.errors import MillpondError
from millpond.experiments.jobs import start_process, stop_processes
from millpond.formatting import plural, short_number
from millpond.planner.estimate import duration
from millpond.sweep.folder import SweepFolder, SweepSettings, TrialRecord
from millpond.sweep.points import PointRefused, check_point
from millpond.sweep.results import write_results
from millpond.sweep.space import Space, make_space, shown
from millpond.sweep.study import SweepStudy, best_of, check_sampler, final_rung, require_optuna
from millpond.sweep.trial import RETURN
from millpond.sweep.worker import INTERRUPTED
from millpond.trainers.common.session import require_machine, run_stem
from millpond.trust import require_trust

POLL_SECONDS = 0.5
MAX_RESTARTS = 5  # of workers that died, in a row
HOURS = "hours"

Say = Callable[[str], None]


class SweepFailed(MillpondError):
    """Workers could not go on."""

    exit_code = 1


def default_folder(recipe: str, space: Path) -> Path:
    """Return the folder of a sweep that has no name: sweeps/RECIPE.SPACE."""
    return Path("sweeps") / f"{run_stem(recipe)}.{space.stem}"


def make_settings(
    recipe: str,
    space: Mapping[str, Any],
    overrides: list[str],
    *,
    source: str,
    trials: int,
    seeds: int,
    final_seeds: int | None,
    hours: float | None,
    objectives: str,
    minimize: bool,
    sampler: str,
    rungs: int,
    random_seed: int,
) -> tuple[SweepSettings, Space]:
    """Return checked settings and the space of a sweep."""
    changes = dict(parse_override(text) for text in overrides)
    if "seed" in changes:
        raise MillpondError("seed is set by the sweep: --seeds K trains each point with the seeds 1 to K")
    loaded = load_draft(recipe, changes)
    parsed = make_space(space, loaded, source)
    _refuse_code(recipe, changes, parsed)
    wanted = tuple(name.strip() for name in objectives.split(",") if name.strip())
    if not wanted or len(wanted) > 2 or (len(wanted) == 2 and wanted[1] != HOURS) or wanted[0] == HOURS:
        raise MillpondError(f"--objectives {objectives} is not one of return, return,hours, METRIC, METRIC,hours")
    if wanted[0] == RETURN and not loaded.recipe.acts:
        raise MillpondError(
            f"{recipe} has no agent, so there is no return; name a metric, such as --objectives R_loss --minimize"
        )
    fixed = sorted(changes.keys() & {parameter.key for parameter in parsed.parameters})
    if fixed:
        raise MillpondError(f"{', '.join(fixed)}: set by an override and searched; leave one of them out")
    settings = SweepSettings(
        recipe=recipe,
        overrides=changes,
        space=parsed.to_json(),
        trials=trials,
        seeds=seeds,
        final_seeds=seeds if final_seeds is None else final_seeds,
        hours=hours,
        objectives=wanted,
        minimize=minimize,
        sampler=sampler,
        rungs=tuple(0.5 ** (rungs - 1 - index) for index in range(rungs)),
        random_seed=random_seed,
    )
    check_sampler(settings, parsed)
    return settings, parsed


def _refuse_code(recipe: str, changes: Mapping[str, Any], space: Space) -> None:
    """Refuse a space whose choices name code: what a file names is asked about, but not point by point."""
    known = {(one.key, one.value) for one in code_of(recipe, changes)}
    for parameter in space.parameters:
        for value in parameter.values if parameter.form == "choices" else ():
            for one in code_of(recipe, {**changes, parameter.key: value}):
                if (one.key, one.value) not in known:
                    raise MillpondError(
                        f"{parameter.key}: {value} names code to import; a space cannot, an override can"
                    )


@dataclass
class _Watched:
    """What has been reported of the trials."""

    states: dict[int, str] = field(default_factory=dict)
    rungs: dict[int, int] = field(default_factory=dict)


def run_sweep(
    folder: SweepFolder, settings: SweepSettings, *, workers: int, say: Say = print, trust: bool | None = None
) -> dict[str, Any]:
    """Run a sweep to its end, and return its results.

    `trust` is for code that the recipe file names: see `millpond.trust.require_trust`.
    """
    require_optuna()
    loaded = load_draft(settings.recipe, settings.overrides)
    require_trust(code_of(settings.recipe, settings.overrides), trust)
    require_machine(loaded.recipe)
    folder.begin(settings)
    _report_cost(settings, folder, workers, say)
    processes = [_start(folder, index, workers) for index in range(workers)]
    watched, deaths, stopped = _Watched(), 0, False
    began = time.monotonic()
    try:
        while processes:
            time.sleep(POLL_SECONDS)
            if _report_trials(folder, settings, watched, workers, began, say):
                deaths = 0
            for index, process in enumerate(list(processes)):
                code = process.poll()
                if code is None:
                    continue
                processes.remove(process)
                if code == INTERRUPTED:
                    stopped = True
                elif code == 2:
                    raise MillpondError(_last_line(folder, index))
                elif code != 0:
                    deaths += 1
                    if deaths > MAX_RESTARTS:
                        raise SweepFailed(f"workers died {deaths} times in a row; see {folder.path / 'logs'}")
                    say(f"a worker ended with code {code}; another one goes on with its trial")
                    processes.append(_start(folder, index, workers))
        _report_trials(folder, settings, watched, workers, began, say)
    finally:
        stop_processes(processes)
    space = make_space(settings.space, loaded, "the space")
    with folder.claiming():
        results = write_results(folder, SweepStudy(folder, settings, space))
    if stopped:
        say(f"stopped before its end ({_why(settings, folder)}); the same command continues")
    return results


def _why(settings: SweepSettings, folder: SweepFolder) -> str:
    over = settings.hours is not None and folder.seconds_spent() >= settings.hours * 3600 - 1
    return "its hours are over: take more with --hours" if over else "a worker was told to"


def _start(folder: SweepFolder, index: int, workers: int) -> subprocess.Popen[bytes]:
    arguments = ["-m", "millpond.sweep.worker", str(folder.path), "--at-once", str(workers)]
    return start_process(arguments, folder.path / "logs" / f"worker{index}.log")


def _last_line(folder: SweepFolder, index: int) -> str:
    lines = (folder.path / "logs" / f"worker{index}.log").read_text(errors="replace").strip().splitlines()
    problems = [line for line in lines if line.startswith("millpond: ")]
    return problems[-1].removeprefix("millpond: ") if problems else f"a worker failed; see {folder.path / 'logs'}"


def _report_cost(settings: SweepSettings, folder: SweepFolder, workers: int, say: Say) -> None:
    """Say what the recipe itself would cost, from which the sweep's length follows."""
    trials = folder.trials()
    if trials:
        say(f"{folder.path}: continuing; {len(trials)} of {settings.trials} trials are there")
        return
    try:
        cost = check_point(settings, {}, at_once=workers, trust=True).cost
    except PointRefused:  # the space may have what the recipe lacks
        return
    text = f"{folder.path}: {plural(settings.trials, 'trial')} of {plural(settings.seeds, 'seed')}, {workers} at once; "
    say(text + cost.describe(settings.seeds))


def _report_trials(
    folder: SweepFolder, settings: SweepSettings, watched: _Watched, workers: int, began: float, say: Say
) -> bool:
    """Report changes of the trials; return True if there were any."""
    trials = folder.trials()
    changed = False
    for trial in trials:
        complete = sum(rung.mean is not None for rung in trial.rungs)
        if watched.states.get(trial.number) == trial.state and watched.rungs.get(trial.number) == complete:
            continue
        new = trial.number not in watched.states
        changed, watched.states[trial.number], watched.rungs[trial.number] = True, trial.state, complete
        if new and trial.state == "running" and not complete:
            expected = f"; {duration(trial.expected_seconds)} expected" if trial.expected_seconds else ""
            say(f"trial {trial.number} started: {shown(trial.params)}{expected}")
        elif not (new and trial.state != "running"):  # of an earlier session: in the table
            say(_describe(trial, settings) + _left(trials, settings, workers))
    return changed


def _describe(trial: TrialRecord, settings: SweepSettings) -> str:
    rung = final_rung(trial)
    score = ""
    if rung is not None and rung.mean is not None:
        score = f"{settings.metric} {short_number(rung.mean)}"
        if rung.low is not None and rung.high is not None:
            score += f" [{short_number(rung.low)}, {short_number(rung.high)}]"
    if trial.state == "running":
        at = f" after {rung.fraction:.0%}" if rung is not None else ""
        return f"trial {trial.number}: {score}{at}"
    if trial.state == "finished":
        return f"trial {trial.number} finished: {score}, {duration(trial.seconds)}"
    return f"trial {trial.number} {trial.state}: {trial.reason.splitlines()[0] if trial.reason else score}"


def _left(trials: list[TrialRecord], settings: SweepSettings, workers: int) -> str:
    """Return the best trial so far, and how long the rest may take."""
    done = [trial for trial in trials if trial.state != "running"]
    best = best_of(trials, settings)
    text = f"; best {best.number}" if best is not None else ""
    text += f"; {len(done)} of {settings.trials} done"
    if done:
        per_trial = sum(trial.seconds for trial in done) / len(done)
        per_run = max(trial.seconds for trial in done) / settings.seeds
        rest = max(0, settings.trials - len(done)) * per_trial + settings.final_seeds * per_run
        text += f", about {duration(rest / workers)} left"
    return text
