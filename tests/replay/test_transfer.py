"""Pour ponds into a lake, and fill ponds from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millpond.replay import Field, Lake, LakeError, LakeFull, Pond, PondFull, Schema, Steps, fill, pour, steps
from tests.support.naive_lake import FRAME, MIXED, NaiveLake, assert_transition
from tests.support.sampling import chi_square


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


def test_pour_appends_every_step_exactly_once(tmp_path: Path) -> None:
    rng, naive = np.random.default_rng(0), NaiveLake()
    pond = Pond.init(MIXED, 60, lanes=3, guarded=True)
    with Lake.create(tmp_path, MIXED, segment_bytes=20_000) as lake, lake.writer("a", 3) as writer:
        poured = 0
        for _ in range(40):
            steps = naive.generate("a", 3, 4, rng, MIXED, fresh=False, ends=0.2)
            try:
                pond.add(steps)
            except PondFull:
                poured += sum(ack.steps for ack in pour(pond, writer, steps_per_append=15))
                pond.add(steps)
        poured += sum(ack.steps for ack in pour(pond, writer))
        assert pour(pond, writer) == []
        assert poured == 40 * 12
        lake.refresh()
        valid = naive.transitions(stack=3, n_step=2, gamma=0.5, repeat=False)
        assert lake.transitions(3, 2) == len(valid)
        batch = lake.sample(500, rng, stack=3, n_step=2, gamma=0.5)
        for i in range(0, 500, 5):
            assert_transition(batch, i, valid[int(batch.record["id"][i])], MIXED, stacked=True)
        with pytest.raises(LakeError, match="guarded=True"):
            pour(Pond.init(MIXED, 3, lanes=3), writer)


def test_unpoured_steps_are_never_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, naive = np.random.default_rng(0), NaiveLake()
    pond = Pond.init(FRAME, 20, lanes=2, guarded=True)
    with Lake.create(tmp_path, FRAME) as lake, lake.writer("a", 2) as writer:
        pond.add(naive.generate("a", 2, 9, rng, FRAME, fresh=False, ends=0))
        assert pond.room == 1
        with pytest.raises(PondFull, match="1 records left in its fullest lane and needs 3: pour it first"):
            pond.add(NaiveLake().generate("a", 2, 3, rng, FRAME, fresh=False, ends=0))

        def refuse(*arguments: object) -> int:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr("os.pwrite", refuse)
            with pytest.raises(LakeFull):
                pour(pond, writer)
        assert pond.room == 1
        assert sum(ack.steps for ack in pour(pond, writer)) == 18
        assert pond.room == 10


@pytest.mark.parametrize("share", [0.05, 0.4, 1.0])
def test_fill_is_uniform_and_stores_each_record_once(tmp_path: Path, share: float) -> None:
    rng, naive = np.random.default_rng(0), NaiveLake()
    with Lake.create(tmp_path, MIXED, segment_bytes=30_000) as lake:
        for name, lanes, appends in (("a", 2, 15), ("b", 3, 4)):
            with lake.writer(name, lanes) as writer:
                for _ in range(appends):
                    writer.append(naive.generate(name, lanes, 5, rng, MIXED, fresh=False, ends=0.1))
        lake.refresh()
        valid = naive.transitions(stack=3, n_step=2, gamma=0.5, repeat=False)
        n = max(1, int(share * len(valid)))
        pond = Pond.init(MIXED, 400)
        counts = dict.fromkeys(valid, 0)
        for _ in range(40):
            reported: list[tuple[int, int]] = []
            records = fill(
                pond,
                lake,
                n,
                rng,
                stack=3,
                n_step=2,
                progress=lambda done, of, reported=reported: reported.append((done, of)),
            )
            assert reported[-1] == (records, records)
            assert pond.transitions(3, 2) == n
            batch = pond.sample(400, rng, stack=3, n_step=2, gamma=0.5)
            ids = batch.column["id"].tolist()
            assert len(set(ids)) <= n
            for number in set(ids):
                counts[number] += 1
        for i in range(0, 400, 4):
            assert_transition(batch, i, valid[ids[i]], MIXED, stacked=True)
        assert records <= n * 6
        if share == 1.0:
            assert records <= lake.view("a").num_records + lake.view("b").num_records
        if share == 0.4:
            assert abs(chi_square(np.array(list(counts.values())))) < 6
        # A stack deeper than was filled is never invented.
        deeper = naive.transitions(stack=6, n_step=2, gamma=0.5, repeat=False)
        if pond.can_sample(stack=6, n_step=2):
            batch = pond.sample(100, rng, stack=6, n_step=2, gamma=0.5)
            for i in range(100):
                assert_transition(batch, i, deeper[int(batch.column["id"][i])], MIXED, stacked=True)
        with pytest.raises(LakeError, match="clear"):
            pond.add(naive.generate("x", 1, 1, rng, MIXED, fresh=True, ends=0))
        with pytest.raises(PondFull, match=r"need [\d,]+ records; the pond has 2"):
            fill(Pond.init(MIXED, 2), lake, 3, rng, stack=3)
        with pytest.raises(LakeError, match="were requested"):
            fill(pond, lake, len(valid) + 50, rng, stack=3)
