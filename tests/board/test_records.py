"""Records in bounded memory."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from millpond.board import records as module
from millpond.board.records import MAX_ROWS, RunRecords, overview
from tests.support.board import append, record_at


def read(path: Path) -> RunRecords:
    records = RunRecords(path)
    records.update()
    return records


def test_reading_in_parts_gives_the_same_as_reading_at_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.touch()
    growing = read(path)
    for begin in range(0, 90, 9):
        append(tmp_path, [record_at(number) for number in range(begin, begin + 9)])
        growing.update()
    whole = read(path)
    assert growing.count == whole.count == 90
    for name in ("agent_steps", "episode_return", "eval/episode_return"):
        assert np.array_equal(growing.column(name), whole.column(name), equal_nan=True)
    assert whole.column("episode_return").tolist() == [record_at(number)["episode_return"] for number in range(90)]


def test_unfinished_line_is_read_when_it_is_finished(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    line = json.dumps(record_at(0))
    path.write_text(line[:20])
    records = read(path)
    assert records.count == 0
    with path.open("a") as file:
        file.write(line[20:] + "\n")
    records.update()
    assert records.column("updates").tolist() == [4]
    assert records.problem == ""


def test_file_that_was_cut_and_written_again_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    append(tmp_path, [record_at(number) for number in range(10)])
    records = read(path)
    lines = path.read_text().splitlines(keepends=True)
    with path.open("r+") as file:  # as a resumed run: the same file, cut to its checkpoint, then longer than before
        file.truncate(len("".join(lines[:5])))
    append(tmp_path, [record_at(number, top=9.0) for number in range(5, 20)])
    records.update()
    assert records.count == 20
    assert records.column("episode_return")[-1] == record_at(19, top=9.0)["episode_return"]


def test_many_records_are_merged_with_their_extremes_and_newest_counters(tmp_path: Path) -> None:
    count = 4 * MAX_ROWS
    rows = [{"updates": k, "loss": 1000.0 if k == 1234 else float(k % 2)} for k in range(count)]
    rows[77]["rare"] = 5.0
    append(tmp_path, rows)
    records = read(tmp_path / "metrics.jsonl")
    x, y, low, high = records.curve("updates", "loss")
    assert MAX_ROWS <= len(x) <= 2 * MAX_ROWS
    assert x[-1] == count - 1
    assert (low.min(), high.max()) == (0.0, 1000.0)
    assert y[0] == 0.5
    assert np.nanmax(records.column("rare")) == 5.0
    assert records.nbytes < 1 << 20


def test_large_file_is_sampled_with_every_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WHOLE_BYTES", 50_000)
    monkeypatch.setattr(module, "SAMPLES", 40)
    monkeypatch.setattr(module, "CHUNK", 4_000)
    append(tmp_path, [record_at(number) for number in range(1000)])
    records = read(tmp_path / "metrics.jsonl")
    assert records.sampled
    assert records.count < 150
    evaluated = records.curve("agent_steps", "eval/episode_return")[0]
    assert evaluated.tolist() == [100 * (number + 1) for number in range(9, 1000, 10)]
    steps = records.column("agent_steps")
    assert np.all(np.diff(steps) > 0)
    append(tmp_path, [record_at(1000)])
    records.update()
    assert records.column("agent_steps")[-1] == 100_100


NO_RECORDS = ["[1]", '"text"', '{"updates": "<script>"}', '{"updates": NaN}', '{"updates": true}', "{", "[" * 9000]


@pytest.mark.parametrize("line", [*NO_RECORDS, '{"a": 1' + "0" * 400 + "}"])
def test_line_that_is_no_record_ends_the_curve(tmp_path: Path, line: str) -> None:
    append(tmp_path, [record_at(0)])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(line + "\n")
    append(tmp_path, [record_at(1)])
    records = read(tmp_path / "metrics.jsonl")
    assert records.count == 1
    assert "record 2 of metrics.jsonl is not one" in records.problem


def test_number_of_metrics_and_length_of_names_are_bounded(tmp_path: Path) -> None:
    append(tmp_path, [{f"m{number}": 1.0 for number in range(3000)}, {"x" * 5000: 1.0}])
    assert len(read(tmp_path / "metrics.jsonl").names()) == module.MAX_METRICS


def test_link_is_not_followed(tmp_path: Path) -> None:
    append(tmp_path, [record_at(0)])
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").symlink_to(tmp_path / "metrics.jsonl")
    assert "symbolic link" in read(tmp_path / "run" / "metrics.jsonl").problem
    assert overview(tmp_path / "run" / "metrics.jsonl", 5) == []


def test_overview_takes_records_at_even_distances(tmp_path: Path) -> None:
    append(tmp_path, [record_at(number) for number in range(500)])
    steps = [record["agent_steps"] for record in overview(tmp_path / "metrics.jsonl", 10)]
    assert len(steps) == 10
    assert steps[0] == 100
    assert 44_000 < steps[-1] < 47_000
