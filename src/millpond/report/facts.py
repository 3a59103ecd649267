"""The facts that a report shows, read from a run's folder. Missing or damaged files are noted and skipped."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millpond.config.yaml import LARGEST_FILE, parse
from millpond.errors import MillpondError
from millpond.kinds import KINDS
from millpond.record import HEADLINES, Record, read_records
from millpond.report.markup import Block
from millpond.safe_read import JSON_BYTES, parse_json, read_regular
from millpond.store import RunStatus, read_status, read_warnings
from millpond.store.checkpoints import CheckpointInfo, list_checkpoints

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Picture:
    """An episode of the policy as a GIF; without one, the caption says why.

    `refused`: there is none because the run names code that the user has not trusted.
    """

    gif: bytes | None
    caption: str
    refused: bool = False


@dataclass(frozen=True)
class Facts:
    """Contents of a run's folder. `problems` are sentences about files that could not be read."""

    folder: Path
    kind: str
    config_text: str
    config: Mapping[str, Any]
    plan: Mapping[str, Any]
    host: Mapping[str, Any]
    status: RunStatus | None
    records: list[Record]
    axis: str
    checkpoints: list[CheckpointInfo]
    warnings: list[dict[str, Any]] = field(default_factory=list)  # of `warnings.jsonl`
    picture: Picture | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def last(self) -> Record:
        return self.records[-1] if self.records else {}

    @property
    def best(self) -> CheckpointInfo | None:
        """The best checkpoint by evaluation, of those that still exist."""
        return next((saved for saved in self.checkpoints if saved.best), None)

    @property
    def has_agent(self) -> bool:
        """True if an agent acts in an environment; False for a reward learned from recorded episodes."""
        kind = self.kind_report
        return kind is None or kind.has_agent(self)

    @property
    def kind_report(self) -> KindReport | None:
        """The part of a report that is specific to this kind of run; None for an unknown kind."""
        return KINDS[self.kind].report.load() if self.kind in KINDS else None

    @property
    def score_name(self) -> str:
        """Name of the score of evaluations: the return, or the headline metric of a learned reward."""
        if self.has_agent:
            return "return"
        return next((name for name in HEADLINES if any(name in record for record in self.records)), "score")

    def setting(self, key: str, default: Any = None) -> Any:
        """Return a setting by its dotted key."""
        value: Any = self.config
        for part in key.split("."):
            if not isinstance(value, Mapping) or part not in value:
                return default
            value = value[part]
        return value


@dataclass(frozen=True)
class KindReport:
    """The part of a report that differs between kinds of runs."""

    has_agent: Callable[[Facts], bool]  # an agent acts in an environment
    subject: Callable[[Facts], list[list[str]]]  # rows of the summary about the networks that are trained
    sections: tuple[Callable[[Facts], Block | None], ...] = ()  # between results and curves


def read_facts(folder: Path, picture: Picture | None = None) -> Facts:
    """Read a run's folder. Only `metrics.jsonl` is required, and it may be empty."""
    problems: list[str] = []
    config_text = _text(folder / "config.yaml", LARGEST_FILE, problems)
    config = _mapping(folder / "config.yaml", config_text, parse, problems)
    plan, host = (
        _mapping(folder / name, _text(folder / name, JSON_BYTES, problems), _parse_json, problems)
        for name in ("plan.json", "host.json")
    )
    records = _records(folder / "metrics.jsonl", problems)
    checkpoints, damaged = list_checkpoints(folder / "checkpoints")
    problems += damaged
    return Facts(
        folder=folder,
        kind=str(plan.get("kind", config.get("kind", UNKNOWN))),
        config_text=config_text,
        config=config,
        plan=plan,
        host=host,
        status=read_status(folder) if os.path.lexists(folder / "state.json") else None,
        records=records,
        axis=axis_of(records, config),
        checkpoints=checkpoints,
        warnings=_warnings(folder, problems),
        picture=picture,
        problems=problems,
    )


def axis_of(records: list[Record], config: Mapping[str, Any]) -> str:
    """Return the x axis of curves: the one that the config names, else agent steps, or updates if nothing acted."""
    log = config.get("log")
    named = log.get("axis", "auto") if isinstance(log, Mapping) else "auto"
    if named != "auto":
        return str(named)
    return "agent_steps" if any(record.get("agent_steps") for record in records) else "updates"


def _text(path: Path, limit: int, problems: list[str]) -> str:
    try:
        return read_regular(path, limit).decode("utf-8")
    except MillpondError as error:
        problems.append(str(error))
    except UnicodeDecodeError as error:
        problems.append(f"{path.name} cannot be read: it is not UTF-8 text (byte {error.start:,})")
    return ""


def _parse_json(text: str, name: str) -> Any:
    return parse_json(text, name, finite=False)


def _mapping(path: Path, text: str, parse: Callable[[str, str], Any], problems: list[str]) -> Mapping[str, Any]:
    try:
        content = parse(text, path.name) if text else {}
    except MillpondError as error:
        problems.append(str(error))
        return {}
    if not isinstance(content, Mapping):
        problems.append(f"{path.name} is not a mapping")
        return {}
    return content


def _warnings(folder: Path, problems: list[str]) -> list[dict[str, Any]]:
    try:
        return read_warnings(folder)
    except MillpondError as error:
        problems.append(str(error))
        return []


def _records(path: Path, problems: list[str]) -> list[Record]:
    """Return all records before the first line that is not one."""
    records: list[Record] = []
    try:
        for record in read_records(path):
            records += [record]
    except (MillpondError, OSError) as error:
        problems.append(f"{error}; curves end before it")
    return records
