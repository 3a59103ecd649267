"""Plurals and verbs for messages with counts."""

from __future__ import annotations


def plural(count: int, word: str) -> str:
    """Return `1 row`, `2 rows`, `32 minibatches`, `2 worker processes`, `2 epochs`, `2 entries`."""
    return f"{count:,} {word if count == 1 else many(word)}"


def many(word: str) -> str:
    """Return the plural of a noun."""
    if word.endswith("y") and word[-2:-1] not in "aeiou":
        return f"{word[:-1]}ies"
    sibilant = word.endswith(("ch", "s", "x")) and not word.endswith("epoch")
    return f"{word}{'es' if sibilant else 's'}"


def verb(count: int, plain: str) -> str:
    """Return the form of a verb after a count: `1 minibatch` gives, `2 minibatches` give; `are` becomes is."""
    if plain == "are":
        return "is" if count == 1 else plain
    return plain if count != 1 else f"{plain}{'es' if plain.endswith('o') else 's'}"
