"""The commands `data info`, `data audit` and `reward score`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from millpond.cli.options import BestOption, EpisodesArgument, JsonOption
from millpond.cli.output import print_json, print_text
from millpond.data import AuditFinding, Episodes, audit, open_episodes, unfit
from millpond.data.audit import OBJECTIVES
from millpond.formatting import figures, plural, printable, sentence, size, table

BINS = 12
BAR_WIDTH = 40

data = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Inspect or audit recorded episodes.")

KeysOption = Annotated[
    list[str] | None,
    typer.Option(
        "--key", metavar="FIELD", help="A field of the observations to use, as data.observation_keys; repeatable."
    ),
]
ImagesOption = Annotated[bool, typer.Option("--images", help="Use images too, as data.images=true.")]
DropOption = Annotated[
    list[str] | None,
    typer.Option("--drop", metavar="FIELD:COLUMN", help="A column to leave out, as data.drop_columns; repeatable."),
]
reward = typer.Typer(rich_markup_mode=None, no_args_is_help=True, help="Apply a learned reward.")


class Objective(StrEnum):
    """Objectives that learn a reward, as in reward.objective."""

    lrd = "lrd"
    rrd = "rrd"
    progress = "progress"
    success = "success"


@data.command()
def info(
    path: EpisodesArgument,
    keys: KeysOption = None,
    images: ImagesOption = False,
    drop: DropOption = None,
    json: JsonOption = False,
) -> None:
    """Describe recorded episodes: lengths, returns, fields, and which of the fields are used.

    \b
      millpond data info pendulum
      millpond data info demonstrations/ --key joint_states --key ee_pos
    """
    episodes = open_episodes(path, keys or [], images, drop_columns=drop or [])
    if json:
        print_json(_summary(episodes))
    else:
        print_text("\n".join([*_overview(episodes), *_field_table(episodes), *_histogram(episodes.returns)]))


@data.command("audit")
def audit_episodes(
    path: EpisodesArgument,
    keys: KeysOption = None,
    images: ImagesOption = False,
    drop: DropOption = None,
    objective: Annotated[
        Objective | None,
        typer.Option("--objective", help="Exit with 1 if the episodes do not fit this objective."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Find problems of recorded episodes before anything is learned from them.

    Constant returns, successes only, copies, NaN, actions out of range, clocks among the columns, contradicting flags:
    what each means, and what to do. Exits with 1 if the data is broken; with warnings and notes it exits with 0.

    \b
      millpond data audit pendulum
      millpond data audit demonstrations/ --objective progress
    """
    episodes = open_episodes(path, keys or [], images, drop_columns=drop or [])
    with _progress_bar(len(episodes)) as advance:
        findings = audit(episodes, advance)
    reasons = unfit(episodes)
    if json:
        fits = {name: reasons.get(name) for name in OBJECTIVES}
        print_json({**_summary(episodes), "findings": [asdict(finding) for finding in findings], "unfit": fits})
    else:
        lines = [*_overview(episodes), *_histogram(episodes.returns), "", *_finding_lines(findings), "", "Objectives"]
        for name in OBJECTIVES:
            lines += sentence(f"no: {reasons[name]}" if name in reasons else "yes", 2, f"{name:<9} ")
        print_text("\n".join(lines))
    if objective in reasons or any(finding.severity == "error" for finding in findings):
        sys.exit(1)


def _finding_lines(findings: Sequence[AuditFinding]) -> list[str]:
    """Lines for each finding: what it is, what it means, what to do."""
    if not findings:
        return ["Findings: none"]
    counts = [(sum(f.severity == severity for f in findings), severity) for severity in ("error", "warning", "note")]
    lines = [f"Findings: {', '.join(plural(count, severity) for count, severity in counts if count)}"]
    for finding in findings:
        lines += sentence(f"{finding.code}: {finding.what}.", 2, f"{finding.severity:<8} ")
        lines += sentence(f"{finding.meaning}.", 11)
        lines += sentence(f"-> {finding.fix}", 11)
    return lines


def _overview(episodes: Episodes) -> list[str]:
    layouts = sorted({source.layout for source in episodes.sources})
    rows: list[tuple[str, str] | tuple[str, str, str]] = [
        ("episodes", f"{len(episodes):,}"),
        ("steps", f"{episodes.total_steps:,}"),
        ("steps per episode", _range(episodes.lengths)),
    ]
    if episodes.returns is not None:
        rows.append(("return", _range(episodes.returns)))
    if episodes.success is not None:
        rows.append(("succeeded", f"{int(episodes.success.sum()):,}"))
    if len(episodes.sources) > 1:
        rows.append(("files", f"{len(episodes.sources):,}"))
    heading = printable(f"{episodes.path}: {', '.join(layouts)}")
    return [
        heading,
        *figures(rows),
        *(sentence(f"task: {episodes.task_names[0]}") if len(episodes.sources) == 1 else []),
    ]


def _range(values: np.ndarray[Any, Any]) -> str:
    low, high = values.min(), values.max()
    if low == high:
        return f"{low:,.6g} each" if len(values) > 1 else f"{low:,.6g}"
    return f"{low:,.6g} to {high:,.6g}, mean {values.mean():,.6g}"


def _field_table(episodes: Episodes) -> list[str]:
    """Table of all fields in the files, and whether they are used."""
    first = episodes.sources[0]
    rows = [
        (name, str(field), "image" if field.is_image else "vector", "yes" if name in episodes.fields else "no")
        for name, field in first.fields.items()
    ]
    if episodes.action is not None:
        rows.append((episodes.action.name, str(episodes.action), "discrete" if episodes.discrete else "action", "yes"))
    else:
        rows.append(("actions", "missing", "action", "no"))
    frames = int(episodes.lengths.sum()) + len(episodes)
    held = 4 * len(episodes.columns) * frames + sum(field.nbytes for field in episodes.images.values()) * frames
    return [
        "",
        *table(("field", "per step", "kind", "used"), rows),
        *sentence(f"{plural(len(episodes.columns), 'number')} per vector; the used fields take {size(held)}."),
    ]


def _histogram(returns: np.ndarray[Any, Any] | None) -> list[str]:
    if returns is None:
        return ["", "Returns: there are no rewards"]
    if not np.isfinite(returns).all():
        return ["", "Returns: some are not finite"]
    if np.ptp(returns) == 0:
        return ["", f"Returns: {returns[0]:,.6g} in every episode"]
    counts, edges = np.histogram(returns, BINS)
    widest = max(len(f"{edge:,.5g}") for edge in edges)
    lines = ["", "Returns"]
    for low, high, count in zip(edges[:-1], edges[1:], counts.tolist(), strict=True):
        bar = "█" * max(round(count / counts.max() * BAR_WIDTH), count > 0)
        lines.append(f"  {low:>{widest},.5g} to {high:>{widest},.5g}  {count:>6,}  {bar}".rstrip())
    return lines


def _summary(episodes: Episodes) -> dict[str, Any]:
    """Return the facts that `--json` prints."""
    returns = episodes.returns
    known = returns is not None and bool(np.isfinite(returns).all())
    counts, edges = np.histogram(returns if returns is not None and known else [], BINS)
    return {
        "path": episodes.path,
        "layouts": sorted({source.layout for source in episodes.sources}),
        "files": [source.path for source in episodes.sources],
        "tasks": list(episodes.task_names),
        "episodes": len(episodes),
        "steps": episodes.total_steps,
        "lengths": _moments(episodes.lengths),
        "returns": _moments(returns) if returns is not None and known else None,
        "histogram": {"edges": edges.tolist(), "counts": counts.tolist()} if known else None,
        "succeeded": None if episodes.success is None else int(episodes.success.sum()),
        "fields": [
            {
                "name": name,
                "shape": list(field.shape),
                "dtype": str(field.dtype),
                "image": field.is_image,
                "used": name in episodes.fields,
            }
            for name, field in episodes.sources[0].fields.items()
        ],
        "columns": list(episodes.columns),
        "action": None
        if episodes.action is None
        else {"shape": list(episodes.action.shape), "discrete": episodes.discrete},
        "final_observations": int(episodes.final_known.sum()),
        "masks": {name: len(names) for source in episodes.sources for name, names in source.masks.items()},
    }


def _moments(values: np.ndarray[Any, Any]) -> dict[str, float]:
    return {name: float(getattr(values, name)()) for name in ("min", "max", "mean", "std")}


@contextmanager
def _progress_bar(episodes: int) -> Iterator[Callable[[int], None] | None]:
    """Show a progress bar if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        reading = bar.add_task("reading episodes", total=episodes)
        yield lambda done: bar.update(reading, completed=done)


@reward.command()
def score(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name or folder of a run of kind reward.")],
    path: EpisodesArgument,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Output file: .npz or .hdf5; default: NAME-reward.npz.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Plot the reward and its sum over time: .png or .svg.")
    ] = None,
    episodes: Annotated[
        str | None,
        typer.Option("--episodes", metavar="0,2,5", help="Episodes to print and plot; default: the first four."),
    ] = None,
    best: BestOption = False,
    json: JsonOption = False,
) -> None:
    """Write the learned reward of every step of recorded episodes, for use elsewhere.

    \b
      millpond reward score reward-1 pendulum --plot rewards.png --episodes 0,1
    """
    from millpond.trainers.reward.evaluation import draw_scores, parse_episodes, score_run, write_scores

    scores = score_run(run, path, best=best)
    chosen = parse_episodes(episodes, len(scores.rewards))
    target = out if out is not None else Path(f"{Path(path).stem}-reward.npz")
    write_scores(scores, target)
    if plot is not None:
        draw_scores(scores, chosen, plot)
    if json:
        print_json(
            {
                "run": run,
                "checkpoint_updates": scores.updates,
                "objective": scores.objective,
                "file": str(target),
                "plot": None if plot is None else str(plot),
                "episodes": [
                    {"name": name, "steps": len(rewards), "predicted_return": float(rewards.sum(dtype="float64"))}
                    for name, rewards in zip(scores.names, scores.rewards, strict=True)
                ],
            }
        )
        return
    rows = [
        (
            scores.names[episode],
            f"{scores.rewards[episode].sum(dtype='float64'):.4f}",
            plural(len(scores.rewards[episode]), "step"),
        )
        for episode in chosen
    ]
    lines = [
        f"{plural(len(scores.rewards), 'episode')} scored by {run} ({scores.objective}, {plural(scores.updates, 'update')})",
        "Sum of the learned rewards",
        *figures(rows),
        f"rewards: {target}",
    ]
    print_text("\n".join(lines + ([f"picture: {plot}"] if plot is not None else [])))
