"""Read PufferLib's `.ini` files: find out which version a file is for, and translate it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millpond.config.puffer import v3, v4
from millpond.config.puffer.ini import AGENTS_OPEN, PufferConfig, parse
from millpond.config.yaml import RecipeFileError

__all__ = ["AGENTS_OPEN", "read"]


def read(text: str, source: str) -> PufferConfig:
    """Translate a file to what the PufferLib it was written for would do with it."""
    file = parse(text, source)
    return v4.translate(file, source) if _is_for_v4(file, source) else v3.translate(file, source)


def _is_for_v4(file: Mapping[str, Any], source: str) -> bool:
    """True if a file has keys that only PufferLib 4 and later have. Keys of both are an error: sizes would be guessed."""
    new, old = ([key for key in file if key in only] for only in (v4.ONLY | v4.ONLY_5, v3.ONLY))
    if new and old:
        raise RecipeFileError(
            f"{source} mixes keys of PufferLib 4 ({', '.join(new)}) and of PufferLib 3 ({', '.join(old)}); "
            "remove those of one version"
        )
    return bool(new)
