"""What `data info` and `data audit` print."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import numpy as np

from millpond.cli.output import print_json, print_text
from millpond.data import AuditFinding, Episodes, audit, open_episodes, unfit
from millpond.data.fitting import OBJECTIVES
from millpond.planner.lines import figures, sentence, size, table
from millpond.plurals import plural

BINS = 12
BAR = 40


def print_info(path: str, keys: Sequence[str], images: bool, drop: Sequence[str], as_json: bool) -> None:
    """Episodes, steps, lengths, returns and fields; no frames are read."""
    data = open_episodes(path, keys, images, drop_columns=drop)
    if as_json:
        print_json(_summary(data))
    else:
        print_text("\n".join([*_overview(data), *_fields(data), *_histogram(data.returns)]))


def print_audit(
    path: str, keys: Sequence[str], images: bool, drop: Sequence[str], objective: str | None, as_json: bool
) -> None:
    """All findings; exit 1 where the data is broken, or cannot serve the objective that is asked for."""
    data = open_episodes(path, keys, images, drop_columns=drop)
    with _progress(len(data)) as advance:
        findings = audit(data, advance)
    reasons = unfit(data)
    if as_json:
        fits = {name: reasons.get(name) for name in OBJECTIVES}
        print_json({**_summary(data), "findings": [asdict(finding) for finding in findings], "unfit": fits})
    else:
        lines = [*_overview(data), *_histogram(data.returns), "", *_told(findings), "", "Objectives"]
        for name in OBJECTIVES:
            lines += sentence(f"no: {reasons[name]}" if name in reasons else "yes", 2, f"{name:<9} ")
        print_text("\n".join(lines))
    if objective in reasons or any(finding.severity == "error" for finding in findings):
        sys.exit(1)


def _told(findings: Sequence[AuditFinding]) -> list[str]:
    """Each finding: what, what it means, what to do."""
    if not findings:
        return ["Findings: none"]
    counts = [(sum(f.severity == severity for f in findings), severity) for severity in ("error", "warning", "note")]
    lines = [f"Findings: {', '.join(plural(count, severity) for count, severity in counts if count)}"]
    for finding in findings:
        lines += sentence(f"{finding.code}: {finding.what}.", 2, f"{finding.severity:<8} ")
        lines += sentence(f"{finding.meaning}.", 11)
        lines += sentence(f"-> {finding.fix}", 11)
    return lines


def _overview(data: Episodes) -> list[str]:
    layouts = sorted({source.layout for source in data.sources})
    rows: list[tuple[str, str] | tuple[str, str, str]] = [
        ("episodes", f"{len(data):,}"),
        ("steps", f"{data.total_steps:,}"),
        ("steps an episode", _range(data.lengths)),
    ]
    if data.returns is not None:
        rows.append(("return", _range(data.returns)))
    if data.success is not None:
        rows.append(("succeeded", f"{int(data.success.sum()):,}"))
    if len(data.sources) > 1:
        rows.append(("files", f"{len(data.sources):,}"))
    heading = f"{data.path}: {', '.join(layouts)}"
    return [heading, *figures(rows), *(sentence(f"task: {data.task_names[0]}") if len(data.sources) == 1 else [])]


def _range(values: np.ndarray[Any, Any]) -> str:
    low, high = values.min(), values.max()
    if low == high:
        return f"{low:,.6g} each" if len(values) > 1 else f"{low:,.6g}"
    return f"{low:,.6g} to {high:,.6g}, mean {values.mean():,.6g}"


def _fields(data: Episodes) -> list[str]:
    """All fields that the files have, and whether they are used."""
    first = data.sources[0]
    rows = [
        (name, str(field), "image" if field.is_image else "vector", "yes" if name in data.fields else "no")
        for name, field in first.fields.items()
    ]
    if data.action is not None:
        rows.append((data.action.name, str(data.action), "discrete" if data.discrete else "action", "yes"))
    else:
        rows.append(("actions", "missing", "action", "no"))
    frames = int(data.lengths.sum()) + len(data)
    held = 4 * len(data.columns) * frames + sum(field.nbytes for field in data.images.values()) * frames
    return [
        "",
        *table(("field", "a step", "kind", "used"), rows),
        *sentence(f"{plural(len(data.columns), 'number')} in a vector; all that is used takes {size(held)}."),
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
        bar = "█" * max(round(count / counts.max() * BAR), count > 0)
        lines.append(f"  {low:>{widest},.5g} to {high:>{widest},.5g}  {count:>6,}  {bar}".rstrip())
    return lines


def _summary(data: Episodes) -> dict[str, Any]:
    """The same for programs."""
    returns = data.returns
    known = returns is not None and bool(np.isfinite(returns).all())
    counts, edges = np.histogram(returns if returns is not None and known else [], BINS)
    return {
        "path": data.path,
        "layouts": sorted({source.layout for source in data.sources}),
        "files": [source.path for source in data.sources],
        "tasks": list(data.task_names),
        "episodes": len(data),
        "steps": data.total_steps,
        "lengths": _moments(data.lengths),
        "returns": _moments(returns) if returns is not None and known else None,
        "histogram": {"edges": edges.tolist(), "counts": counts.tolist()} if known else None,
        "succeeded": None if data.success is None else int(data.success.sum()),
        "fields": [
            {
                "name": name,
                "shape": list(field.shape),
                "dtype": str(field.dtype),
                "image": field.is_image,
                "used": name in data.fields,
            }
            for name, field in data.sources[0].fields.items()
        ],
        "columns": list(data.columns),
        "action": None if data.action is None else {"shape": list(data.action.shape), "discrete": data.discrete},
        "final_observations": int(data.final_known.sum()),
        "masks": {name: len(names) for source in data.sources for name, names in source.masks.items()},
    }


def _moments(values: np.ndarray[Any, Any]) -> dict[str, float]:
    return {name: float(getattr(values, name)()) for name in ("min", "max", "mean", "std")}


@contextmanager
def _progress(episodes: int) -> Iterator[Callable[[int], None] | None]:
    """A bar on a terminal's stderr, and nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        reading = bar.add_task("reading episodes", total=episodes)
        yield lambda done: bar.update(reading, completed=done)
