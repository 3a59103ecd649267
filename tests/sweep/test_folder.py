"""The files of a sweep: settings, trials, locks, and hours over several sessions."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from millpond.durable import replace_json
from millpond.errors import MillpondError
from millpond.sweep.folder import Rung, Session, SweepFolder, TrialRecord, rung_at, with_rung
from tests.support.sweeps import settings


def test_settings_and_trials_are_read_as_they_were_written(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    folder.begin(settings())
    assert folder.settings() == settings()
    rung = Rung(0.5, {"1": 2.5}, 2.5, None, None)
    record = TrialRecord(3, {"ppo.gamma": 0.9}, "running", rungs=(rung,))
    folder.save(record)
    assert folder.trial(3) == record
    assert folder.trials() == [record]
    assert folder.trial(4) is None


def test_other_settings_are_refused_and_lengths_may_change(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    folder.begin(settings())
    folder.begin(replace(settings(), trials=99, hours=2.0, final_seeds=7))
    assert folder.settings().trials == 99
    with pytest.raises(MillpondError, match=r"seeds: 2 -> 3.*cannot be compared; use another --folder"):
        folder.begin(replace(settings(), seeds=3))


def test_a_folder_without_a_sweep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MillpondError, match=r"contains no sweep"):
        SweepFolder(tmp_path).settings()
    replace_json(tmp_path / "sweep.json", {**asdict(settings()), "format": 99})
    with pytest.raises(MillpondError, match=r"has format=99"):
        SweepFolder(tmp_path).settings()


def test_a_lock_is_held_by_one(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    folder.begin(settings())
    first = folder.try_lock("trial0001")
    assert first is not None
    assert folder.try_lock("trial0001") is None
    first.release()
    again = folder.try_lock("trial0001")
    assert again is not None
    again.release()


def test_hours_count_parallel_sessions_once_and_pauses_not_at_all(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    folder.begin(settings())
    for name, began, last in (("a", 100.0, 200.0), ("b", 150.0, 260.0), ("c", 1000.0, 1040.0), ("d", 1010.0, 1020.0)):
        replace_json(tmp_path / "sessions" / f"{name}.json", {"began": began, "last": last})
    assert folder.seconds_spent() == pytest.approx(160.0 + 40.0)
    with Session(folder):
        pass
    assert 200.0 <= folder.seconds_spent() < 260.0
    assert len(list((tmp_path / "sessions").iterdir())) == 5


def test_rungs_stay_in_order() -> None:
    record = TrialRecord(0, {}, "running")
    for fraction in (0.5, 0.25, 1.0):
        record = with_rung(record, Rung(fraction, {"1": fraction}))
    record = with_rung(record, Rung(0.5, {"1": 9.0}))
    assert [rung.fraction for rung in record.rungs] == [0.25, 0.5, 1.0]
    assert rung_at(record, 0.5).scores == {"1": 9.0}
    assert rung_at(record, 0.1).scores == {}
