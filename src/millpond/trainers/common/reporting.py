"""The end of a run: its summary, and its report with an episode of its policy."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from millpond.config import PPORecipe
from millpond.errors import MillpondError
from millpond.planner.lines import figures, number
from millpond.plurals import plural
from millpond.report import Picture, write_report
from millpond.report.evaluation import baseline_returns, normalized_return
from millpond.store import NothingToPlayError, Run, find_run
from millpond.store.checkpoints import list_checkpoints
from millpond.trainers.common.evaluate import Evaluation

LONGEST = 512  # frames of a GIF


def report_run(folder: Path) -> Path:
    """Write a run's report, with an episode where its environment can be drawn."""
    return write_report(folder, draw_episode(folder))


def report_at_end(run: Run) -> Picture | None:
    """Write the report at the end of training and return its picture. A failure is printed and ends nothing else."""
    picture = None
    try:
        picture = draw_episode(run.folder)
        write_report(run.folder, picture)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        print(
            f"the report of run {run.name} could not be written ({reason}); try: millpond report {run.reference}",
            file=sys.stderr,
        )
    return picture


def next_steps(run: Run, picture: Picture | None, *, longer: str) -> list[str]:
    """Lines that end a run's summary: where it is, and the commands that use it. `longer` is a key that extends it."""
    drawn = picture is not None and picture.gif is not None
    return [
        f"Run folder: {run.folder}",
        *([f"Report: {run.report_path}"] if run.report_path.is_file() else []),
        *([f"  millpond eval {run.reference} --episodes 100"] if picture is not None else []),
        *([f"  millpond eval {run.reference} --episodes 1 --render {run.name}.gif"] if drawn else []),
        f"  {run.resume_command} {longer}=...   # longer",
    ]


def find_reportable(root: Path, name: str) -> Path:
    """The folder of a run, or any folder with a metrics.jsonl."""
    folder = Path(name)
    return folder if (folder / "metrics.jsonl").is_file() else find_run(root, name)


def draw_episode(folder: Path) -> Picture | None:
    """Draw one episode of the best checkpoint, or of the newest where none was evaluated.

    None where nothing was saved or there is no agent. Whatever goes wrong, in the environment's own code too, becomes the
    reason why there is no picture: a report does without.
    """
    from millpond.trainers.common.play import evaluate_run

    saved, _ = list_checkpoints(folder / "checkpoints")
    if not saved:
        return None
    best = any(checkpoint.best for checkpoint in saved)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "episode.gif"
        try:
            evaluation, policy = evaluate_run(str(folder), episodes=1, best=best, render=path, frames_at_most=LONGEST)
        except NothingToPlayError:
            return None
        except Exception as error:
            return Picture(None, f"No picture: {_reason(error)}")
        length = evaluation.lengths[0]
        part = f"the first {LONGEST} of {length:,}" if length > LONGEST else f"{length:,}"
        words = f"{part} env steps, return {evaluation.mean:.4g}; {policy.description}"
        return Picture(path.read_bytes(), words)


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, MillpondError) else f"{type(error).__name__}: {error}"


def summarise(
    recipe: PPORecipe, evaluation: Evaluation | None, shares: Mapping[str, float], steps_per_second: float
) -> list[str]:
    """Return the lines of a summary: return beside the scripted players, speed, time by phase."""
    lines: list[str] = []
    if evaluation is not None:
        low, high = evaluation.interval()
        rows = [("learned", f"{evaluation.mean:.3f}", f"95% interval {low:.3f} to {high:.3f}")]
        baselines = baseline_returns(recipe.env)
        rows += [(name, f"{value:.3f}", "scripted player") for name, value in baselines.items()]
        normalized = normalized_return(evaluation.mean, baselines)
        if normalized is not None:
            rows.append(("(learned - random) / (greedy - random)", f"{normalized:.2f}", ""))
        lines += [f"Return, mean of {plural(len(evaluation.lengths), 'episode')} on seeds of their own", *figures(rows)]
    spent = [(name, f"{of_all:.0%}", "") for name, of_all in shares.items() if of_all >= 0.005]
    return [*lines, "", f"Time: {number(round(steps_per_second))} agent steps a second", *figures(spent)]
