"""Cached compiled code is never older than its sources."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "kept"), "PYTHONDONTWRITEBYTECODE": "1"}
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


def test_processor_features_do_not_change_the_stamp(monkeypatch: pytest.MonkeyPatch) -> None:
    """numba caches code of several processors side by side; with different stamps they would evict each other."""
    from millpond.compiled import _mark
    from millpond.policies import lstm_rows

    function = lstm_rows.is_packed.py_func  # type: ignore[attr-defined]
    marks = set()
    for pays, panel in ((True, 16), (False, 16), (False, 32)):
        monkeypatch.setattr(lstm_rows, "PAYS", pays)
        monkeypatch.setattr(lstm_rows, "PANEL", panel)
        marks.add(_mark(function))
    assert len(marks) == 2
