"""Imports point one way: each package may import only those listed for it, without cycles."""

from __future__ import annotations

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from importlib.util import find_spec
from pathlib import Path

import pytest

import millpond

ROOT = Path(millpond.__file__).parent

# Package or top-level module -> what of millpond it may import.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "safe_read": {"errors", "durable"},
    "sizes": set(),
    "formatting": set(),
    "cpu": set(),
    "durable": set(),
    "schedules": set(),
    "kinds": set(),  # names modules by path, and imports some for their types alone
    "compiled": set(),
    "processor": {"errors", "durable"},
    "threads": {"cpu"},
    "devices": {"errors"},
    "kernels": {"devices"},
    "losses": {"devices"},
    "recipes": set(),
    "envs": {"errors", "formatting", "compiled"},
    "config": {"errors", "formatting", "kinds", "sizes", "recipes", "envs", "schedules"},
    "trust": {"errors", "durable", "config"},
    "vector": {"errors", "formatting", "cpu", "envs", "sizes"},
    "loop": {"errors", "safe_read"},
    "record": {"errors", "formatting", "cpu", "safe_read", "durable", "loop"},
    "store": {"errors", "formatting", "safe_read", "cpu", "durable", "processor", "kinds", "config", "loop", "record"},
    "distributed": {"errors", "formatting", "cpu", "loop", "record", "store"},
    "planner": {
        "errors",
        "devices",
        "kinds",
        "formatting",
        "cpu",
        "processor",
        "sizes",
        "envs",
        "config",
        "replay",
        "data",
        "rollout",
        "fast",
    },
    "policies": {"errors", "devices", "envs", "sizes"},
    "fast": {"devices", "compiled", "threads", "losses", "envs", "policies", "rollout", "sizes", "learners"},
    "replay": {"devices", "errors", "formatting", "durable", "compiled", "envs"},
    "data": {"errors", "formatting", "safe_read", "durable", "replay"},
    "rewards": {"errors", "devices", "compiled", "envs", "policies", "data"},
    "rollout": {"errors", "devices", "envs", "vector"},
    "learners": {"errors", "devices", "schedules", "kernels", "envs", "config", "vector", "policies", "replay"},
    "report": {"errors", "kinds", "formatting", "safe_read", "durable", "envs", "config", "record", "store", "planner"},
    "trainers": {
        "errors",
        "devices",
        "kinds",
        "formatting",
        "sizes",
        "durable",
        "trust",
        "schedules",
        "threads",
        "processor",
        "losses",
        "kernels",
        "envs",
        "config",
        "vector",
        "loop",
        "record",
        "store",
        "distributed",
        "planner",
        "policies",
        "fast",
        "replay",
        "data",
        "rewards",
        "rollout",
        "learners",
        "report",
    },
    "bench": {
        "rewards",
        "errors",
        "devices",
        "kinds",
        "formatting",
        "sizes",
        "durable",
        "threads",
        "processor",
        "losses",
        "envs",
        "config",
        "vector",
        "loop",
        "record",
        "store",
        "planner",
        "policies",
        "replay",
        "rollout",
        "learners",
        "trainers",
    },
    "experiments": {
        "errors",
        "formatting",
        "durable",
        "trust",
        "envs",
        "config",
        "record",
        "store",
        "planner",
        "trainers",
    },
    "sweep": {
        "errors",
        "formatting",
        "safe_read",
        "durable",
        "trust",
        "kinds",
        "envs",
        "config",
        "record",
        "store",
        "planner",
        "trainers",
        "experiments",
    },
    "board": {
        "errors",
        "formatting",
        "cpu",
        "safe_read",
        "durable",
        "envs",
        "config",
        "record",
        "store",
        "report",
        "trainers",
        "sweep",
    },
    "cli": {
        "board",
        "devices",
        "record",
        "errors",
        "formatting",
        "cpu",
        "processor",
        "envs",
        "config",
        "vector",
        "policies",
        "fast",
        "store",
        "trust",
        "distributed",
        "planner",
        "replay",
        "data",
        "report",
        "trainers",
        "experiments",
        "sweep",
        "bench",
    },
    "__init__": {"config", "errors", "loop", "store", "distributed", "planner", "replay", "trainers"},
    "__main__": {"cli"},
}


def modules() -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        first = path.relative_to(ROOT).parts[0]
        found.setdefault(first.removesuffix(".py"), []).append(path)
    return found


def imported(path: Path) -> set[str]:
    """Return the packages that a file imports, also inside functions. The table of kinds may import types from anywhere."""
    names: list[str] = []
    tree = ast.parse(path.read_text())
    if path == ROOT / "kinds.py":
        tree.body = [
            node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
        ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names += (
                [f"{node.module}.{alias.name}" for alias in node.names]
                if node.module == "millpond"
                else [node.module or ""]
            )
    parts = {name.split(".")[1] for name in names if name.startswith("millpond.")}
    return {part for part in parts if (ROOT / part).exists() or (ROOT / f"{part}.py").exists()}


def test_every_package_is_listed() -> None:
    assert set(modules()) == set(ALLOWED)


def test_allowed_imports_have_no_cycles() -> None:
    assert list(TopologicalSorter(ALLOWED).static_order())


@pytest.mark.parametrize("package", sorted(ALLOWED))
def test_package_imports_only_those_listed_for_it(package: str) -> None:
    for path in modules()[package]:
        beyond = imported(path) - ALLOWED[package] - {package}
        assert not beyond, f"{path.relative_to(ROOT)} imports {beyond}; {package} may use {ALLOWED[package]}"


def test_tests_share_code_through_tests_support_alone() -> None:
    """`from tests.support.NAME import ...`: one style, and no test module imports from another."""
    here = Path(__file__).parent
    local = {path.stem for path in here.rglob("*") if path.is_dir() or path.suffix == ".py"}
    for path in sorted(here.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path.relative_to(here)}: relative import"
                names = [node.module or ""]
            for name in names:
                first = name.split(".")[0]
                installed = first in sys.stdlib_module_names or find_spec(first) is not None
                shared = name.startswith("tests.support")
                if first == "tests" or (first in local and not installed):
                    assert shared, f"{path.relative_to(here)} imports {name}; shared code belongs in tests.support"


# Who may import `millpond.fast`: the builders of runs, and what plans and describes them.
FAST_IMPORTERS = {
    "trainers/ppo/build.py",
    "trainers/mixture/agents.py",
    "trainers/reward/agent.py",
    "planner/ppo/numbers.py",
    "planner/memory.py",
    "cli/doctor.py",
}


def test_only_builders_import_the_fast_path() -> None:
    importers = {
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        if path.relative_to(ROOT).parts[0] != "fast" and "fast" in imported(path)
    }
    assert importers == FAST_IMPORTERS


@pytest.mark.parametrize("package", ["policies", "trainers/ppo", "learners", "rollout", "losses.py"])
def test_readable_packages_import_no_numba(package: str) -> None:
    place = ROOT / package
    for path in [place] if place.suffix else sorted(place.rglob("*.py")):
        assert not {"numba", "llvmlite"} & _outside(path), path.relative_to(ROOT)
        assert "compiled" not in imported(path), path.relative_to(ROOT)


def _outside(path: Path) -> set[str]:
    """Return the top-level names of all modules that a file imports."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.split(".")[0] for name in names}


LIGHT = [
    ["plan", "metta"],
    ["plan", "mixture-seed"],
    ["plan", "reward"],
    ["plan", "reward-libero"],
    ["compare"],
    ["recipes"],
    ["--help"],
    ["lake", "--help"],
    ["board", "--help"],
]


@pytest.mark.parametrize("command", LIGHT)
def test_light_commands_import_no_heavy_package(command: list[str]) -> None:
    code = (
        "import sys; sys.argv = ['millpond', *sys.argv[1:]]\n"
        "from millpond.cli import main\n"
        "try: main()\nexcept SystemExit as stop: assert not stop.code, stop.code\n"
        "heavy = {'torch', 'numba', 'gymnasium', 'h5py', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    run = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
