"""Tags and notes of a run, in `board.json` of its folder, and the request to stop: all that the board writes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from millpond.durable import replace_json
from millpond.errors import MillpondError
from millpond.safe_read import parse_json_object, read_regular
from millpond.store import read_status
from millpond.store.stop import request_stop, stop_requested

LABELS = "board.json"
LABEL_BYTES = 1 << 16
MAX_TAGS, MAX_TAG, MAX_NOTE = 20, 40, 4000


class LabelError(MillpondError):
    """A tag or note that is not accepted, or a run that cannot be stopped."""

    one_line = True


@dataclass(frozen=True)
class Labels:
    """Tags and note of a run. `stopping`: it was asked to stop, and has not done so yet."""

    tags: tuple[str, ...] = ()
    note: str = ""
    stopping: bool = False


def read_labels(folder: Path) -> Labels:
    """Read the labels of a run; none if there is no usable file."""
    stopping = stop_requested(folder)
    if not os.path.lexists(folder / LABELS):
        return Labels(stopping=stopping)
    try:
        values = parse_json_object(read_regular(folder / LABELS, LABEL_BYTES), LABELS)
        tags, note = _checked(values.get("tags", []), values.get("note", ""))
    except MillpondError:
        return Labels(stopping=stopping)
    return Labels(tags, note, stopping)


def write_labels(folder: Path, tags: object, note: object) -> None:
    """Replace tags and note of a run."""
    checked_tags, checked_note = _checked(tags, note)
    if (folder / LABELS).is_symlink():  # the file is replaced, not followed; a link there is not ours
        raise LabelError(f"{LABELS} of this run is a symbolic link; delete it")
    values = asdict(Labels(checked_tags, checked_note))
    replace_json(folder / LABELS, {name: values[name] for name in ("tags", "note")})


def ask_to_stop(folder: Path) -> None:
    """Request that a run saves and stops when its iteration ends."""
    status = read_status(folder)
    if status.state != "running":
        raise LabelError(f"run {folder.name} is {status.state}; only a running one can be stopped")
    request_stop(folder)


def _checked(tags: object, note: object) -> tuple[tuple[str, ...], str]:
    if not isinstance(tags, Sequence) or isinstance(tags, str) or len(tags) > MAX_TAGS:
        raise LabelError(f"tags must be a list of at most {MAX_TAGS}")
    if not all(isinstance(tag, str) and 0 < len(tag.strip()) <= MAX_TAG for tag in tags):
        raise LabelError(f"a tag must be text of 1 to {MAX_TAG} characters")
    if not isinstance(note, str) or len(note) > MAX_NOTE:
        raise LabelError(f"a note must be text of at most {MAX_NOTE:,} characters")
    return tuple(dict.fromkeys(tag.strip() for tag in tags)), note
