"""Counts in words: `1 stream`, `2 streams`."""

from __future__ import annotations


def counted(count: int, thing: str) -> str:
    """A count and its thing, in the plural where it is not one."""
    return f"{count:,} {thing}{'' if count == 1 else 's'}"
