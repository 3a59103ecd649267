"""Whether a run is running, finished, stopped or failed."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from millpond.durable import replace_json
from millpond.store.process import Process

State = Literal["running", "finished", "stopped", "failed"]
FILE = "state.json"
SETTING_UP = "being set up"  # the note of a new run until it trains


@dataclass(frozen=True)
class Status:
    """A run's state, since when, why, and the process that said so."""

    state: State
    note: str
    since: float
    process: Process


def write_status(folder: Path, state: State, note: str = "") -> None:
    replace_json(
        folder / FILE, {"state": state, "note": note, "since": time.time(), "process": Process.this().as_dict()}
    )


def read_status(folder: Path) -> Status:
    """The state of a run. One that says it runs, but whose process is gone, has failed."""
    try:
        said = json.loads((folder / FILE).read_text())
        status = Status(said["state"], said["note"], said["since"], Process(**said["process"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Status("failed", f"{FILE} cannot be read: {error}", folder.stat().st_mtime, Process(0, "", ""))
    if status.state == "running" and not status.process.is_alive():
        note = f"its process {status.process.pid} died without a word"
        if status.note == SETTING_UP:
            note = f"its process {status.process.pid} died while the run was being set up: nothing was trained"
        return Status("failed", note, status.since, status.process)
    return status


def died_in_setup(folder: Path) -> bool:
    """True for the folder of a new run whose process died before it trained anything."""
    try:
        note = json.loads((folder / FILE).read_text())["note"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(note == SETTING_UP) and read_status(folder).state == "failed"
