"""The list of runs: what is read again, and what is not looked at."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from millpond.board import catalog as module
from millpond.board.catalog import Catalog, read_settings
from millpond.board.labels import LabelError, ask_to_stop, read_labels, write_labels
from millpond.config.check import flatten_mapping
from millpond.config.yaml import read_mapping
from millpond.errors import MillpondError
from tests.support.board import append, make_run, record_at


@pytest.fixture(autouse=True)
def always_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS_BETWEEN_SCANS", 0.0)


def listed(catalog: Catalog, since: int = 0) -> dict[str, dict]:
    catalog.refresh(60)
    return {run["id"]: run for run in catalog.changes(since)["runs"]}


def test_list_has_state_return_speed_trend_and_group(tmp_path: Path) -> None:
    make_run(tmp_path, "a", seed=1)
    make_run(tmp_path, "b", seed=2)
    make_run(tmp_path, "c", seed=2, rate=0.5, state="stopped")
    runs = listed(Catalog(tmp_path))
    assert runs["a"]["state"] == "finished"
    assert runs["a"]["return"] == pytest.approx(record_at(99)["eval/episode_return"])
    assert runs["a"]["speed"] == pytest.approx(200)
    assert (runs["a"]["env"], runs["a"]["seed"], runs["a"]["spark_metric"]) == ("grid", 1, "episode_return")
    assert runs["a"]["group"] == runs["b"]["group"] != runs["c"]["group"]


def test_only_what_changed_is_sent_again(tmp_path: Path) -> None:
    folders = [make_run(tmp_path, name) for name in ("a", "b")]
    catalog = Catalog(tmp_path)
    listed(catalog)
    assert listed(catalog, catalog.version) == {}
    before = catalog.version
    append(folders[1], [record_at(100)])
    assert set(listed(catalog, before)) == {"b"}
    shutil.rmtree(folders[0])
    before = catalog.version
    listed(catalog)
    assert catalog.changes(before)["removed"] == ["a"]


def test_run_whose_process_died_is_listed_as_failed(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "a", state="running")
    catalog = Catalog(tmp_path)
    assert listed(catalog)["a"]["state"] == "running"
    text, stamp = (folder / "state.json").read_text(), (folder / "state.json").stat()
    started = json.loads(text)["process"]["started"]
    (folder / "state.json").write_text(text.replace(started, started[:-1] + "?"))  # of the same size
    os.utime(folder / "state.json", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert listed(catalog)["a"]["state"] == "failed"


def test_runs_of_sweeps_and_of_known_folders_are_listed(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "one")
    make_run(tmp_path / "sweeps" / "big" / "runs", "trial0001.seed1")
    (tmp_path / "sweeps" / "big" / "sweep.json").write_text("{}")
    catalog = Catalog(tmp_path)
    runs = listed(catalog)
    assert set(runs) == {"runs/one", "sweeps/big/runs/trial0001.seed1"}
    assert runs["sweeps/big/runs/trial0001.seed1"]["sweep"] == "sweeps/big"
    assert catalog.sweep("sweeps/big") == tmp_path / "sweeps" / "big"


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    make_run(outside, "secret")
    make_run(inside, "own")
    (inside / "link").symlink_to(outside / "secret")
    (inside / "runs").symlink_to(outside)
    (inside / "again").symlink_to(inside / "own")  # inside: allowed
    half = make_run(inside, "half")
    shutil.rmtree(half / "checkpoints")
    (half / "checkpoints").symlink_to(outside)
    (make_run(inside, "third") / "checkpoints" / "000000000004").symlink_to(outside)
    (inside / "sweep" / "runs").mkdir(parents=True)
    (inside / "sweep" / "sweep.json").write_text("{}")
    (inside / "sweep" / "trials").symlink_to(outside)
    catalog = Catalog(inside)
    assert set(listed(catalog)) == {"own", "again"}
    assert catalog.changes(0)["sweeps"] == []


def test_config_that_is_a_link_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "private.yaml").write_text("env: {id: private}\n")
    folder = make_run(tmp_path / "runs", "a")
    (folder / "config.yaml").unlink()
    (folder / "config.yaml").symlink_to(tmp_path / "private.yaml")
    run = listed(Catalog(tmp_path / "runs"))["a"]
    assert "private" not in json.dumps({**run, "note": ""})
    assert "symbolic link" in run["note"]


def test_reading_many_runs_is_spread_over_several_calls(tmp_path: Path) -> None:
    for number in range(6):
        make_run(tmp_path, f"run{number}", records=2)
    catalog = Catalog(tmp_path)
    waiting = [catalog.refresh(0.0)]
    while waiting[-1]:
        waiting.append(catalog.refresh(0.0))
    assert waiting == [5, 4, 3, 2, 1, 0]
    assert len(catalog.changes(0)["runs"]) == 6


def test_records_in_memory_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        make_run(tmp_path, f"run{number}", records=20)
    catalog = Catalog(tmp_path)
    listed(catalog)
    one = catalog.records(catalog.entry("run0")).nbytes
    monkeypatch.setattr(module, "MAX_CACHED_BYTES", 2 * one)
    for number in range(5):
        catalog.records(catalog.entry(f"run{number}"))
    assert list(catalog._records) == ["run2", "run3", "run4"]  # the newest is not counted before it is read


def test_labels_are_kept_and_strange_ones_refused(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "a")
    write_labels(folder, ["good", " good ", "<b>"], "a note")
    assert read_labels(folder).tags == ("good", "<b>")
    assert listed(Catalog(tmp_path))["a"]["remark"] == "a note"
    for tags, note in (
        ("text", ""),
        ([1], ""),
        (["x" * 41], ""),
        ([""], ""),
        (["a"] * 21, ""),
        ([], 5),
        ([], "x" * 5000),
    ):
        with pytest.raises(LabelError):
            write_labels(folder, tags, note)
    (folder / "board.json").write_text('{"tags": [{}]}')
    assert read_labels(folder).tags == ()


def test_labels_are_not_written_through_a_link(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "a")
    target = tmp_path / "precious"
    target.write_text("precious")
    (folder / "board.json").symlink_to(target)
    with pytest.raises(LabelError, match="symbolic link"):
        write_labels(folder, [], "")
    assert target.read_text() == "precious"


def test_only_a_running_run_can_be_asked_to_stop(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "a")
    with pytest.raises(LabelError, match="only a running one"):
        ask_to_stop(folder)
    running = make_run(tmp_path, "b", state="running")
    ask_to_stop(running)
    ask_to_stop(running)
    assert (running / "stop").exists()
    assert listed(Catalog(tmp_path))["b"]["stopping"]


def test_scanning_again_reads_no_run_that_has_not_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path, "a")
    catalog = Catalog(tmp_path)
    listed(catalog)
    read: list[Path] = []
    monkeypatch.setattr(module, "read_row", lambda folder: read.append(folder))
    time.sleep(0.01)
    catalog.refresh(60)
    assert read == []


@pytest.mark.parametrize(
    "text",
    [
        "kind: ppo\nseed: 1\nenv:\n  id: grid\n  list:\n  - 1\n  - a\nlog:\n- x\n- y\n# a comment\nlast: true\n",
        "{kind: ppo, env: {id: grid}}\n",
        "---\nkind: ppo\nenv: {id: [1,\n2]}\n",
    ],
)
def test_settings_are_those_of_the_whole_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    assert read_settings(path) == flatten_mapping(read_mapping(path))


@pytest.mark.parametrize("text", ["a: 1\na: 2\n", "a: [\n", "a: &x 1\nb: *x\n", "- 1\n", ""])
def test_config_that_is_an_error_is_one(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(MillpondError):
        read_settings(path)
