"""Counts in words."""

from __future__ import annotations


def plural(count: int, word: str) -> str:
    """`1 row`, `2 rows`, `32 minibatches`, `2 worker processes`."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {word}{'es' if word.endswith(('ch', 's')) else 's'}"
