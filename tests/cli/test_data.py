"""`millpond data info` and `millpond data audit`: what they print, and how they exit."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import pytest

from millpond.cli import main
from tests.support.episode_files import make_episodes, write_libero, write_minari, write_robosuite


@dataclass
class Run:
    returncode: int
    stdout: str
    stderr: str


Command = Callable[..., Run]


@pytest.fixture
def millpond(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command in this process, with all that it prints and how it exits."""

    def command(*arguments: str) -> Run:
        monkeypatch.setattr(sys, "argv", ["millpond", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        code = stop.value.code
        return Run(code if isinstance(code, int) else 0, *capsys.readouterr())

    return command


def test_info_of_packaged_episodes(millpond: Command) -> None:
    run = millpond("data", "info", "pendulum", "--json")
    assert run.returncode == 0, run.stderr
    info = json.loads(run.stdout)
    assert (info["episodes"], info["steps"]) == (56, 11_200)
    assert info["lengths"]["min"] == info["lengths"]["max"] == 200
    assert sum(info["histogram"]["counts"]) == 56
    assert info["columns"] == ["obs:0", "obs:1", "obs:2"]


def test_info_shows_used_fields(millpond: Command, tmp_path: Path) -> None:
    write_libero(tmp_path / "a.hdf5", side=8)
    run = millpond("data", "info", str(tmp_path / "a.hdf5"), "--key", "ee_pos", "--drop", "ee_pos:1", "--json")
    info = json.loads(run.stdout)
    assert info["columns"] == ["ee_pos:0", "ee_pos:2"]
    assert [field["name"] for field in info["fields"] if field["used"]] == ["ee_pos"]
    assert info["succeeded"] == 3


def test_audit_reports_a_clock_column_and_a_fitting_objective(millpond: Command) -> None:
    run = millpond("data", "audit", "lift")
    assert run.returncode == 0, run.stderr
    assert "clock-column: states:0 is a clock" in run.stdout
    assert "-> data.drop_columns=[states:0]" in run.stdout
    assert "progress  yes" in run.stdout
    cleared = millpond("data", "audit", "lift", "--drop", "states:0", "--json")
    assert "clock-column" not in {finding["code"] for finding in json.loads(cleared.stdout)["findings"]}


@pytest.mark.parametrize(("objective", "code"), [("rrd", 1), ("progress", 0)])
def test_audit_exits_with_one_if_objective_does_not_fit(
    millpond: Command, objective: str, code: int, tmp_path: Path
) -> None:
    write_libero(tmp_path / "a.hdf5", side=8)
    run = millpond("data", "audit", str(tmp_path / "a.hdf5"), "--objective", objective, "--json")
    assert run.returncode == code, run.stderr
    assert "return 1" in json.loads(run.stdout)["unfit"]["rrd"]


def test_broken_data_exits_with_one(millpond: Command, tmp_path: Path) -> None:
    write_minari(
        tmp_path / "a.hdf5", make_episodes(np.random.default_rng(0), [5, 6, 7], {"observations": ((2,), "float32")})
    )
    with h5py.File(tmp_path / "a.hdf5", "r+") as file:
        file["episode_1/observations"][3, 1] = np.nan
    run = millpond("data", "audit", str(tmp_path / "a.hdf5"))
    assert run.returncode == 1, run.stderr
    assert "error    not-finite: NaN or infinity in observation of episode episode_1." in run.stdout


@pytest.mark.parametrize("verb", ["info", "audit"])
def test_bad_input_exits_with_two_and_no_traceback(millpond: Command, verb: str, tmp_path: Path) -> None:
    write_libero(tmp_path / "a.hdf5", side=8)
    content = (tmp_path / "a.hdf5").read_bytes()
    (tmp_path / "cut.hdf5").write_bytes(content[: len(content) // 2])
    for arguments, says in (
        (["nowhere"], "no such file or folder"),
        ([str(tmp_path / "cut.hdf5")], "expected a complete HDF5 file"),
        (["lift", "--key", "state"], "no field 'state'"),
    ):
        run = millpond("data", verb, *arguments)
        assert run.returncode == 2, run.stdout
        assert says in run.stderr
        assert "Traceback" not in run.stderr


def test_old_robosuite_files_are_described_and_audited(millpond: Command, tmp_path: Path) -> None:
    path = tmp_path / "old.hdf5"
    write_robosuite(path, make_episodes(np.random.default_rng(0), [9, 8], {"states": ((4,), "f8")}), actions=False)
    info = millpond("data", "info", str(path))
    assert info.returncode == 0, info.stderr
    assert "actions     missing  action    no" in info.stdout
    assert json.loads(millpond("data", "info", str(path), "--json").stdout)["action"] is None
    audit = millpond("data", "audit", str(path), "--objective", "progress")
    assert audit.returncode == 0
    assert "no-actions: data/demo_1/actions is missing" in audit.stdout
    assert millpond("data", "audit", str(path), "--objective", "lrd").returncode == 1


def test_plan_with_missing_data_exits_with_two(millpond: Command, tmp_path: Path) -> None:
    run = millpond("plan", "reward", f"data.path={tmp_path / 'mine.npz'}")
    assert run.returncode == 2
    assert run.stderr.startswith(f"millpond: {tmp_path / 'mine.npz'}: no such file or folder")
    assert not run.stdout


def test_help_and_recipes_explain_the_fast_preset(millpond: Command) -> None:
    for verb in ("train", "plan"):
        text = " ".join(millpond(verb, "--help").stdout.split())
        assert "fast: a shortened full, which is longer than the default of `reward`" in text
    recipes = " ".join(millpond("recipes").stdout.split())
    assert (
        "6,000 batches; --preset fast: 75,000; --preset full: 5,000,000 (fast shortens full, not the default)"
        in recipes
    )
