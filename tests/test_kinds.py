"""The table of kinds is complete, and nothing else asks which kind a recipe is."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import pytest

import millpond
from millpond.bench.run import KindBench
from millpond.config import Recipe, load
from millpond.config.keys import keys, sections
from millpond.kinds import KINDS, Kind, Lazy
from millpond.planner import plan_loaded
from millpond.planner.kind import Draft, KindPlanner, KindText, Plan
from millpond.planner.planned import show
from millpond.report.facts import KindReport

ROOT = Path(millpond.__file__).parent
OPTIONAL = {"prepare"}  # entries that a kind may do without
OBJECTS = {"planner": KindPlanner, "text": KindText, "bench": KindBench, "report": KindReport}

# Modules of one kind outside of its own folders.
OWN_MODULES = {"experiments/mixture_budget.py": "mixture"}


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_every_entry_of_a_kind_is_there_and_resolves(kind: Kind) -> None:
    for field in fields(Kind):
        entry = getattr(kind, field.name)
        assert entry is not None or field.name in OPTIONAL, f"{kind.name} has no {field.name}"
        if isinstance(entry, Lazy):
            loaded = entry.load()
            assert callable(loaded) or isinstance(loaded, (tuple, OBJECTS.get(field.name, tuple))), entry.path
    assert KINDS[kind.name] is kind
    recipe = kind.recipe.load()
    assert issubclass(recipe, Recipe)
    assert recipe.model_fields["kind"].default == kind.name
    assert all(callable(rule) for rule in kind.rules.load())


def test_the_table_itself_imports_nothing_of_the_package() -> None:
    code = "import sys; import millpond.kinds; print([name for name in sys.modules if name.startswith('millpond')])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "['millpond', 'millpond.kinds']"


def class_owners() -> dict[str, str]:
    """Name of a class of recipes or plans -> its kind."""
    owners = {kind.recipe.load().__name__: kind.name for kind in KINDS.values()}
    return owners | {name.replace("Recipe", "Plan"): kind for name, kind in owners.items()}


def kind_of_module(path: Path) -> str | None:
    """The kind that a module belongs to, by its folder or name."""
    relative = path.relative_to(ROOT)
    if str(relative) in OWN_MODULES:
        return OWN_MODULES[str(relative)]
    return next((part for part in (*relative.parts[:-1], relative.stem) if part in KINDS), None)


def questions(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and kind of every question about a kind: `isinstance` of its classes, and comparisons with its name."""
    owners = class_owners()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
            for name in ast.walk(node.args[1]):
                if isinstance(name, ast.Name) and name.id in owners:
                    yield node.lineno, owners[name.id]
        elif isinstance(node, ast.Compare) and ast.unparse(node.left).split(".")[-1] == "kind":
            for constant in ast.walk(node):
                if isinstance(constant, ast.Constant) and constant.value in KINDS:
                    yield node.lineno, str(constant.value)
        elif isinstance(node, ast.Dict):
            named = [key.value for key in node.keys if isinstance(key, ast.Constant) and key.value in KINDS]
            if len(named) == len(KINDS):  # a table beside the table
                yield node.lineno, "all kinds"


def test_only_modules_of_a_kind_ask_whether_something_is_of_that_kind() -> None:
    others = [
        f"{path.relative_to(ROOT)}:{line} asks for {kind}"
        for path in sorted(ROOT.rglob("*.py"))
        for line, kind in questions(ast.parse(path.read_text()))
        if kind_of_module(path) != kind
    ]
    assert not others, "use the table in kinds.py instead"


@dataclass(frozen=True)
class NapPlan(Plan):
    """A plan that does nothing."""

    updates: int

    @property
    def updates_in_run(self) -> int:
        return self.updates

    @property
    def env_steps_in_run(self) -> int:
        return 0


class NapRecipe(Recipe):
    """A recipe of a kind that exists in this test alone."""

    kind: Literal["nap"] = "nap"


NAP_RULES = ()
NAP_PLANNER = KindPlanner(
    draft=lambda recipe, inputs: Draft(NapPlan(3), []),
    stacked_observations=False,
    speed_settings=lambda recipe: {},
    estimate=lambda plan, measured: pytest.fail("nothing was measured"),
)
NAP_TEXT = KindText(
    show=lambda recipe, plan: [f"  {plan.updates} naps"],
    compare_rows=lambda a, b: [],
    differences=lambda a, b: iter(()),
    better_for=lambda a, b: iter(()),
    in_table=(),
    scale_header=(),
    scale_columns=lambda plan: [],
)


@pytest.fixture
def nap(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A fourth kind: one more row."""
    here: Any = {
        name: Lazy(f"{__name__}:{attribute}")
        for name, attribute in (
            ("recipe", "NapRecipe"), ("rules", "NAP_RULES"), ("planner", "NAP_PLANNER"), ("text", "NAP_TEXT"),
        )
    }  # fmt: skip
    unused: Any = dict.fromkeys(("debug_sizes", "trainer", "player", "bench", "report"), Lazy("nowhere:nothing"))
    monkeypatch.setitem(KINDS, "nap", Kind(name="nap", job="naps", several_agents=True, prepare=None, **here, **unused))
    caches = (keys, sections)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


@pytest.mark.usefixtures("nap")
def test_a_new_kind_needs_one_more_row_to_be_loaded_and_planned() -> None:
    planned = plan_loaded(load({"kind": "nap"}, {"env.id": "grid"}))
    assert planned.to_json()["kind"] == "nap"
    assert planned.to_json()["updates"] == 3
    assert "3 naps" in show(planned)
