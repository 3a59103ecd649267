"""Read PufferLib's `.ini` files: find out which version a file is for, and translate it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from millpond.config.puffer import v3, v4
from millpond.config.puffer.ini import AGENTS_OPEN, PufferConfig, parse
from millpond.config.yaml import RecipeFileError, read_text

__all__ = ["AGENTS_OPEN", "read", "read_file"]

DEFAULT_FILE = "default.ini"
# Keys that say which version trains a file. PufferLib 4 does not read the others of `v3.ONLY`, which many of its files still
# have, and [policy] of PufferLib 3 holds the arguments of any network.
SIZES_OF_3 = {"vec.num_envs", "vec.num_workers", "vec.batch_size", "vec.backend", "base.rnn_name"}
SIZES_OF_4 = {"vec.total_agents"}
NETWORK = {"policy.num_layers", "policy.expansion_factor"}
# PufferLib 2 has its sizes in [train]: key there -> key of PufferLib 3.
SIZES_OF_2 = {
    "train.num_envs": "vec.num_envs",
    "train.num_workers": "vec.num_workers",
    "train.env_batch_size": "vec.batch_size",
    "base.vec": "vec.backend",
}


def read_file(path: Path) -> PufferConfig:
    """Translate a file, on top of the `default.ini` of its configuration folder if there is one, as PufferLib reads it."""
    below = _default_file(path)
    if below is None:
        return read(read_text(path), str(path))
    config = read(read_text(path), str(path), parse(read_text(below), str(below)))
    return replace(config, notes=(f"read on top of {below}, as PufferLib does", *config.notes))


def read(text: str, source: str, below: Mapping[str, Any] | None = None) -> PufferConfig:
    """Translate a file to what the PufferLib it was written for would do with it.

    `below` are the values of its `default.ini`.
    """
    own = parse(text, source)
    _refuse_version_2(own, source)
    file = {**(below or {}), **own}
    version = v4 if _is_for_v4(file, source) else v3
    config: PufferConfig = version.translate(file, source)
    ignored = tuple(key for key in config.ignored if key in own)
    notes = [*config.notes, *_misspelled(ignored, {*version.SAME, *version.WORKED_OUT}, config.version)]
    if not file.get("base.env_name"):
        notes.append(
            "the file names no environment (base.env_name; PufferLib asks for it on its command line): set env.id"
        )
    return replace(config, ignored=ignored, notes=tuple(notes))


def _misspelled(ignored: Iterable[str], known: Iterable[str], version: str) -> Iterator[str]:
    """Yield a note for each ignored key that nearly is a known one."""
    for key in ignored:
        for meant in difflib.get_close_matches(key, known, 1, cutoff=0.9):
            yield f"{key} is no key of PufferLib {version}, so it is ignored; {meant} is one"


def _default_file(path: Path) -> Path | None:
    """Return the `default.ini` beside a file, or one folder above as in PufferLib's `config/ocean/`."""
    if path.name == DEFAULT_FILE:
        return None
    folder = path.resolve().parent
    folders = [path.parent, *([path.parent.parent] if folder.parent.name == "config" else [])]
    return next((found for one in folders if (found := one / DEFAULT_FILE).is_file()), None)


def _is_for_v4(file: Mapping[str, Any], source: str) -> bool:
    """True if a file has keys that only PufferLib 4 and later have. Sizes of both are an error: they would be guessed."""
    new, old = ({key for key in file if key in only} for only in (v4.ONLY | v4.ONLY_5, v3.ONLY))
    if new & SIZES_OF_4 and not old & SIZES_OF_3:
        return True
    if old & SIZES_OF_3 and new <= NETWORK:
        return False
    if new and old:
        raise RecipeFileError(
            f"{source} mixes keys of PufferLib 4 ({', '.join(sorted(new))}) and of PufferLib 3 "
            f"({', '.join(sorted(old))}); remove those of one version"
        )
    return bool(new)


def _refuse_version_2(own: Mapping[str, Any], source: str) -> None:
    """Raise for a file of PufferLib 2: with its sizes ignored, it would be planned with the default number of envs."""
    sizes = {key: new for key, new in SIZES_OF_2.items() if key in own}
    if sizes and not any(key in own for key in SIZES_OF_3 | SIZES_OF_4):
        moved = ", ".join(f"{new} instead of {key}" for key, new in sizes.items())
        raise RecipeFileError(
            f"{source} is for PufferLib 2, since it has {', '.join(sizes)}. Files of PufferLib 3 and 4 are read; to read "
            f"this one as a file of PufferLib 3, write {moved}"
        )
