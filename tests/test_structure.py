"""Rules for the layout of the package: one class per name, and no module that belongs inside its only importer."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import millpond

SOURCE = Path(millpond.__file__).parents[1]
MIN_LINES = 80  # a shorter module with one importer belongs inside it
LAZY_PATH = re.compile(r"(millpond(?:\.\w+)+):\w+")  # as in the table of kinds

# Short modules with one importer that are a concept of their own, each with the reason.
CONCEPTS: dict[str, str] = {
    "millpond.board.machine": "measures the machine, apart from what is served",
    "millpond.board.sweeps": "reads a sweep, apart from what is served",
    "millpond.cli.board": "a command, like its siblings",
    "millpond.trainers.common.videos": "a callback; it imports play, which imports the session that adds it",
    "millpond.planner.ppo.purposes": "the text of settings, apart from the tables of a comparison",
    "millpond.cli.export": "a command, like its siblings",
    "millpond.cli.app": "the commands in one list, which --help prints",
    "millpond.cli.bench": "a command, like its siblings",
    "millpond.cli.experiment": "a command, like its siblings",
    "millpond.config.algorithm_rules": "rules of the algorithm, beside those of sizes in config.ppo",
    "millpond.report.comparison_picture": "drawing, apart from what is drawn; imports matplotlib",
    "millpond.config.draft": "loads what no command may run, apart from what loads recipes",
    "millpond.devices.kernels": "how a fused kernel is chosen and counted, apart from the cores that use it",
    "millpond.replay.ring_view": "the records of a ring without a copy, apart from how they are drawn",
    "millpond.devices.live_memory": "bytes in use, apart from what the device computes",
    "millpond.devices.streams": "streams of any device, apart from what is copied on them",
    "millpond.experiments.mixture_budget": "of one kind of recipe, which nothing else asks for",
    "millpond.experiments.page": "the page, apart from what it shows",
    "millpond.fast.triton.losses": "a kernel, apart from its definition in plain PyTorch",
    "millpond.fast.triton.scan": "a kernel, apart from its definition in plain PyTorch",
    "millpond.kernels.scan": "the advantages' kernel of devices, apart from that of the CPU",
    "millpond.learners.augment": "a method with a paper and tests of its own",
    "millpond.policies.value_scale": "a method with a paper and tests of its own",
    "millpond.trainers.ppo.muon": "an optimiser with a paper and tests of its own",
}


def modules() -> dict[str, Path]:
    """Return the source files by dotted module name."""
    names = {}
    for path in sorted((SOURCE / "millpond").rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def referenced(path: Path) -> set[str]:
    """Return the dotted names that a file imports, also inside functions, or names as `package.module:object`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.update({str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)})
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.update(LAZY_PATH.findall(node.value))
    return names


def importers() -> dict[str, set[str]]:
    """Return the modules that refer to each module."""
    by_module: dict[str, set[str]] = {name: set() for name in modules()}
    for name, path in modules().items():
        for other in referenced(path) & by_module.keys() - {name}:
            by_module[other].add(name)
    return by_module


def is_short(path: Path) -> bool:
    return len(path.read_text(encoding="utf-8").splitlines()) < MIN_LINES


def test_no_two_classes_have_the_same_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for name, path in modules().items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(name)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_short_module_with_one_importer_is_a_concept_of_its_own() -> None:
    by_module, paths = importers(), modules()
    single = {
        name
        for name, path in paths.items()
        if path.name != "__init__.py" and is_short(path) and len(by_module[name]) == 1
    }
    assert single - CONCEPTS.keys() == set(), "merge these into their importer, or give a reason in CONCEPTS"
    assert CONCEPTS.keys() <= paths.keys(), "a module of this list is gone"
