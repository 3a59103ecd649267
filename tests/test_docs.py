"""What the documents show is what the commands print, and the generated page is current."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from millpond.config.reference import page

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^(?P<indent> *)```(?P<language>\w+)\n(?P<body>.*?)^(?P=indent)```$", re.M | re.S)


def blocks(language: str) -> list[tuple[str, str]]:
    """Page and text of every fenced block of a language."""
    return [
        (path.name, match["body"])
        for path in PAGES
        for match in BLOCK.finditer(path.read_text(encoding="utf-8"))
        if match["language"] == language
    ]


def sessions() -> list[tuple[str, str, str]]:
    """Page, command and expected output of every `$ millpond` line in a console block."""
    found = []
    for name, body in blocks("console"):
        for part in re.split(r"^\$ ", body, flags=re.M)[1:]:
            command, _, output = part.partition("\n")
            found.append((name, command, output))
    return found


def as_pattern(expected: str) -> str:
    """A line `...` stands for any number of lines."""
    lines = [r"(?:.*\n)*?" if line == "..." else re.escape(line) + r"\n" for line in expected.splitlines()]
    return "".join(lines)


@pytest.mark.parametrize(("name", "command", "expected"), sessions())
def test_a_command_prints_what_the_page_shows(name: str, command: str, expected: str) -> None:
    program, *arguments = shlex.split(command)
    assert program == "millpond", f"{name}: only millpond itself can be shown"
    environment = {**os.environ, "COLUMNS": "80", "PYTHONIOENCODING": "utf-8"}
    run = subprocess.run(
        [sys.executable, "-m", "millpond", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=environment,
    )
    printed = run.stdout + run.stderr
    assert re.fullmatch(as_pattern(expected), printed), f"{name}: $ {command} prints\n{printed}"


WHOLE_PROGRAMS = ("README.md", "planning.md")  # other pages show excerpts, and have tests of their own


@pytest.mark.parametrize(("name", "code"), [block for block in blocks("python") if block[0] in WHOLE_PROGRAMS])
def test_python_in_the_pages_runs(name: str, code: str) -> None:
    exec(compile(code, name, "exec"), {})


def test_the_page_of_settings_is_current() -> None:
    assert (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8") == page(), "run `make docs`"


def test_links_between_pages_lead_somewhere() -> None:
    for path in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_the_two_commands_of_the_readme_are_in_the_makefile() -> None:
    """That they work is what continuous integration shows, in a fresh clone."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^    make (\w+)", readme, re.M)
    assert commands == ["train", "test"]
    for command in commands:
        dry = subprocess.run(["make", "-n", command], cwd=ROOT, capture_output=True, text=True, check=False)
        assert dry.returncode == 0, dry.stderr
