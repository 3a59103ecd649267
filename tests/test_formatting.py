"""Plurals and verbs agree with their counts."""

from __future__ import annotations

from millpond.formatting import figures, many, plural, printable, printable_lines, sentence, table, verb


def test_plurals_and_verbs() -> None:
    assert [plural(count, "epoch") for count in (0, 1, 2)] == ["0 epochs", "1 epoch", "2 epochs"]
    assert [many(word) for word in ("batch", "process", "entry", "day", "box", "update epoch")] == [
        *("batches", "processes", "entries", "days", "boxes", "update epochs")
    ]
    assert [verb(1, word) for word in ("give", "go", "are")] == ["gives", "goes", "is"]
    assert verb(2, "go") == "go"


def test_control_characters_are_shown_not_sent_to_the_terminal() -> None:
    assert printable("\x1b[31mred\x07\r\n\x9b\x7f") == r"\x1b[31mred\x07\r\n\x9b\x7f"
    assert printable("a\u202eb\u2028") == r"a\u202eb\u2028"  # reverses the direction of writing; a line break
    assert printable("\udcff") == r"\udcff"  # a byte of a file's name that is not UTF-8
    assert printable("→ █ é [red] 日本") == "→ █ é [red] 日本"
    assert printable_lines("a\x1b\nb\x0bc") == "a\\x1b\nb\\x0bc"


def test_names_with_line_breaks_stay_in_their_row() -> None:
    assert table(("a", "b"), [("x\n!! y", "1\x1b")])[2] == r"  x\n!! y  1\x1b"
    assert figures([("x\ny", "1")]) == [r"  x\ny  1"]
    assert sentence("a\nb\x1b") == [r"  a b\x1b"]
