"""Every block of README and docs runs and prints the output that is shown; named options, files and links exist."""

from __future__ import annotations

import ast
import builtins
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from millpond.cli.app import app
from millpond.config.keys import configuration_page
from tests.support.doc_session import (
    COMMENT,
    FENCE,
    INSTALL,
    LANGUAGES,
    MARKS,
    ROOT,
    Block,
    Session,
    make_installation,
    read_page,
)

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = {path.name: read_page(path) for path in PAGES}
COMMAND = re.compile(r"(?:\w+=\S* )*(?:git|make|millpond|pip|python|torchrun) ")


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_installation(tmp_path_factory.mktemp("installation"))


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def pages_with_blocks(*, slow: bool) -> list[str]:
    """Return the names of the pages that have slow blocks to run, or others."""
    return [
        name for name, blocks in BLOCKS.items() if any(one.runs and ("slow" in one.marks) == slow for one in blocks)
    ]


@pytest.mark.parametrize("name", pages_with_blocks(slow=False))
def test_page_runs_without_its_slow_blocks(name: str, tmp_path: Path, programs: Path, cache: Path) -> None:
    with Session(tmp_path, programs, cache) as session:
        for block in BLOCKS[name]:
            if block.runs and "slow" not in block.marks:
                session.run(block)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", pages_with_blocks(slow=True))
def test_page_runs_with_its_slow_blocks(name: str, tmp_path: Path, programs: Path, cache: Path) -> None:
    with Session(tmp_path, programs, cache) as session:
        for block in BLOCKS[name]:
            if block.runs:
                session.run(block)


ALL = [pytest.param(block, id=block.place) for blocks in BLOCKS.values() for block in blocks]


@pytest.mark.parametrize("block", ALL)
def test_block_has_a_known_language_and_known_marks(block: Block) -> None:
    assert block.language in LANGUAGES, f"{block.place}: a block's language is one of {', '.join(LANGUAGES)}"
    if block.language == "console":
        assert block.body.startswith("$ "), f"{block.place}: a console block begins with a command"
    if block.language == "text":
        shown = [line for line in block.body.splitlines() if line.startswith("$ ") or COMMAND.match(line)]
        assert not shown, f"{block.place}: a text block is not run, so it shows no commands: {shown}"
    if {"adds", "slow"} & block.marks.keys():
        assert block.runs, f"{block.place}: nothing here runs"
    assert block.marks.get("not run", "a reason"), f"{block.place}: say why"


def test_every_comment_is_a_known_mark_above_a_block() -> None:
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        comments = [line for line in text.splitlines() if "<!--" in line]
        assert len(comments) == sum(len(block.marks) for block in BLOCKS[path.name]), f"{path.name}: {comments}"
        for line in comments:
            comment = COMMENT.match(line)
            assert comment is not None, f"{path.name}: {line}"
            assert comment["mark"] in MARKS, f"{path.name}: {line}"


def test_commands_are_in_fenced_blocks() -> None:
    for path in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for line in FENCE.sub("", path.read_text(encoding="utf-8")).splitlines():
            assert not re.match(rf" {{4,}}{COMMAND.pattern}", line), (
                f"{path.name}: an indented command is not run: {line}"
            )
            assert not line.lstrip().startswith(("```", "~~~")), f"{path.name}: a fence that no test reads: {line}"


def free_names(code: str) -> set[str]:
    """Return the names that a program uses and does not assign."""
    names = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)]
    assigned = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    return {node.id for node in names} - assigned - set(dir(builtins))


@pytest.mark.parametrize("block", [param for param in ALL if "fragment" in param.values[0].marks])
def test_fragment_is_shown_in_full_on_the_page_that_it_names(block: Block) -> None:
    blocks = read_page(ROOT / block.marks["fragment"])
    full = "\n".join(other.body for other in blocks if other.runs and other.language == block.language)
    assert full, f"{block.place}: {block.marks['fragment']} has no {block.language} block that runs"
    if block.language == "python":
        missing = {name for name in free_names(block.body) if not re.search(rf"\b{name}\b", full)}
        assert not missing, f"{block.place}: {block.marks['fragment']} does not show {sorted(missing)}"


def commands_not_run() -> Iterator[tuple[str, str]]:
    """Yield page and command of blocks that are not run, and of commands within sentences."""
    for path in PAGES:
        for block in BLOCKS[path.name]:
            if block.language in ("sh", "console") and not block.runs:
                yield from ((block.place, command) for command in block.commands())
        text = FENCE.sub("", path.read_text(encoding="utf-8"))
        for code in re.findall(r"`([^`]+)`", text):
            if COMMAND.match(code):
                yield path.name, " ".join(code.split())


def options_of(words: list[str]) -> tuple[set[str], list[str]]:
    """Return the options of the verb that `millpond WORDS` calls, and the words that follow the verb."""
    command: Any = typer.main.get_command(app)
    rest = words
    while hasattr(command, "commands") and rest and re.fullmatch(r"[a-z][a-z-]*", rest[0]):
        assert rest[0] in command.commands, f"{rest[0]} is not one of {sorted(command.commands)}"
        command, rest = command.commands[rest[0]], rest[1:]
    return {option for parameter in command.params for option in parameter.opts} | {"--help"}, rest


@pytest.mark.parametrize(("place", "line"), dict.fromkeys(commands_not_run()))
def test_command_that_is_not_run_exists_with_its_options(place: str, line: str) -> None:
    words = shlex.split(line, comments=True)
    while "=" in words[0]:
        words.pop(0)
    if words[0] == "torchrun" and "millpond" in words:
        words = words[words.index("millpond") :]
    if words[0] == "millpond":
        known, rest = options_of(words[1:])
        unknown = {word.partition("=")[0] for word in rest if word.startswith("--")} - known
        assert not unknown, f"{place}: {line}: no such option {unknown}"
    elif words[0] == "python" and words[1].endswith(".py") and "/" in words[1]:
        assert (ROOT / words[1]).is_file(), f"{place}: {line}"
        source = (ROOT / words[1]).read_text(encoding="utf-8")
        unknown = {word for word in words[2:] if word.startswith("--") and f'"{word}"' not in source}
        assert not unknown, f"{place}: {line}: no such option {unknown}"
    elif words[:2] == ["python", "-m"]:
        assert (ROOT / words[2].replace(".", "/")).is_dir(), f"{place}: {line}"
    elif words[0] == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert re.search(rf"^{words[1]}:", makefile, re.M), f"{place}: {line}: the Makefile has no such target"


SHORT_BENCHMARKS = ("benchmarks/overlap.py", "benchmarks/vector_cost.py")


def benchmark_scripts() -> list[str]:
    """Return the scripts of benchmarks/ that a page names."""
    texts = [path.read_text(encoding="utf-8") for path in PAGES]
    return sorted({script for text in texts for script in re.findall(r"python (benchmarks/[\w/]+\.py)", text)})


@pytest.mark.slow
@pytest.mark.parametrize("script", benchmark_scripts())
def test_benchmark_that_a_page_names_starts(script: str, tmp_path: Path, programs: Path) -> None:
    """Run scripts that take seconds; call the others, which take minutes to hours, with --help, or import them."""
    program = str(programs / "python")
    if script in SHORT_BENCHMARKS:
        call = [program, script]
    elif "ArgumentParser" in (ROOT / script).read_text(encoding="utf-8"):
        call = [program, script, "--help"]
    else:
        call = [program, "-c", f"import runpy, sys; sys.path.insert(0, 'benchmarks'); runpy.run_path({script!r})"]
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


PAGE = """
Some text, in a file `numbers.py`:

```python
print(sum(range(4)), "of 1.5 seconds")
```

```console
$ python numbers.py
6 of ... seconds
```
"""


@pytest.mark.parametrize(
    ("original", "changed", "message"),
    [
        ("6 of ...", "7 of ...", "prints\n6 of 1.5 seconds"),
        ("```console\n$ python numbers.py", "```sh\nexit 3\n", "exit code 3"),
        ("in a file `numbers.py`:", "which stops:", "can't open file"),
        ("$ python numbers.py", "$ python numbers.py; exit 1", "exits with 1"),
    ],
)
def test_wrong_page_fails(
    original: str, changed: str, message: str, tmp_path: Path, programs: Path, cache: Path
) -> None:
    def follow(text: str, folder: Path) -> None:
        (tmp_path / "page.md").write_text(text, encoding="utf-8")
        with Session(folder, programs, cache) as session:
            for block in read_page(tmp_path / "page.md"):
                session.run(block)

    follow(PAGE, tmp_path / "right")
    with pytest.raises(AssertionError, match=re.escape(message)):
        follow(PAGE.replace(original, changed), tmp_path / "wrong")


def test_extra_is_hidden_until_the_page_installs_it(tmp_path: Path, programs: Path, cache: Path) -> None:
    look = "python -c 'import importlib.util as u; print(u.find_spec(\"wandb\") is None)'"
    text = f"```console\n$ {look}\nTrue\n```\n\n```sh\npip install 'millpond[wandb]'\n```\n\n```console\n$ {look}\nFalse\n```\n"
    (tmp_path / "page.md").write_text(text, encoding="utf-8")
    with Session(tmp_path / "folder", programs, cache) as session:
        for block in read_page(tmp_path / "page.md"):
            session.run(block)


def test_extras_that_pages_install_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = [
        match["extras"].split(",") for path in PAGES for match in INSTALL.finditer(path.read_text(encoding="utf-8"))
    ]
    assert {extra for one in named for extra in one} <= extras.keys()


def test_configuration_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8") == configuration_page(), "run `make docs`"


def test_links_between_pages_have_targets() -> None:
    for path in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"
