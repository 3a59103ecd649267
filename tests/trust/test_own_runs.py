"""A run of this user is recognised by a key that only this user has."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from millpond.config.code import NamedCode
from millpond.trust.own_runs import KEY, SEAL, is_own_run, mark_as_own, state_folder

CODE = (NamedCode("env.id", "my_env:make_env", None, ("my_env",), function="make_env", arguments={"size": 3}),)
OTHER = (NamedCode("env.id", "my_env:make_env", None, ("my_env",), function="make_env", arguments={"size": 4}),)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "runs" / "mine"
    folder.mkdir(parents=True)
    (folder / "host.json").write_text(json.dumps({"run_id": "0123456789ab"}))
    return folder


def test_marked_run_is_own_also_after_it_was_moved(run: Path, tmp_path: Path) -> None:
    assert not is_own_run(run, CODE)
    mark_as_own(run, CODE)
    assert is_own_run(run, CODE)
    assert is_own_run(Path(shutil.move(run, tmp_path / "elsewhere")), CODE)


def test_other_code_other_arguments_and_another_run_are_not_own(run: Path) -> None:
    mark_as_own(run, CODE)
    assert not is_own_run(run, OTHER)
    assert not is_own_run(run, ())
    (run / "host.json").write_text(json.dumps({"run_id": "ba9876543210"}))
    assert not is_own_run(run, CODE)


def test_a_seal_of_another_user_is_not_own(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark_as_own(run, CODE)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "stranger"))
    assert not is_own_run(run, CODE)
    mark_as_own(run, CODE)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert not is_own_run(run, CODE)


@pytest.mark.parametrize("host", ["", "[]", "{}", '{"run_id": 3}', "[" * 100_000])
def test_run_without_a_readable_id_is_not_own(run: Path, host: str) -> None:
    (run / "host.json").write_text(host)
    mark_as_own(run, CODE)
    assert not is_own_run(run, CODE)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no file modes")
def test_key_is_private_and_one_that_others_can_read_is_not_used(run: Path) -> None:
    mark_as_own(run, CODE)
    key = state_folder() / KEY
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    key.chmod(0o640)
    assert not is_own_run(run, CODE)


def test_without_a_state_folder_no_run_is_own(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))  # cannot become a folder
    mark_as_own(run, CODE)
    assert not (run / SEAL).exists()
    assert not is_own_run(run, CODE)


def test_processes_that_start_at_once_share_one_key(run: Path, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from millpond.config.code import NamedCode\n"
        "from millpond.trust import mark_as_own\n"
        "mark_as_own(Path(sys.argv[1]), [NamedCode('env.id', 'my_env:make_env', None, arguments={'size': 3})])\n"
    )
    folders = [Path(shutil.copytree(run, tmp_path / f"run{number}")) for number in range(6)]
    processes = [subprocess.Popen([sys.executable, "-c", program, str(folder)]) for folder in folders]
    assert [process.wait() for process in processes] == [0] * 6
    assert all(is_own_run(folder, CODE) for folder in folders)
    assert [path.name for path in state_folder().iterdir()] == [KEY]


def test_a_link_of_a_stranger_is_replaced_and_not_followed(run: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("text")
    (run / SEAL).symlink_to(tmp_path / "precious")
    mark_as_own(run, CODE)
    assert is_own_run(run, CODE)
    assert (tmp_path / "precious").read_text() == "text"
