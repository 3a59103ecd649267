"""Plurals and verbs agree with their counts."""

from __future__ import annotations

from millpond.formatting import many, plural, verb


def test_plurals_and_verbs() -> None:
    assert [plural(count, "epoch") for count in (0, 1, 2)] == ["0 epochs", "1 epoch", "2 epochs"]
    assert [many(word) for word in ("batch", "process", "entry", "day", "box", "update epoch")] == [
        *("batches", "processes", "entries", "days", "boxes", "update epochs")
    ]
    assert [verb(1, word) for word in ("give", "go", "are")] == ["gives", "goes", "is"]
    assert verb(2, "go") == "go"
