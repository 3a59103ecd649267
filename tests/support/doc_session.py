"""Runs a page of the documentation as a reader would: block after block, in one folder, on the base installation.

CONTRIBUTING.md ("Pages that run") states the conventions. A comment on a separate line above a block can say:

    <!-- slow -->                    run by `make test-slow` only
    <!-- adds: WORDS -->             words that the test appends to `millpond train` and `bench`, to make them short
    <!-- numbers vary -->            of a console block: any number matches any other
    <!-- not run: REASON -->         needs what a test does not have
    <!-- fragment: PAGE -->          part of a program that PAGE shows in full
"""

from __future__ import annotations

import json
import os
import re
import signal
import site
import subprocess
import tomllib
import venv
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import millpond

ROOT = Path(__file__).parents[2]
LANGUAGES = ("console", "python", "sh", "text", "yaml")
MARKS = ("slow", "adds", "numbers vary", "not run", "fragment")
CLONE = (
    "README.md",
    "benchmarks",
    "docs",
    "tests",
)  # parts of a clone that pages name; linked into the reader's folder

FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<body>.*?)^(?P=indent)```$", re.M | re.S)
COMMENT = re.compile(r"^ *<!-- (?P<mark>[a-z ]+?)(?:: (?P<value>.+?))? -->$")
FILE_NAME = re.compile(r"`(?P<name>[\w-]+\.\w+)`:$")
INSTALL = re.compile(r"^pip install 'millpond\[(?P<extras>[\w,]+)\]'$", re.M)


@dataclass(frozen=True)
class Block:
    """A fenced block, the comments above it, and the file name that the line above tells the reader to save it as."""

    page: str
    line: int
    language: str
    body: str
    file: str | None
    marks: dict[str, str]

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def runs(self) -> bool:
        return self.language != "text" and not {"fragment", "not run"} & self.marks.keys()

    def commands(self) -> list[str]:
        """Return the command lines of a shell block, or those after `$ ` in a console block; continued lines are joined."""
        text = self.body.replace("\\\n", " ")
        if self.language == "console":
            return re.findall(r"^\$ (.*)$", text, re.M)
        return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


def read_page(path: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    text = path.read_text(encoding="utf-8")
    blocks = []
    for match in FENCE.finditer(text):
        above = text[: match.start()].rstrip("\n").split("\n")
        marks = {}
        while (comment := COMMENT.match(above[-1])) or not above[-1].strip():
            if comment:
                marks[comment["mark"]] = comment["value"] or ""
            if not above[:-1]:
                break
            above.pop()
        name = FILE_NAME.search(above[-1]) if match["language"] in ("python", "yaml") else None
        body = re.sub(rf"^{match['indent']}", "", match["body"], flags=re.M)
        line = text.count("\n", 0, match.start()) + 1
        blocks.append(Block(path.name, line, match["language"], body, name["name"] if name else None, marks))
    return blocks


def optional_modules() -> dict[str, str]:
    """Return extra -> module, for extras of pyproject.toml that the base installation does not have."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    def name(requirement: str) -> str:
        return re.split(r"[^\w-]", requirement)[0].replace("-", "_").lower()

    base = {name(requirement) for requirement in project["dependencies"]}
    extras = {
        extra: name(required[0])
        for extra, required in project["optional-dependencies"].items()
        if extra != "dev" and required
    }
    return {extra: module for extra, module in extras.items() if module not in base}


# Imported at start by every interpreter of the installation below: hides the modules named in the variable.
HIDE = """
import importlib.machinery, os, sys

HIDDEN = set(filter(None, os.environ.get("HIDDEN_MODULES", "").split(",")))

class Finder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in HIDDEN else super().find_spec(name, path, target)

    @classmethod
    def find_distributions(cls, *context):
        distributions = super().find_distributions(*context)
        return (one for one in distributions if one.metadata["Name"].replace("-", "_").lower() not in HIDDEN)

if HIDDEN:
    sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Finder
"""

# Runs the Python blocks of a page one after another in one namespace, as typed into one interpreter.
INTERPRETER = """
import json, sys, traceback

namespace = {"__name__": "__main__"}
sys.path.insert(0, "")
for request in sys.stdin:
    code, place = json.loads(request)
    try:
        exec(compile(code, place, "exec"), namespace)
    except BaseException:
        traceback.print_exc()
        sys.exit(1)
    print("\\0", flush=True)
"""


def make_installation(folder: Path) -> Path:
    """Make a virtual environment with this one's packages, in which modules can be hidden, and return its programs."""
    venv.create(folder, with_pip=False, symlinks=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    (packages / "hide_modules.py").write_text(HIDE, encoding="utf-8")
    paths = [f"import site; site.addsitedir({path!r})" for path in site.getsitepackages()]
    (packages / "pages.pth").write_text(
        "\n".join(["import hide_modules", str(Path(millpond.__file__).parents[1]), *paths, ""]), encoding="utf-8"
    )
    programs = folder / "bin"
    for program, module in (("millpond", "millpond.cli"), ("torchrun", "torch.distributed.run")):
        script = f"#!{programs}/python\nimport sys\nfrom {module} import main\nsys.exit(main())\n"
        (programs / program).write_text(script, encoding="utf-8")
        (programs / program).chmod(0o755)
    return programs


def environment_without(modules: Iterable[str], programs: Path, cache: Path) -> dict[str, str]:
    """Return the variables of a reader who has not installed `modules`."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {
        **inherited,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "80",
        "PYTHONIOENCODING": "utf-8",
        "PET_STANDALONE": "1",  # torchruns of tests that run side by side must not share a port
        "XDG_CACHE_HOME": str(cache),  # a bench of this machine would add its estimates to plans
        "HIDDEN_MODULES": ",".join(modules),
    }


def line_pattern(line: str) -> str:
    """Return what a printed line must match; `...` stands for any text, and alone for any number of lines."""
    if line.strip() == "...":
        return r"(?:.*\n)*?"
    return re.escape(line).replace(re.escape("..."), ".*") + r"\n"


def without_numbers(text: str) -> str:
    """Replace numbers, and the spaces and rules that are as long as numbers need them."""
    return re.sub(r"[ ─-]+", " ", re.sub(r"\d[\d.,]*(?:e[-+]\d+)?", "#", text))


@dataclass
class Session:
    """A reader with an empty folder who follows one page."""

    folder: Path
    programs: Path
    cache: Path
    hidden: dict[str, str] = field(default_factory=optional_modules)
    _interpreter: subprocess.Popen[str] | None = None

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        for name in CLONE:
            (self.folder / name).symlink_to(ROOT / name)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *failure: object) -> None:
        if self._interpreter is not None:
            self._interpreter.stdin.close()  # type: ignore[union-attr]
            end(self._interpreter)

    def run(self, block: Block) -> None:
        """Run a block; an AssertionError says what failed, and where."""
        name = block.file or ("recipe.yaml" if block.language == "yaml" else None)
        if name is not None:
            (self.folder / name).write_text(block.body, encoding="utf-8")
        if block.language == "console":
            self._compare(block)
        elif block.language == "sh":
            self._shell(block)
        elif block.language == "yaml":
            self._bash(block, f"millpond plan {name}")
        elif name is None:
            self._python(block)

    def _shell(self, block: Block) -> None:
        for install in INSTALL.finditer(block.body):
            for extra in install["extras"].split(","):
                self.hidden.pop(extra, None)
        script = "\n".join(
            with_added_words(command, block) for command in block.commands() if not INSTALL.match(command)
        )
        self._bash(block, script)

    def _bash(self, block: Block, script: str) -> None:
        code, printed = self._call(script)
        assert code == 0, f"{block.place}: exit code {code} of\n{script}\nwhich printed\n{printed}"

    def _compare(self, block: Block) -> None:
        for part in re.split(r"^\$ ", block.body.replace("\\\n", " "), flags=re.M)[1:]:
            command, _, expected = part.partition("\n")
            code, printed = self._call(with_added_words(command, block))
            if "numbers vary" in block.marks:
                expected, seen = without_numbers(expected), without_numbers(printed)
            else:
                seen = printed
            pattern = "".join(map(line_pattern, expected.splitlines()))
            assert re.fullmatch(pattern, seen), f"{block.place}: $ {command}\nprints\n{printed}"
            refused = re.search(r"^millpond: ", expected, re.M) is not None
            assert (code != 0) == refused, f"{block.place}: $ {command}\nexits with {code} and prints\n{printed}"

    def _start(self, *words: str | Path, stdin: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            words,
            cwd=self.folder,
            env=environment_without(self.hidden.values(), self.programs, self.cache),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            start_new_session=True,
        )

    def _call(self, script: str) -> tuple[int, str]:
        process = self._start("bash", "-euo", "pipefail", "-c", script, stdin=subprocess.DEVNULL)
        try:
            printed, _ = process.communicate()
        finally:
            end(process)
        return process.returncode, printed

    def _python(self, block: Block) -> None:
        if self._interpreter is None:
            self._interpreter = self._start(self.programs / "python", "-c", INTERPRETER, stdin=subprocess.PIPE)
        assert self._interpreter.stdin is not None
        self._interpreter.stdin.write(json.dumps([block.body, block.place]) + "\n")
        self._interpreter.stdin.flush()
        assert self._interpreter.stdout is not None
        printed = ""
        while not printed.endswith("\0\n"):
            line = self._interpreter.stdout.readline()
            assert line, f"{block.place}: the block fails\n{printed}"
            printed += line


def with_added_words(command: str, block: Block) -> str:
    """Append the words of `<!-- adds: ... -->` to a command that trains or measures."""
    if "adds" not in block.marks or not re.search(r"\bmillpond (train|bench)\b", command):
        return command
    return f"{command.partition(' #')[0].rstrip()} {block.marks['adds']}"


def end(process: subprocess.Popen[str]) -> None:
    """Terminate a process and all processes that it started."""
    if process.poll() is None:
        try:
            process.wait(timeout=5 if process.stdin else 0)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None and not pipe.closed:
            pipe.close()
