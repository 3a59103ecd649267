"""Everything that a report tells of a run, read from its folder. What is missing or damaged is noted, and left out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from millpond.errors import MillpondError
from millpond.kinds import KINDS
from millpond.record import HEADLINES, Record, read_records
from millpond.report.markup import Block
from millpond.store import Status, read_status
from millpond.store.checkpoints import Saved, saved_checkpoints

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Picture:
    """An episode of the policy as a GIF, or why there is none."""

    gif: bytes | None
    words: str


@dataclass(frozen=True)
class Facts:
    """A run as its folder tells it. `problems` are sentences about what could not be read."""

    folder: Path
    kind: str
    config_text: str
    config: Mapping[str, Any]
    plan: Mapping[str, Any]
    host: Mapping[str, Any]
    status: Status | None
    records: list[Record]
    axis: str
    checkpoints: list[Saved]
    picture: Picture | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def last(self) -> Record:
        return self.records[-1] if self.records else {}

    @property
    def best(self) -> Saved | None:
        """The best checkpoint by evaluation that is still there."""
        return next((saved for saved in self.checkpoints if saved.best), None)

    @property
    def acts(self) -> bool:
        """True if an agent acts in an environment; a reward learned from recorded episodes needs neither."""
        kind = self.kind_report
        return kind is None or kind.acts(self)

    @property
    def kind_report(self) -> KindReport | None:
        """What reports of this kind of run add; None for a kind that is not known."""
        return KINDS[self.kind].report.load() if self.kind in KINDS else None

    @property
    def score_name(self) -> str:
        """What evaluations measure: the return, or the headline of a learned reward."""
        if self.acts:
            return "return"
        return next((name for name in HEADLINES if any(name in record for record in self.records)), "score")

    def setting(self, key: str, otherwise: Any = None) -> Any:
        """A setting by its dotted key."""
        found: Any = self.config
        for part in key.split("."):
            if not isinstance(found, Mapping) or part not in found:
                return otherwise
            found = found[part]
        return found


@dataclass(frozen=True)
class KindReport:
    """What reports of one kind of run add to what every report has."""

    acts: Callable[[Facts], bool]  # an agent acts in an environment
    trained: Callable[[Facts], list[list[str]]]  # rows on the networks, for the summary
    sections: tuple[Callable[[Facts], Block | None], ...] = ()  # between the results and the curves


def read_facts(folder: Path, picture: Picture | None = None) -> Facts:
    """Read a run's folder. Only `metrics.jsonl` is needed, and even that may be empty."""
    problems: list[str] = []
    config_text = _text(folder / "config.yaml", problems)
    config = _mapping(folder / "config.yaml", config_text, yaml.safe_load, problems)
    plan = _mapping(folder / "plan.json", _text(folder / "plan.json", problems), json.loads, problems)
    host = _mapping(folder / "host.json", _text(folder / "host.json", problems), json.loads, problems)
    records = _records(folder / "metrics.jsonl", problems)
    checkpoints, damaged = saved_checkpoints(folder / "checkpoints")
    problems += damaged
    return Facts(
        folder=folder,
        kind=str(plan.get("kind", config.get("kind", UNKNOWN))),
        config_text=config_text,
        config=config,
        plan=plan,
        host=host,
        status=read_status(folder) if (folder / "state.json").exists() else None,
        records=records,
        axis=axis_of(records, config),
        checkpoints=checkpoints,
        picture=picture,
        problems=problems,
    )


def axis_of(records: list[Record], config: Mapping[str, Any]) -> str:
    """What curves are drawn over: what the config names, else agent steps, or updates where nothing acted."""
    log = config.get("log")
    named = log.get("axis", "auto") if isinstance(log, Mapping) else "auto"
    if named != "auto":
        return str(named)
    return "agent_steps" if any(record.get("agent_steps") for record in records) else "updates"


def _text(path: Path, problems: list[str]) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"{path.name} cannot be read: {error}")
        return ""


def _mapping(path: Path, text: str, parse: Any, problems: list[str]) -> Mapping[str, Any]:
    try:
        found = parse(text) if text else {}
    except (ValueError, yaml.YAMLError) as error:
        problems.append(f"{path.name} cannot be read: {error}")
        return {}
    if not isinstance(found, Mapping):
        problems.append(f"{path.name} holds no settings")
        return {}
    return found


def _records(path: Path, problems: list[str]) -> list[Record]:
    """All records up to the first line that is none."""
    records: list[Record] = []
    try:
        for record in read_records(path):
            numbers = {name: value for name, value in record.items() if isinstance(value, int | float)}
            records += [numbers]
    except (MillpondError, OSError) as error:
        problems.append(f"{error}; curves end before it")
    return records
