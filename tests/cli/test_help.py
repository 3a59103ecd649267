"""Every command's help has examples, and they are valid."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import typer

from millpond.cli.app import app
from millpond.cli.complete import override_choices

TOP = typer.main.get_command(app)


def commands(command: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Return the commands that do something, by their words."""
    if not hasattr(command, "commands"):
        return {path: command}
    below = {p: c for name, child in command.commands.items() for p, c in commands(child, (*path, name)).items()}
    return below | ({path: command} if command.invoke_without_command else {})


COMMANDS = commands(TOP)


def examples(command: Any) -> list[str]:
    """Return the commands in a help text, without what stands before `millpond`, and without comments."""
    lines = [line.split("   #")[0].strip() for line in (command.help or "").splitlines()]
    return [line[line.index("millpond ") :] for line in lines if line.startswith(("millpond ", "torchrun "))]


def parse(words: list[str]) -> Any:
    """Parse a command line as the program does, and stop before it is run."""
    command, context = TOP, TOP.make_context("millpond", list(words))
    while hasattr(command, "commands") and (rest := [*context._protected_args, *context.args]):
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)
    return context


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_has_an_example_of_the_command(path: tuple[str, ...]) -> None:
    assert any(shlex.split(line)[1 : 1 + len(path)] == list(path) for line in examples(COMMANDS[path]))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_examples_parse(path: tuple[str, ...]) -> None:
    for line in examples(COMMANDS[path]):
        context = parse(shlex.split(line)[1:])
        for text in [word for value in context.params.values() if isinstance(value, (list, tuple)) for word in value]:
            key, equals, _ = str(text).partition("=")
            if equals and context.info_name in ("train", "plan", "compare", "bench"):
                assert any(f"{key}=" in override_choices([recipe], key) for recipe in ("grid", "mixture", "reward"))


def test_a_wrong_example_would_be_noticed() -> None:
    with pytest.raises(Exception, match="No such option"):
        parse(["plan", "metta", "--no-such-option"])
