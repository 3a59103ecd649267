"""Results of a sweep: table.txt, results.json, best.yaml, importance of parameters, and its status in words."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import yaml

from millpond.durable import replace_file, replace_json
from millpond.errors import MillpondError
from millpond.experiments.statistics import mean_interval
from millpond.formatting import plural, sentence, short_number
from millpond.planner.estimate import duration
from millpond.safe_read import read_json_object
from millpond.sweep.folder import SweepFolder, SweepSettings, TrialRecord
from millpond.sweep.space import shown
from millpond.sweep.study import SweepStudy, best_of, final_rung
from millpond.trainers.common.session import config_text, load_to_run

if TYPE_CHECKING:
    from collections.abc import Mapping

RESULTS, TABLE, BEST, WINNERS = "results.json", "table.txt", "best.yaml", "winner.json"
FEW_FOR_IMPORTANCE = 20  # finished trials with which shares say little; docs/sweeps.md
MAX_REASONS = 5


def write_results(folder: SweepFolder, study: SweepStudy) -> dict[str, Any]:
    """Write results.json, table.txt and best.yaml, and return the results. Only one process may do so at a time."""
    settings, trials = folder.settings(), folder.trials()
    best = best_of(trials, settings)
    started = {trial.number for trial in trials}
    refused = {number: reason for number, reason in study.reasons().items() if number not in started}
    results: dict[str, Any] = {
        "format": 1,
        "settings": asdict(settings),
        "trials": [_trial(folder, settings, trial) for trial in trials],
        "refused": [{"number": number, "reason": reason} for number, reason in sorted(refused.items())],
        "best": None if best is None else best.number,
        "pareto": study.pareto(),
        "winner": None if best is None else _winner(folder, settings, best),
        "importance": study.importance(),
        "hours": {"planned": settings.hours, "spent": folder.seconds_spent() / 3600},
    }
    replace_json(folder.path / RESULTS, results)
    if best is not None:
        replace_file(folder.path / BEST, best_recipe(settings, best, results["winner"]).encode())
    replace_file(folder.path / TABLE, ("\n".join(show_results(results)) + "\n").encode())
    return results


def _trial(folder: SweepFolder, settings: SweepSettings, trial: TrialRecord) -> dict[str, Any]:
    rung = final_rung(trial)
    return {
        **asdict(trial),
        "score": rung.mean if rung is not None else None,
        "low": rung.low if rung is not None else None,
        "high": rung.high if rung is not None else None,
        "at": rung.fraction if rung is not None else 0.0,
        "hours": trial.hours_per_run(settings.seeds),
        "runs": [
            name
            for seed in range(1, settings.seeds + 1)
            if (folder.runs / (name := folder.run_name(trial.number, seed))).is_dir()
        ],
    }


def _winner(folder: SweepFolder, settings: SweepSettings, best: TrialRecord) -> dict[str, Any]:
    """Return both figures of the winner: on the seeds of the sweep, and on fresh ones."""
    path = folder.path / WINNERS
    fresh: dict[str, float] = read_json_object(path).get(str(best.number), {}) if path.exists() else {}
    values = list(fresh.values())
    interval = mean_interval(values) or (None, None)
    last = best.rungs[-1]
    return {
        "trial": best.number,
        "params": best.params,
        "score": last.mean,
        "low": last.low,
        "high": last.high,
        "fresh": fresh,
        "fresh_score": sum(values) / len(values) if values else None,
        "fresh_low": interval[0],
        "fresh_high": interval[1],
        "confirmed": len(values) >= settings.final_seeds,
    }


def best_recipe(settings: SweepSettings, best: TrialRecord, winner: Mapping[str, Any]) -> str:
    """Return the whole config of the best trial as a recipe that trains unchanged."""
    loaded = load_to_run(settings.recipe, {**settings.overrides, **best.params}, trust=True)
    values = yaml.safe_load(config_text(loaded))
    name, figures = settings.metric, _mean(winner["score"], winner["low"], winner["high"])
    lines = [f"# Trial {best.number} of a sweep of {settings.recipe}: {shown(best.params)}"]
    lines.append(f"# {name} {figures} over {plural(settings.seeds, 'seed')} of the sweep")
    if winner["fresh_score"] is not None:
        fresh = _mean(winner["fresh_score"], winner["fresh_low"], winner["fresh_high"])
        lines.append(f"# {name} {fresh} over {plural(len(winner['fresh']), 'fresh seed')}")
    body: str = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    return "\n".join([*lines, body])


def _mean(mean: float | None, low: float | None, high: float | None) -> str:
    if mean is None:
        return "-"
    return short_number(mean) + (
        f" [{short_number(low)}, {short_number(high)}]" if low is not None and high is not None else ""
    )


def show_results(results: Mapping[str, Any]) -> list[str]:
    """Return the results as lines of text: the trials, best first, the winner, importance and hours."""
    settings = results["settings"]
    metric, hours = settings["objectives"][0], len(settings["objectives"]) > 1
    sign = 1.0 if settings["minimize"] else -1.0
    order = {"finished": 0, "running": 1, "stopped": 2, "failed": 3}
    trials = sorted(
        results["trials"],
        key=lambda t: (order[t["state"]], -t["at"], sign * t["score"] if t["score"] is not None else 0.0, t["number"]),
    )
    rows = []
    for trial in trials:
        mark = "*" if trial["number"] in results["pareto"] else ""
        rows.append(
            [
                f"{trial['number']}{mark}",
                _mean(trial["score"], trial["low"], trial["high"]),
                trial["state"] if trial["at"] in (0.0, 1.0) else f"{trial['state']} at {trial['at']:.0%}",
                duration(trial["seconds"]),
                shown(trial["params"]),
            ]
        )
    lines = [f"{settings['recipe']}: {plural(len(trials), 'trial')} of {plural(settings['seeds'], 'seed')}", ""]
    lines += wide_table(["trial", metric, "state", "time", "point"], rows)
    if hours:
        lines += ["", *sentence("* no other trial has both a better score and fewer hours (Pareto front)", 0)]
    lines += ["", *_show_winner(results, metric)]
    if results["importance"]:
        shares = ", ".join(f"{key} {share:.0%}" for key, share in results["importance"].items())
        finished = sum(trial["state"] == "finished" for trial in trials)
        few = ", too few to rely on" if finished < FEW_FOR_IMPORTANCE else ""
        lines += sentence(f"Importance (PED-ANOVA of {plural(finished, 'finished trial')}{few}): {shares}.", 0)
    failed = [trial for trial in results["trials"] if trial["state"] == "failed"]
    lines += [line for trial in failed for line in sentence(f"Trial {trial['number']} failed: {trial['reason']}", 0)]
    lines += _show_refused(results["refused"])
    spent = results["hours"]["spent"]
    planned = results["hours"]["planned"]
    limit = f" of {duration(planned * 3600)} planned" if planned is not None else ""
    lines += sentence(f"Time: {duration(spent * 3600)}{limit}.", 0)
    return lines


def wide_table(header: list[str], rows: list[list[str]]) -> list[str]:
    """Format columns without a limit of the width: the last one is the point."""
    widths = [max(len(line[i]) for line in [header, *rows]) for i in range(len(header) - 1)]
    lines = []
    for cells in [header, *rows]:
        aligned = "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=False))
        lines.append(f"  {aligned}  {cells[-1]}".rstrip())
    return lines


def _show_winner(results: Mapping[str, Any], metric: str) -> list[str]:
    winner = results["winner"]
    if winner is None:
        return ["No trial has finished yet."]
    seeds = plural(results["settings"]["seeds"], "seed")
    figures = _mean(winner["score"], winner["low"], winner["high"])
    text = f"Best: trial {winner['trial']}, {metric} {figures} over {seeds} of the sweep"
    if winner["fresh_score"] is None:
        return sentence(f"{text}; not run on fresh seeds yet, so this figure is that of the luckiest.", 0)
    fresh = _mean(winner["fresh_score"], winner["fresh_low"], winner["fresh_high"])
    count = len(winner["fresh"])
    wanted = results["settings"]["final_seeds"]
    seeds = plural(count, "fresh seed") if winner["confirmed"] else f"{count} of {plural(wanted, 'fresh seed')}"
    return sentence(f"{text}; {metric} {fresh} over {seeds}.", 0)


def _show_refused(refused: list[dict[str, Any]]) -> list[str]:
    """Return the reasons for which points were not run, the commonest first."""
    counts: dict[str, int] = {}
    for one in refused:
        first = one["reason"].splitlines()[0] if one["reason"] else ""
        counts[first] = counts.get(first, 0) + 1
    shown_reasons = sorted(counts.items(), key=lambda entry: -entry[1])[:MAX_REASONS]
    return [
        line for reason, count in shown_reasons for line in sentence(f"Not run, {plural(count, 'point')}: {reason}", 0)
    ]


def read_results(folder: SweepFolder) -> dict[str, Any]:
    """Return the results of a sweep as they are now. Nothing is written."""
    settings = folder.settings()
    path = folder.path / RESULTS
    if path.exists():
        results = read_json_object(path)
    else:
        results = {"settings": asdict(settings), "refused": [], "pareto": [], "importance": {}, "winner": None}
    trials = folder.trials()
    best = best_of(trials, settings)
    return {
        **results,
        "settings": asdict(settings),
        "trials": [_trial(folder, settings, trial) for trial in trials],
        "best": None if best is None else best.number,
        "winner": None if best is None else _winner(folder, settings, best),
        "hours": {"planned": settings.hours, "spent": folder.seconds_spent() / 3600},
    }


def show_status(folder: SweepFolder) -> str:
    """Return the state of a sweep as text: what runs, what is left, and the table."""
    results = read_results(folder)
    trials, settings = results["trials"], folder.settings()
    working = [t["number"] for t in trials if t["state"] == "running" and _is_held(folder, t["number"])]
    paused = [t["number"] for t in trials if t["state"] == "running" and t["number"] not in working]
    counts = {state: sum(t["state"] == state for t in trials) for state in ("finished", "stopped", "failed")}
    parts = [f"{len(trials)} of {plural(settings.trials, 'trial')} started"]
    parts += [f"{count} {state}" for state, count in counts.items() if count]
    parts += [f"{len(working)} running ({', '.join(map(str, working))})"] if working else []
    parts += [f"{len(paused)} paused ({', '.join(map(str, paused))}): the same command continues"] if paused else []
    return "\n".join([*sentence("; ".join(parts) + ".", 0), "", *show_results(results)])


def _is_held(folder: SweepFolder, number: int) -> bool:
    try:
        lock = folder.try_lock(f"trial{number:04d}")
    except (OSError, MillpondError):
        return False
    if lock is None:
        return True
    lock.release()
    return False
