"""The end of a run: its summary, and its report with an episode of its policy."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from millpond.config import PPORecipe
from millpond.errors import MillpondError
from millpond.formatting import figures, number, plural, printable
from millpond.report import Picture, write_report
from millpond.report.summary import baseline_returns, normalized_return
from millpond.store import NothingToPlayError, Run, find_run
from millpond.store.checkpoints import list_checkpoints
from millpond.trainers.common.play import Evaluation
from millpond.trust import TrustError

MAX_FRAMES = 512  # frames of a GIF


def report_run(folder: Path) -> tuple[Path, Picture | None]:
    """Write a run's report, with an episode if its environment can be rendered; return its path and the picture.

    Code that the run names is imported only if it is trusted already: a report asks nothing.
    """
    picture = draw_episode(folder, trust=False)
    return write_report(folder, picture), picture


def report_at_end(run: Run) -> Picture | None:
    """Write the report at the end of training, if the run wants one, and return its picture. A failure is only printed."""
    if not run.writes_report:
        return None
    picture = None
    try:
        picture = draw_episode(run.folder, trust=True)  # this process has just trained it
        write_report(run.folder, picture)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        text = f"the report of run {run.name} could not be written ({reason}); try: millpond report {run.reference}"
        print(printable(text), file=sys.stderr)
    return picture


def next_steps(run: Run, picture: Picture | None, *, longer: str) -> list[str]:
    """Return the last lines of a run's summary: its folder, and commands that use it. `longer`: key that extends it."""
    drawn = picture is not None and picture.gif is not None
    return [
        f"Run folder: {run.shown}",
        *([f"Report: {run.shown / run.report_path.name}"] if run.report_path.is_file() else []),
        *([f"  millpond eval {run.reference} --episodes 100"] if picture is not None else []),
        *([f"  millpond eval {run.reference} --episodes 1 --render {run.name}.gif"] if drawn else []),
        f"  {run.resume_command} {longer}=...   # longer",
    ]


def find_reportable(root: Path, name: str) -> Path:
    """Return the folder of a run, or any folder with a metrics.jsonl."""
    folder = Path(name)
    return folder if (folder / "metrics.jsonl").is_file() else find_run(root, name)


def draw_episode(folder: Path, *, trust: bool) -> Picture | None:
    """Render one episode of the best checkpoint, or of the newest if none was evaluated.

    Returns None without a checkpoint or an agent. Any error, also one in the environment's code, becomes the reason why
    there is no picture: the report is written without one. `trust`: import the code that the run names in any case.
    """
    from millpond.trainers.common.play import evaluate_run

    saved, _ = list_checkpoints(folder / "checkpoints")
    if not saved:
        return None
    best = any(checkpoint.best for checkpoint in saved)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "episode.gif"
        try:
            evaluation, policy = evaluate_run(
                str(folder), episodes=1, best=best, render=path, max_frames=MAX_FRAMES, trust=trust
            )
        except NothingToPlayError:
            return None
        except TrustError as error:
            caption = (
                f"No picture: a report does not import code that a stranger's run names, {error.code}. If you trust it, "
                f"`millpond eval {folder} --trust --render FILE.gif` draws an episode"
            )
            return Picture(None, caption, refused=True)
        except Exception as error:
            return Picture(None, f"No picture: {_reason(error)}")
        length = evaluation.lengths[0]
        part = f"the first {MAX_FRAMES} of {length:,}" if length > MAX_FRAMES else f"{length:,}"
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
        rows += [(name, f"{mean:.3f}", "agent") for name, mean in evaluation.agent_returns.items()]
        lines += [f"Return, mean of {plural(len(evaluation.lengths), 'episode')} on separate seeds", *figures(rows)]
    spent = [(name, f"{of_all:.0%}", "") for name, of_all in shares.items() if of_all >= 0.005]
    return [*lines, "", f"Time: {number(round(steps_per_second))} agent steps per second", *figures(spent)]
