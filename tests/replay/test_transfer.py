"""Steps on their way from a pond to a lake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millpond.replay import Field, Lake, LakeError, Pond, Schema, Steps, pour, steps
from tests.support.naive_lake import MIXED, NaiveLake


def test_steps_are_validated_when_added_and_not_again_when_poured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: list[str] = []
    cast = steps._cast

    def counted(spec: Field, *arguments: Any) -> Any:
        checks.append(spec.name)
        return cast(spec, *arguments)

    monkeypatch.setattr(steps, "_cast", counted)
    generated = NaiveLake().generate("a", 2, 9, np.random.default_rng(0), MIXED, fresh=True, ends=0.2)
    pond = Pond.init(MIXED, 64, lanes=2, guarded=True)
    pond.add(generated)
    assert set(checks) == {"left", "speed", "right", "action", "id"}
    checks.clear()
    with Lake.create(tmp_path / "lake", MIXED) as lake, lake.writer("a", 2) as writer:
        assert sum(ack.steps for ack in pour(pond, writer)) == 18
    assert not checks


def test_validated_steps_are_validated_again_for_another_schema(tmp_path: Path) -> None:
    small = Schema((Field("observation", (2,), "float32"),), Field("action", (), "int32"))
    large = Schema((Field("observation", (3,), "float32"),), Field("action", (), "int32"))
    none = np.zeros((4, 1), bool)
    pond = Pond.init(small, 8, guarded=True)
    pond.add(Steps(np.zeros((4, 1, 2)), np.zeros((4, 1)), np.zeros((4, 1)), none, none))
    refusal = r"field 'observation' has shape \(4, 1, 2\); expected \(4, 1, 3\)"
    with Lake.create(tmp_path / "lake", large) as lake, lake.writer("a", 1) as writer:  # noqa: SIM117
        with pytest.raises(LakeError, match=refusal):
            pour(pond, writer)
