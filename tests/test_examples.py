"""Every example runs, at a small size, and does what it says."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SMALL: dict[str, dict[str, Any]] = {
    "callback": {"steps": 8_192, "enough": 2.0},
    "lake_from_own_data": {"episodes": 10, "batches": 100},
    "own_env": {"steps": 4_096},
    "own_network": {"steps": 4_096},
    "multi_agent": {"steps": 8_192},
    "export": {"steps": 4_096, "episodes": 2},
}
QUICK = ("callback", "lake_from_own_data")


def test_every_example_is_listed() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*SMALL, "ball"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in SMALL]
)
def test_example_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    importlib.import_module(name).main(**SMALL[name])
    printed = capsys.readouterr().out
    if name == "lake_from_own_data":
        assert "it pushes [1, 0]" in printed
    if name == "export":  # onnxruntime alone plays the same episodes
        returns = [
            line.partition(":")[2].strip() for line in printed.splitlines() if line.startswith(("onnxr", "millpond:"))
        ]
        assert len(returns) == 2
        assert returns[0] == returns[1]
