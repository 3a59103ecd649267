"""Cached compiled code is never older than its sources."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millpond.compiled import compiled, extend_source_stamp, fingerprint

CALLER = """
from millpond.compiled import compiled
from callee import AMOUNT, add

@compiled
def run(x):
    return add(x) + AMOUNT

print(run(1), sum(run._cache_hits.values()))
"""
CALLEE = """
from millpond.compiled import {kind}
AMOUNT = {amount}

@{kind}
def add(x):
    return x + {addend}
"""


def run(folder: Path, *, kind: str = "compiled", addend: int = 1, amount: int = 100) -> tuple[int, int]:
    """Return the result of the caller and the number of cache hits, from a separate process."""
    (folder / "caller.py").write_text(CALLER) if not (folder / "caller.py").exists() else None
    (folder / "callee.py").write_text(CALLEE.format(kind=kind, addend=addend, amount=amount))
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    made = subprocess.run(
        [sys.executable, "caller.py"], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    value, hits = made.stdout.split()
    return int(value), int(hits)


def test_change_of_a_callee_in_another_file_recompiles(tmp_path: Path) -> None:
    assert run(tmp_path) == (102, 0)
    assert run(tmp_path) == (102, 1)
    assert run(tmp_path, addend=5) == (106, 0)
    assert run(tmp_path, addend=5, amount=200) == (206, 0)
    assert run(tmp_path, addend=5, amount=200) == (206, 1)


def test_change_of_an_inlined_callee_recompiles(tmp_path: Path) -> None:
    assert run(tmp_path, kind="inlined") == (102, 0)
    assert run(tmp_path, kind="inlined", addend=3) == (104, 0)
    assert run(tmp_path, kind="inlined", addend=3) == (104, 1)


MOVING = """
from typing import NamedTuple
from millpond.compiled import compiled

class {name}(NamedTuple):
    x: int

@compiled
def run(pair):
    return pair.x

print(run({name}(3)))
"""


def test_cache_that_names_a_class_of_another_name_is_replaced(tmp_path: Path) -> None:
    """The index of a cache is a pickle with the classes of arguments; reading an old one must not fail."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    for name in ("Before", "After"):
        (tmp_path / "moving.py").write_text(MOVING.format(name=name))
        command = [sys.executable, "-c", "import moving"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr


def test_processor_features_do_not_change_the_stamp(monkeypatch: pytest.MonkeyPatch) -> None:
    """numba caches code of several processors side by side; with different stamps they would evict each other."""
    from millpond.fast import products

    function = products.product_transposed.py_func  # type: ignore[attr-defined]
    marks = set()
    for packed, rows in ((True, 4), (False, 4), (False, 5)):
        monkeypatch.setattr(products, "USE_PACKED_GEMM", packed)
        monkeypatch.setattr(products, "MIN_PACKED_ROWS", rows)
        marks.add(fingerprint(function))
    assert len(marks) == 2


def test_numba_has_the_cache_that_is_extended(recwarn: pytest.WarningsRecorder) -> None:
    """A failure here means that numba has changed: code is no longer cached, and every process compiles again."""

    @compiled
    def add_one(x: int) -> int:
        return x + 1

    stamp = add_one._cache._cache_file._source_stamp  # type: ignore[attr-defined]
    assert stamp[1] == fingerprint(add_one.py_func)  # type: ignore[attr-defined]
    assert not recwarn.list


def test_unknown_cache_is_reported_and_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Changed:
        """A dispatcher of another numba."""

    with pytest.raises(RuntimeError, match="another cache"):
        extend_source_stamp(Changed(), "mark")
    original = extend_source_stamp
    monkeypatch.setattr("millpond.compiled.extend_source_stamp", lambda dispatcher, mark: original(Changed(), mark))
    with pytest.warns(UserWarning, match="every process compiles it again"):
        compiled(lambda x: x)
