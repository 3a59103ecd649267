"""Strict YAML, and files that are not recipes."""

from __future__ import annotations

from pathlib import Path

import pytest

from millpond.config import load
from millpond.config.yaml import LARGEST_FILE, RecipeFileError, parse
from millpond.errors import MillpondError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 1e6", 1e6),
        ("a: 524_288", 524_288),
        ("a: 1.0e-4", 1e-4),
        ("a: -7", -7),
        ("a: true", True),
        ("a: null", None),
        ("a:", None),
        ("a: yes", "yes"),  # YAML 1.1 makes these True, 750 and 8
        ("a: 12:30", "12:30"),
        ("a: off", "off"),
        ("a: 0x10", "0x10"),
        ("a: atari:gravitar", "atari:gravitar"),
        ("a: [1, 2_0]", [1, 20]),
    ],
)
def test_scalars_are_read_as_in_yaml_1_2(text: str, value: object) -> None:
    parsed = parse(text, "here")["a"]
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\na: 2", "the key 'a' appears twice"),
        ("a: &x [1]\nb: *x", "aliases are not allowed"),
        ("a: !!python/object/apply:os.system ['true']", "are not allowed"),
        ("a: [1", "line 1"),
        ("{" * 5000, "nested too deeply"),
        ("? [1]\n: 2", "a key must be plain text"),
    ],
)
def test_unsafe_or_ambiguous_yaml_is_refused(text: str, says: str) -> None:
    with pytest.raises(RecipeFileError, match=says.replace("[", r"\[")):
        parse(text, "here")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"# only a comment\n", "is empty"),
        (b"\x89PNG\r\n\x1a\n\x00\xff", "not UTF-8 text"),
        (b"- a\n- b\n", "holds a list"),
        (b"just words", "holds a str"),
        (b"kind: ppo\n\tenv: x", "is not valid YAML, line 2"),
        (b"trainer: {batch_size: 64}\n", "kind is missing"),
        (b"kind: pqo\n", "kind=pqo is not one of ppo, mixture, reward; did you mean ppo?"),
        (b"extends: [metta]\n", "must be a recipe's name, an env id or a file"),
        (b"extends: mettta\n", "did you mean metta?"),
    ],
)
def test_files_that_are_not_recipes_are_refused(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_bytes(content)
    with pytest.raises(MillpondError) as caught:
        load(path)
    assert says in str(caught.value)


def test_a_huge_file_is_refused_without_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    with path.open("wb") as file:
        file.truncate(100_000_000)
    with pytest.raises(RecipeFileError, match=f"100,000,000 bytes; a recipe has at most {LARGEST_FILE:,}"):
        load(path)


def test_a_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeFileError, match="is a folder"):
        load(tmp_path)
    with pytest.raises(RecipeFileError, match="does not exist"):
        load(tmp_path / "none.yaml")
