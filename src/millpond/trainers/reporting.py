"""The report of a run: an episode of its policy is drawn here, the page is written by `millpond.report`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from millpond.errors import MillpondError
from millpond.plurals import plural
from millpond.report import Picture, write_report
from millpond.store import Run, find_run
from millpond.store.saved import saved_checkpoints

LONGEST = 512  # frames of a GIF


def report_run(folder: Path) -> Path:
    """Write a run's report, with an episode where its world can be drawn."""
    return write_report(folder, draw_episode(folder))


def report_at_end(run: Run) -> None:
    """The report at the end of training. Whatever goes wrong with it is told, and the run is none the worse."""
    try:
        report_run(run.folder)
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        print(
            f"the report of run {run.name} could not be written ({told}); try: millpond report {run.name}",
            file=sys.stderr,
        )


def find_reportable(root: Path, name: str) -> Path:
    """The folder of a run, or any folder with a metrics.jsonl."""
    folder = Path(name)
    return folder if (folder / "metrics.jsonl").is_file() else find_run(root, name)


def draw_episode(folder: Path) -> Picture | None:
    """One episode of the best checkpoint, or the newest where none was evaluated; None where nothing was saved."""
    from millpond.trainers.play import evaluate_run

    saved, _ = saved_checkpoints(folder / "checkpoints")
    if not saved:
        return None
    best = any(checkpoint.best for checkpoint in saved)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "episode.gif"
        try:
            evaluation, updates = evaluate_run(str(folder), episodes=1, best=best, render=path, frames_at_most=LONGEST)
        except (MillpondError, ImportError, OSError) as error:
            return Picture(None, f"No picture: {error}")
        length = evaluation.lengths[0]
        part = f"the first {LONGEST} of {length:,}" if length > LONGEST else f"{length:,}"
        which = "best checkpoint" if best else "newest checkpoint"
        words = f"{part} env steps, return {evaluation.mean:.4g}; {which}, after {plural(updates, 'update')}"
        return Picture(path.read_bytes(), words)
